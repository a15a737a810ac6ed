// Bodies of completions and chats: what is taken and as what, and what is refused and how.
#include <gtest/gtest.h>

#include <limits>

#include "serve/core/completion_request.h"
#include "serve/tokenizer_with_marks.h"

namespace gsa::serve {
namespace {

class Requests : public ::testing::Test {
 protected:
  Requests() { options_.model = "tiny"; }

  RequestContext context() const {
    return {options_, *tokenizer_, max_length_, tokenizer_->vocab_size(), longest_token_};
  }
  CompletionRequest completion(const std::string& body) const { return parse_completion(body, context()); }
  CompletionRequest chat(const std::string& body) const { return parse_chat(body, context()); }
  // The fields beside a prompt, or beside a message.
  CompletionRequest with(const std::string& fields) const {
    return completion(R"({"prompt": "ab", )" + fields + "}");
  }
  CompletionRequest chat_with(const std::string& fields) const {
    return chat(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}");
  }

  struct Bad {
    std::string fields, param, code, message;
  };
  template <typename Parse>
  static void expect_refused(const Parse& parse, const std::vector<Bad>& table) {
    for (const Bad& bad : table) {
      try {
        parse(bad.fields);
        ADD_FAILURE() << "accepted: " << bad.fields;
      } catch (const RequestError& error) {
        EXPECT_EQ(error.param(), bad.param) << bad.fields;
        EXPECT_EQ(error.code(), bad.code) << bad.fields << ": " << error.what();
        EXPECT_NE(std::string(error.what()).find(bad.message), std::string::npos)
            << bad.fields << ": " << error.what();
        EXPECT_EQ(error.status(), bad.code == "model_not_found" ? 404 : 400) << bad.fields;
      }
    }
  }

  ApiOptions options_;
  std::unique_ptr<data::Tokenizer> tokenizer_ = data::byte_tokenizer();
  std::int64_t max_length_ = 100, longest_token_ = 0;
};

using TokenIds = std::vector<std::int64_t>;

TEST_F(Requests, DefaultsAreOpenAIs) {
  const CompletionRequest request = completion(R"({"prompt": "ab"})");
  ASSERT_EQ(request.prompts, (std::vector<TokenIds>{{256, 'a', 'b'}}));
  EXPECT_FALSE(request.chat || request.echo || request.stream || request.include_usage);
  EXPECT_FALSE(request.wants_logprobs() || request.text.ignore_eos || request.text.prompt_logprobs);
  EXPECT_EQ(request.text.sampling.temperature, 1);
  EXPECT_EQ(request.text.sampling.top_p, 1);
  EXPECT_EQ(request.text.sampling.top_k, 0);
  const auto texts = texts_of(request);
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_EQ(texts[0].max_tokens, 16);
  // Without a seed no two requests draw alike.
  EXPECT_NE(request.text.sampling.seed, completion(R"({"prompt": "ab"})").text.sampling.seed);
}

TEST_F(Requests, PromptsOfEveryKind) {
  EXPECT_EQ(completion(R"({"prompt": ""})").prompts, (std::vector<TokenIds>{{256}}));
  EXPECT_EQ(completion(R"({"prompt": ["a", ""]})").prompts, (std::vector<TokenIds>{{256, 'a'}, {256}}));
  EXPECT_EQ(completion(R"({"prompt": [97, 257]})").prompts, (std::vector<TokenIds>{{97, 257}}));
  EXPECT_EQ(completion(R"({"prompt": [[97], [98, 99]]})").prompts, (std::vector<TokenIds>{{97}, {98, 99}}));
  EXPECT_EQ(completion(R"({"prompt": "a", "add_special_tokens": false})").prompts,
            (std::vector<TokenIds>{{'a'}}));
}

TEST_F(Requests, EchoedTexts) {
  EXPECT_EQ(completion(R"({"prompt": ["a\u00e9", "b"], "echo": true})").echoed,
            (std::vector<std::string>{"a\u00e9", "b"}));
  // Half a character is none.
  EXPECT_EQ(completion(R"({"prompt": [256, 97, 195], "echo": true})").echoed,
            (std::vector<std::string>{"a\xEF\xBF\xBD"}));
}

TEST_F(Requests, FieldsAreRead) {
  const CompletionRequest request = with(
      R"("n": 2, "echo": true, "logprobs": 3, "stop": ["x", "yz"], "seed": -1, "temperature": 0.5, "top_p": 0.25,
         "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5, "max_tokens": 5, "stream": true, "best_of": 2,
         "stream_options": {"include_usage": true}, "ignore_eos": true, "user": "u", "model": "tiny",
         "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": "", "never_heard_of": [1],
         "length_penalty": 1.0, "chat_template_kwargs": {}, "logits_processors": [],
         "response_format": {"type": "text"}, "max_completion_tokens": 5)");
  EXPECT_TRUE(request.echo && request.stream && request.include_usage && request.text.ignore_eos);
  EXPECT_EQ(request.text.sampling.logprobs, 3);
  EXPECT_TRUE(request.text.prompt_logprobs);
  EXPECT_EQ(request.text.stops, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(request.text.sampling.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(request.text.sampling.temperature, 0.5);
  EXPECT_EQ(request.text.sampling.top_p, 0.25);
  EXPECT_EQ(request.text.sampling.top_k, 7);
  EXPECT_EQ(request.text.sampling.min_p, 0.1);
  EXPECT_EQ(request.text.sampling.repetition_penalty, 1.5);
  const auto texts = texts_of(request);
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts[0].max_tokens, 5);
  EXPECT_EQ(texts[0].sampling.stream, 0U);
  EXPECT_EQ(texts[1].sampling.stream, 1U);
  EXPECT_EQ(with(R"("stop": "x")").text.stops, (std::vector<std::string>{"x"}));
  EXPECT_EQ(with(R"("top_k": -1)").text.sampling.top_k, 0);
  EXPECT_EQ(with(R"("logprobs": 0)").text.sampling.logprobs, 0);
}

TEST_F(Requests, NullIsAbsent) {
  std::string fields;
  for (const char* name : {"n",
                           "echo",
                           "logprobs",
                           "stop",
                           "seed",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "max_tokens",
                           "max_completion_tokens",
                           "stream",
                           "stream_options",
                           "ignore_eos",
                           "add_special_tokens",
                           "user",
                           "model",
                           "frequency_penalty",
                           "presence_penalty",
                           "logit_bias",
                           "suffix",
                           "best_of",
                           "response_format",
                           "tools",
                           "tool_choice"}) {
    fields += concat(fields.empty() ? "" : ", ", '"', name, "\": null");
  }
  EXPECT_EQ(texts_of(with(fields)).size(), 1U);
  EXPECT_EQ(texts_of(chat_with(fields)).size(), 1U);
}

TEST_F(Requests, PromptsTimesNInOrder) {
  const auto texts = texts_of(completion(R"({"prompt": [[1], [2]], "n": 2})"));
  ASSERT_EQ(texts.size(), 4U);
  const auto prompt = [&](std::size_t i) { return texts[i].prompt.span(); };
  EXPECT_EQ(TokenIds(prompt(1).begin(), prompt(1).end()), (TokenIds{1}));
  EXPECT_EQ(TokenIds(prompt(2).begin(), prompt(2).end()), (TokenIds{2}));
  EXPECT_EQ(prompt(0).data(), prompt(1).data());  // samples of one prompt hold it once
  EXPECT_NE(prompt(1).data(), prompt(2).data());
  EXPECT_EQ(texts[2].sampling.stream, 0U);
}

TEST_F(Requests, BadCompletions) {
  expect_refused(
      [&](const std::string& fields) { with(fields); },
      {
          {R"("n": 0)", "n", "invalid_value", "expected an integer from 1 to 128, got 0"},
          {R"("n": 1.5)", "n", "invalid_type", "got 1.5"},
          {R"("n": "2")", "n", "invalid_type", "got the string \"2\""},
          {R"("echo": 1)", "echo", "invalid_type", "expected true or false, got 1"},
          {R"("logprobs": true)", "logprobs", "invalid_type", "from 0 to 20 (chats have booleans), got true"},
          {R"("logprobs": 21)", "logprobs", "invalid_value", "from 0 to 20, got 21"},
          {R"("stop": "")", "stop", "invalid_value", "not empty"},
          {R"("stop": ["a", 1])", "stop[1]", "invalid_type", "expected a string, got 1"},
          {R"("stop": 3)", "stop", "invalid_type", "a string or a list of strings, got 3"},
          {R"("seed": 9223372036854775808)", "seed", "invalid_value", "64 bits, got 9223372036854775808"},
          {R"("seed": 1e30)", "seed", "invalid_value", "64 bits"},
          {R"("seed": 99999999999999999999999999)", "seed", "invalid_value", "64 bits"},
          {R"("seed": 9223372036854775808)", "seed", "invalid_value", "64 bits"},
          {R"("temperature": 2.1)", "temperature", "invalid_value", "from 0 to 2, got 2.1"},
          {R"("temperature": -1)", "temperature", "invalid_value", "got -1"},
          {R"("temperature": "hot")", "temperature", "invalid_type", "got the string \"hot\""},
          {R"("top_p": 0)", "top_p", "invalid_value", "above 0, up to 1, got 0"},
          {R"("top_k": -2)", "top_k", "invalid_value", "at least -1, got -2"},
          {R"("min_p": 1.5)", "min_p", "invalid_value", "from 0 to 1"},
          {R"("repetition_penalty": 0)", "repetition_penalty", "invalid_value", "above 0, up to 10"},
          {R"("frequency_penalty": 0.1)", "frequency_penalty", "unsupported_parameter",
           "use repetition_penalty"},
          {R"("presence_penalty": 1)", "presence_penalty", "unsupported_parameter", "use repetition_penalty"},
          {R"("logit_bias": {"5": 1})", "logit_bias", "unsupported_parameter", "not supported"},
          {R"("allowed_token_ids": [5])", "allowed_token_ids", "unsupported_parameter", "not supported"},
          {R"("logits_processors": ["x"])", "logits_processors", "unsupported_parameter", "not supported"},
          {R"("length_penalty": 1.1)", "length_penalty", "unsupported_parameter", "not supported"},
          {R"("chat_template_kwargs": {"a": 1})", "chat_template_kwargs", "unsupported_parameter",
           "templates"},
          {R"("best_of": 2)", "best_of", "unsupported_parameter", "n"},
          {R"("suffix": "end")", "suffix", "unsupported_parameter", "not supported"},
          {R"("max_tokens": -1)", "max_tokens", "invalid_value", "at least 0, got -1"},
          {R"("max_tokens": 0)", "max_tokens", "invalid_value", "0 only with echo"},
          {R"("max_tokens": 3, "max_completion_tokens": 4)", "max_completion_tokens", "invalid_value",
           "max_tokens says, 3, got 4"},
          {R"("max_tokens": 98)", "prompt", "context_length_exceeded",
           "100 tokens, but 3 of the prompt and 98"},
          {R"("max_tokens": 9223372036854775807)", "prompt", "context_length_exceeded",
           "9223372036854775807"},
          {R"("stream": "yes")", "stream", "invalid_type", "true or false"},
          {R"("stream_options": {"include_usage": true})", "stream_options", "invalid_value",
           "only with stream"},
          {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage",
           "invalid_type", "true or false"},
          {R"("stream": true, "stream_options": 1)", "stream_options", "invalid_type", "an object, got 1"},
          {R"("response_format": {"type": "json_object"})", "response_format", "unsupported_parameter",
           "text"},
          {R"("min_tokens": 4)", "min_tokens", "unsupported_parameter", "ignore_eos"},
          {R"("guided_json": {})", "guided_json", "unsupported_parameter", "free text"},
          {R"("model": "other")", "model", "model_not_found", "`other` does not exist"},
          {R"("model": 5)", "model", "invalid_type", "expected a string, got 5"},
      });
}

TEST_F(Requests, BadPrompts) {
  options_.max_prompts = 3;
  options_.max_texts = 4;
  expect_refused(
      [&](const std::string& fields) { completion("{" + fields + "}"); },
      {
          {"", "prompt", "missing_required_parameter", "got nothing"},
          {R"("prompt": 5)", "prompt", "invalid_type", "a string, a list of strings"},
          {R"("prompt": [])", "prompt", "invalid_value", "at least one token id"},
          {R"("prompt": [[1], []])", "prompt[1]", "invalid_value", "at least one token id"},
          {R"("prompt": [1, 258])", "prompt[1]", "invalid_value", "from 0 to 257, got 258"},
          {R"("prompt": [1, -1])", "prompt[1]", "invalid_value", "got -1"},
          {R"("prompt": [1, "a"])", "prompt[1]", "invalid_type", "got the string \"a\""},
          {R"("prompt": ["a", 1])", "prompt[1]", "invalid_type", "same kind as the first, got 1"},
          {R"("prompt": ["a", [1]])", "prompt[1]", "invalid_type", "same kind"},
          {R"("prompt": [[1], ["a"]])", "prompt[1][0]", "invalid_type", "an integer"},
          {R"("prompt": {"a": 1})", "prompt", "invalid_type", "got an object"},
          {R"("prompt": [true])", "prompt[0]", "invalid_type", "got true"},
          {R"("prompt": ["a", "b", "c", "d"])", "prompt", "invalid_value", "at most 3 prompts, got 4"},
          {R"("prompt": ["a", "b", "c"], "n": 2)", "n", "invalid_value", "3 prompts times 2"},
          {R"("prompt": "", "add_special_tokens": false)", "prompt", "invalid_value", "one token"},
          {R"("prompt": ")" + std::string(99, 'a') + '"', "prompt", "context_length_exceeded",
           "100 tokens, which the prompt of 100 leaves no room"},
      });
}

// As text_offset counts.
TEST_F(Requests, EchoedTextIsThatOfTheIds) {
  tokenizer_ = tokenizer_with_marks();
  const CompletionRequest request =
      completion(R"({"prompt": ["a<|eot_id|>b", "<|im_start|>"], "echo": true, "max_tokens": 1})");
  EXPECT_EQ(request.prompts, (std::vector<TokenIds>{{kBos, 'a', kEot, 'b'}, {kBos, kImStart}}));
  EXPECT_EQ(request.echoed, (std::vector<std::string>{"ab", ""}));
}

TEST_F(Requests, TextsThatCannotFitAreNotTokenised) {
  EXPECT_EQ(longest_token(*tokenizer_), 1);
  EXPECT_EQ(longest_token(*tokenizer_with_marks()), 64);
  longest_token_ = 3;
  const auto text = [](std::size_t bytes) { return '"' + std::string(bytes, 'a') + '"'; };
  const auto parse = [&](const std::string& fields) { completion(R"({"prompt": )" + fields + "}"); };
  expect_refused(parse,
                 {{text(303), "prompt", "context_length_exceeded", "303 bytes are at least 101"},
                  {text(302), "prompt", "context_length_exceeded", "the prompt of 303"},
                  {concat("[\"a\", ", text(303), "]"), "prompt[1]", "context_length_exceeded", "303 bytes"}});
  const auto parse_message = [&](const std::string& content) {
    chat(R"({"messages": [{"role": "user", "content": )" + content + "}]}");
  };
  expect_refused(parse_message, {{text(303), "messages", "context_length_exceeded", "303 bytes"}});
}

TEST_F(Requests, AbsentMaxTokensIsCutToWhatFits) {
  const auto texts = texts_of(completion(R"({"prompt": [")" + std::string(90, 'a') + R"(", "a"]})"));
  EXPECT_EQ(texts[0].max_tokens, 9);
  EXPECT_EQ(texts[1].max_tokens, 16);
  EXPECT_EQ(texts_of(chat_with(R"("n": 1)"))[0].max_tokens +
                static_cast<std::int64_t>(chat_with(R"("n": 1)").prompts[0].size()),
            100);
  // A prompt that fills the context can be read.
  const std::string full(99, 'a');
  EXPECT_EQ(
      texts_of(completion(R"({"prompt": ")" + full + R"(", "echo": true, "max_tokens": 0})"))[0].max_tokens,
      0);
}

TEST_F(Requests, BadBodies) {
  const auto parse = [&](const std::string& body) { completion(body); };
  expect_refused(parse,
                 {
                     {"", "", "invalid_json", "a JSON object, got nothing"},
                     {"[]", "", "invalid_json", "a JSON object, got a list"},
                     {"{\"prompt\": \"a\"", "", "invalid_json",
                      "request body: expected JSON, got parse error at line 1"},
                     {"{\"prompt\": \"\xff\"}", "", "invalid_json", "UTF-8, got other bytes at offset 12"},
                     {R"({"prompt": "a", "prompt": "b"})", "", "invalid_json", "a second \"prompt\""},
                     {R"({"prompt": "\ud800"})", "", "invalid_json", "request body"},
                     {R"({"prompt": "a"} x)", "", "invalid_json", "request body"},
                     {R"({"prompt": "a", "temperature": 1e999})", "", "invalid_json",
                      "numbers up to 1.8e308, got 1e999"},
                     {R"({"prompt": "a", "temperature": NaN})", "", "invalid_json", "request body"},
                 });
  options_.json.depth = 3;
  expect_refused(parse, {{R"({"prompt": "a", "x": [[[]]]})", "", "invalid_json", "at most 3 levels"}});
  EXPECT_NO_THROW(
      completion(R"({"prompt": "[[[[{{\"", "x": [[]], "y": [[]]})"));  // brackets in a text are none
  options_.json.depth = 64;
  EXPECT_THROW(completion(std::string(100000, '[')), RequestError);
}

// Before they take thirty times the memory of the body.
TEST_F(Requests, ValuesOfABodyAreCounted) {
  const auto parse = [&](const std::string& body) { return completion(body); };
  options_.json.values = 8;
  // Seven numbers and what is like them, two lists and the object.
  const std::string ten = R"({"x": [1, 2, 3, true, null], "prompt": [1, 2)";
  expect_refused(parse, {{ten + "]}", "", "invalid_json", "at most 8 values"}});
  options_.json.values = 10;
  EXPECT_EQ(parse(ten + "]}").prompts[0].size(), 2U);
  options_.json = {.nodes = 6};
  EXPECT_NO_THROW(parse(R"({"prompt": "a, \"b\", [c], {d}", "x": [[]]})"));
  expect_refused(parse, {{R"({"prompt": "a", "x": [[], []]})", "", "invalid_json", "at most 6 strings"},
                         {R"({"prompt": "a", "x": [{}, {}]})", "", "invalid_json", "at most 6 strings"},
                         {R"({"prompt": "a", "x": ["", ""]})", "", "invalid_json", "at most 6 strings"}});
  // Half a million tokens pass, as many lists do not.
  options_.json = {};
  std::string ids = "1", lists = "[]";
  for (int i = 0; i < 500'000; ++i) {
    ids += ",1";
    lists += ",[]";
  }
  expect_refused(parse,
                 {{R"({"prompt": [)" + ids + "]}", "prompt", "context_length_exceeded", "maximum context"},
                  {R"({"prompt": "a", "x": [)" + lists + "]}", "", "invalid_json", "lists and objects"}});
}

TEST_F(Requests, ChatsAreRead) {
  const CompletionRequest request = chat(
      R"({"messages": [{"role": "developer", "content": "Be brief."},
                       {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": "c", "tool_calls": []}, {"role": "user", "content": "d"}],
          "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 4, "stop": "z", "tools": [],
          "tool_choice": "none"})");
  EXPECT_TRUE(request.chat);
  std::string text;
  for (const std::int64_t id : request.prompts.at(0))
    text += tokenizer_->bytes_of(static_cast<std::int32_t>(id));
  EXPECT_EQ(text, "Be brief.\n\nUser: ab\nAssistant: c\nUser: d\nAssistant:");
  EXPECT_EQ(request.prompts[0].front(), 256);
  EXPECT_EQ(request.text.sampling.logprobs, 2);
  EXPECT_EQ(request.text.stops, (std::vector<std::string>{"z", "\nUser:"}));
  EXPECT_EQ(texts_of(request)[0].max_tokens, 4);
  EXPECT_EQ(chat_with(R"("logprobs": true)").text.sampling.logprobs, 0);
  EXPECT_FALSE(chat_with(R"("logprobs": false)").wants_logprobs());
  // What changes nothing is taken.
  chat_with(R"("tool_choice": "auto")");
  chat_with(R"("tools": [], "tool_choice": "auto")");
  chat_with(R"("tools": [{}], "tool_choice": "none")");
  EXPECT_FALSE(chat_with(R"("top_logprobs": 0)").wants_logprobs());
  EXPECT_FALSE(chat_with(R"("stream_options": {"include_usage": false})").stream);
  EXPECT_EQ(chat_with(R"("max_tokens": 5.0)").max_tokens, 5);
}

TEST_F(Requests, BadChats) {
  expect_refused(
      [&](const std::string& fields) { chat_with(fields); },
      {
          {R"("logprobs": 1)", "logprobs", "invalid_type", "true or false, got 1"},
          {R"("top_logprobs": 1)", "top_logprobs", "invalid_value", "only with logprobs"},
          {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs", "invalid_value", "got 21"},
          {R"("tools": [{"type": "function"}])", "tools", "unsupported_parameter", "calls no tools"},
          {R"("tool_choice": "required")", "tool_choice", "unsupported_parameter", "calls no tools"},
          {R"("tools": [{}], "tool_choice": "auto")", "tools", "unsupported_parameter", "calls no tools"},
          {R"("functions": [{}])", "functions", "unsupported_parameter", "calls no functions"},
          {R"("max_tokens": 0)", "max_tokens", "invalid_value", "at least 1, got 0"},
          {R"("max_tokens": 99)", "messages", "context_length_exceeded", "99 of max_tokens"},
          {R"("add_special_tokens": true)", "add_special_tokens", "unsupported_parameter", "template"},
          {R"("echo": true)", "echo", "unsupported_parameter", "completions"},
      });
  const std::string content = "messages[0].content";
  expect_refused(
      [&](const std::string& message) { chat(R"({"messages": [)" + message + "]}"); },
      {
          {"", "messages", "invalid_value", "at least one message"},
          {"5", "messages[0]", "invalid_type", "an object, got 5"},
          {R"({"content": "a"})", "messages[0].role", "missing_required_parameter", "got nothing"},
          {R"({"role": "tool", "content": "a"})", "messages[0].role", "unsupported_parameter", "no \"tool\""},
          {R"({"role": "king", "content": "a"})", "messages[0].role", "invalid_value", "got \"king\""},
          {R"({"role": "user"})", content, "missing_required_parameter", "a string or a list"},
          {R"({"role": "user", "content": null})", content, "missing_required_parameter",
           "a string or a list"},
          {R"({"role": "user", "content": 5})", content, "invalid_type", "got 5"},
          {R"({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})", content + "[0].type",
           "invalid_value", "expected \"text\", got \"image_url\""},
          {R"({"role": "user", "content": [{"type": "text"}]})", content + "[0].text",
           "missing_required_parameter", "a string"},
          {R"({"role": "user", "content": ["a"]})", content + "[0]", "invalid_type", "an object"},
          {R"({"role": "assistant", "content": "a", "tool_calls": [{}]})", "messages[0].tool_calls",
           "unsupported_parameter", "calls no tools"},
      });
  expect_refused([&](const std::string& fields) { chat("{" + fields + "}"); },
                 {{"", "messages", "missing_required_parameter", "a list of messages"},
                  {R"("messages": "hi")", "messages", "invalid_type", "a list of messages"}});
}

}  // namespace
}  // namespace gsa::serve
