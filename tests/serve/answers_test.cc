// Answers against JSON written by hand.
#include <gtest/gtest.h>

#include "data/testing.h"
#include "serve/core/completion_answer.h"

namespace gsa::serve {
namespace {

class Answers : public ::testing::Test {
 protected:
  static infer::SampledToken sampled(std::int32_t id, double logprob,
                                     std::vector<infer::TokenLogprob> top = {}) {
    return {.id = id, .logprob = logprob, .top = std::move(top)};
  }

  std::unique_ptr<data::Tokenizer> tokenizer_ = data::byte_tokenizer();
  AnswerHead head_{.chat = false, .id = "cmpl-1", .created = 7, .model = "tiny"};
};

TEST_F(Answers, Heads) {
  const AnswerHead one = new_head(false, "m"), other = new_head(true, "m");
  EXPECT_TRUE(one.id.starts_with("cmpl-"));
  EXPECT_TRUE(other.id.starts_with("chatcmpl-"));
  EXPECT_NE(one.id, new_head(false, "m").id);
  EXPECT_GT(one.created, 1700000000);
}

TEST_F(Answers, Completion) {
  EXPECT_EQ(
      answer_text(head_, {text_of(choice_json(false, 0, "hi", nullptr, Finish::stop))},
                  {.prompt_tokens = 3, .cached_tokens = 2, .completion_tokens = 4}),
      R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"tiny","system_fingerprint":null,)"
      R"("choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"stop"}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
      R"("prompt_tokens_details":{"cached_tokens":2}}})");
}

TEST_F(Answers, Chat) {
  head_.chat = true;
  const Json json =
      Json::parse(answer_text(head_, {text_of(choice_json(true, 1, "hi", nullptr, Finish::length))}, {}));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"], Json::parse(R"([{"index": 1, "finish_reason": "length", "logprobs": null,
      "message": {"role": "assistant", "content": "hi", "refusal": null}}])"));
}

TEST_F(Answers, Chunks) {
  head_.chat = true;
  const auto choice = [] { return delta_json(0, {{"content", "a"}}, nullptr, std::nullopt); };
  EXPECT_EQ(
      chunk_event(chunk_beginning(head_), choice(), std::nullopt),
      "data: "
      R"({"id":"cmpl-1","object":"chat.completion.chunk","created":7,"model":"tiny","system_fingerprint":null,)"
      R"("choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]})"
      "\n\n");
  EXPECT_NE(chunk_event(chunk_beginning(head_), choice(), OrderedJson()).find(R"(,"usage":null})"),
            std::string::npos);
  const std::string last = chunk_event(chunk_beginning(head_), std::nullopt, usage_json({}));
  EXPECT_NE(last.find(R"("choices":[],"usage":{"prompt_tokens":0,)"), std::string::npos);
}

TEST_F(Answers, CompletionLogprobs) {
  LogprobList list(*tokenizer_, false, false);
  list.prompt(std::vector<std::int64_t>{256, 'a', 0xC3, 0xA9},
              {sampled('a', -1, {{'b', -0.5}}), sampled(0xC3, -2, {{0xC3, -2}}), sampled(0xA9, -3)});
  EXPECT_FALSE(list.empty());
  const Json prompt = Json::parse(text_of(list.take()));
  // A mark has no text, and half a character comes with its bytes. Offsets are characters.
  EXPECT_EQ(prompt, Json::parse(R"({"tokens": ["token_id:256", "a", "bytes:\\xc3", "bytes:\\xa9"],
      "token_logprobs": [null, -1.0, -2.0, -3.0],
      "top_logprobs": [null, {"b": -0.5, "a": -1.0}, {"bytes:\\xc3": -2.0}, {"bytes:\\xa9": -3.0}],
      "text_offset": [0, 0, 1, 1]})"));
  EXPECT_TRUE(list.empty());
  list.token(sampled('x', -4));
  list.token(sampled('y', -5));
  EXPECT_EQ(Json::parse(text_of(list.take())),
            Json::parse(R"({"tokens": ["x", "y"], "token_logprobs": [-4.0, -5.0],
                            "top_logprobs": [{"x": -4.0}, {"y": -5.0}], "text_offset": [2, 3]})"));
}

// A tokenizer that puts a space before a text, which is not part of it: offsets are those of the text.
TEST_F(Answers, OffsetsOfATextThatBegins) {
  const Json vocabulary = {{"<s>", 0}, {"▁", 1}, {"a", 2}, {"▁a", 3}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const Json spaces = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const Json json = {
      {"added_tokens",
       Json::array({{{"id", 0}, {"content", "<s>"}, {"special", true}, {"normalized", false}}})},
      {"decoder", {{"type", "Sequence"}, {"decoders", Json::array({spaces, Json{{"type", "Fuse"}}, strip})}}},
      {"model",
       {{"type", "BPE"}, {"unk_token", "<s>"}, {"vocab", vocabulary}, {"merges", Json::array({"▁ a"})}}}};
  const gsa::testing::TemporaryFolder folder;
  gsa::testing::write_text(folder / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "<s>"})");
  const auto tokenizer = data::json_tokenizer(json.dump(), folder.path(), "test");
  for (const bool at_start : {true, false}) {
    LogprobList list(*tokenizer, false, at_start);
    list.token(sampled(3, -1));
    list.token(sampled(3, -1));
    list.token(sampled(2, -1));
    const Json offsets = Json::parse(text_of(list.take()))["text_offset"];
    EXPECT_EQ(offsets, at_start ? Json({0, 1, 3}) : Json({0, 2, 4}));
  }
}

TEST_F(Answers, ChatLogprobs) {
  LogprobList list(*tokenizer_, true, false);
  list.token(sampled('a', -1, {{'a', -1}, {0xC3, -2}}));
  list.token(sampled(257, -3));
  EXPECT_EQ(Json::parse(text_of(list.take())), Json::parse(R"({"content": [
      {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -1.0, "bytes": [97]}, {"token": "\ufffd", "logprob": -2.0, "bytes": [195]}]},
      {"token": "token_id:257", "logprob": -3.0, "bytes": [], "top_logprobs": []}]})"));
  EXPECT_EQ(Json::parse(text_of(list.take())), Json::parse(R"({"content": []})"));
}

TEST_F(Answers, Errors) {
  EXPECT_EQ(Json::parse(text_of(error_json(400, "no", "n", "invalid_value"))), Json::parse(R"({"error":
      {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}})"));
  EXPECT_EQ(error_json(500, "no")["error"]["type"], "server_error");
  EXPECT_EQ(error_json(429, "no")["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(error_json(500, "no")["error"]["param"].is_null());
  EXPECT_EQ(event_of({{"a", 1}}), "data: {\"a\":1}\n\n");
  EXPECT_EQ(text_of("\xFF"), "\"\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace gsa::serve
