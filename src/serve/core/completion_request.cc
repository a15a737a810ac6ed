#include "serve/core/completion_request.h"

#include <algorithm>
#include <limits>
#include <random>

#include "infer/core/text_stream.h"

namespace gsa::serve {
namespace {

constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMinInteger = std::numeric_limits<std::int64_t>::min();

std::uint64_t random_seed() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

// What OpenAI's API or vLLM's has and this server does not: a request that depends on it must not be answered as if it
// did not. Values that say what happens anyway are harmless.
void refuse_unsupported(const Fields& fields) {
  const Json none = Json::array(), nothing = Json::object();
  const char* penalty = "use repetition_penalty";
  fields.refuse_unless("frequency_penalty", {0}, penalty);
  fields.refuse_unless("presence_penalty", {0}, penalty);
  fields.refuse_unless("logit_bias", {nothing}, "leave it out");
  fields.refuse_unless("suffix", {""}, "the model only continues texts");
  // No tool is called where there is none, or where none is wanted.
  const Json* tools = fields.find("tools");
  const Json* choice = fields.find("tool_choice");
  const bool wanted = tools != nullptr && *tools != none;
  if (choice == nullptr || *choice != "none")
    fields.refuse_unless("tools", {none}, "the server calls no tools");
  if (wanted || choice == nullptr || *choice != "auto") {
    fields.refuse_unless("tool_choice", {"none"}, "the server calls no tools");
  }
  fields.refuse_unless("functions", {none}, "the server calls no functions");
  fields.refuse_unless("function_call", {"none"}, "the server calls no functions");
  fields.refuse_unless("modalities", {Json::array({"text"})}, "answers are text");
  fields.refuse_unless("audio", {}, "answers are text");
  fields.refuse_unless("use_beam_search", {false}, "texts are sampled");
  fields.refuse_unless("min_tokens", {0}, "use ignore_eos with max_tokens");
  fields.refuse_unless("stop_token_ids", {none}, "use stop");
  fields.refuse_unless("bad_words", {none}, "leave it out");
  fields.refuse_unless("allowed_token_ids", {}, "leave it out");
  fields.refuse_unless("logits_processors", {none}, "leave it out");
  fields.refuse_unless("length_penalty", {1}, "texts are sampled");
  fields.refuse_unless("chat_template_kwargs", {nothing}, "the server's templates take none");
  fields.refuse_unless("include_stop_str_in_output", {false}, "texts end before a stop string");
  fields.refuse_unless("skip_special_tokens", {true}, "special tokens give no text");
  fields.refuse_unless("prompt_logprobs", {}, "use echo with logprobs");
  fields.refuse_unless("truncate_prompt_tokens", {}, "send a prompt that fits");
  for (const char* guided :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"})
    fields.refuse_unless(guided, {}, "answers are free text");
  if (const Json* format = fields.find("response_format")) {
    const Fields inner(*format, fields.path("response_format"));
    if (inner.string("type") != "text") not_supported("response_format", R"(only {"type": "text"} is)");
  }
}

std::vector<std::string> parse_stops(const Fields& fields, const ApiOptions& options) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array()) bad_type("stop", "a string or a list of strings", kind_of(list));
  if (static_cast<std::int64_t>(list.size()) > options.max_stops)
    bad_value("stop", concat("at most ", options.max_stops, " strings"), concat(list.size()));
  std::vector<std::string> stops;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string param = value->is_string() ? "stop" : concat("stop[", i, "]");
    if (!list[i].is_string()) bad_type(param, "a string", kind_of(list[i]));
    stops.push_back(list[i].get<std::string>());
    if (stops.back().empty()) bad_value(param, "a string that is not empty", "an empty one");
    if (static_cast<std::int64_t>(stops.back().size()) > options.max_stop_bytes)
      bad_value(param, concat("at most ", options.max_stop_bytes, " bytes"), concat(stops.back().size()));
  }
  return stops;
}

infer::SamplingOptions parse_sampling(const Fields& fields) {
  infer::SamplingOptions sampling;
  sampling.temperature = fields.number("temperature", 0, 2).value_or(1);
  sampling.top_p = fields.number("top_p", 0, 1, /*above=*/true).value_or(1);
  sampling.top_k = std::max<std::int64_t>(0, fields.integer("top_k", -1, kMaxInteger).value_or(0));
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0, 10, /*above=*/true).value_or(1);
  const auto seed = fields.integer("seed", kMinInteger, kMaxInteger);
  sampling.seed = seed ? static_cast<std::uint64_t>(*seed) : random_seed();
  return sampling;
}

std::optional<std::int64_t> parse_max_tokens(const Fields& fields, std::int64_t least) {
  const auto old_name = fields.integer("max_tokens", least, kMaxInteger);
  const auto new_name = fields.integer("max_completion_tokens", least, kMaxInteger);
  if (old_name && new_name && *old_name != *new_name) {
    bad_value("max_completion_tokens", concat("what max_tokens says, ", *old_name), concat(*new_name));
  }
  return new_name ? new_name : old_name;
}

// What completions and chats have in common.
CompletionRequest parse_common(const Fields& fields, const RequestContext& context, bool chat) {
  check_model(fields, context.options);
  refuse_unsupported(fields);
  CompletionRequest request;
  request.chat = chat;
  request.max_length = context.max_length;
  request.default_max_tokens = chat ? context.max_length : context.options.default_max_tokens;
  request.n = fields.integer("n", 1, std::min(context.options.max_n, context.options.max_texts)).value_or(1);
  if (const auto best_of = fields.integer("best_of", 1, kMaxInteger); best_of && *best_of != request.n)
    not_supported("best_of", "only the value of n is");
  request.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.find("stream_options")) {
    request.include_usage = Fields(*options, "stream_options").boolean("include_usage").value_or(false);
    if (!request.stream && request.include_usage)
      bad_value("stream_options", "it only with stream", "it without");
  }
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  request.text.sampling = parse_sampling(fields);
  request.text.stops = parse_stops(fields, context.options);
  request.text.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  return request;
}

void check_lengths(const CompletionRequest& request, const char* param) {
  for (const auto& prompt : request.prompts) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t wanted = request.max_tokens.value_or(1);
    if (length <= request.max_length && wanted <= request.max_length - length) continue;
    const std::string message =
        request.max_tokens
            ? concat("This model's maximum context length is ", request.max_length, " tokens, but ", length,
                     " of the prompt and ", wanted, " of max_tokens were asked for")
            : concat("This model's maximum context length is ", request.max_length,
                     " tokens, which the prompt of ", length, " leaves no room to continue");
    throw RequestError(400, message, param, "context_length_exceeded");
  }
}

// Before anything is tokenised.
void check_bytes(std::size_t bytes, const std::string& param, const RequestContext& context) {
  if (context.longest_token == 0) return;
  const std::int64_t least = static_cast<std::int64_t>(bytes) / context.longest_token;
  if (least <= context.max_length) return;
  throw RequestError(400,
                     concat("This model's maximum context length is ", context.max_length, " tokens, but ",
                            bytes, " bytes are at least ", least),
                     param, "context_length_exceeded");
}

// Log-probabilities of echoed prompts are kept and written before the first token: that many of them at most.
void check_echo(const CompletionRequest& request, const ApiOptions& options) {
  if (!request.text.prompt_logprobs) return;
  std::int64_t tokens = 0;
  for (const auto& prompt : request.prompts) tokens += static_cast<std::int64_t>(prompt.size());
  const std::int64_t each = *request.text.sampling.logprobs + 1;
  if (tokens * request.n * each <= options.max_echoed_logprobs) return;
  bad_value("logprobs",
            concat("at most ", options.max_echoed_logprobs, " numbers with echo (tokens of prompts * n * ",
                   "(logprobs + 1))"),
            concat(tokens, " * ", request.n, " * ", each));
}

void parse_prompts(const Json& value, const Fields& fields, const RequestContext& context,
                   CompletionRequest& request) {
  const bool special_tokens = fields.boolean("add_special_tokens").value_or(true);
  const char* kinds = "a string, a list of strings, a list of token ids, or a list of such lists";
  const auto add = [&](const Json& one, const std::string& param) {
    if (one.is_string()) {
      const auto& text = one.get_ref<const std::string&>();
      check_bytes(text.size(), param, context);
      request.prompts.push_back(ids_of_text(text, special_tokens, context.tokenizer));
    } else {
      if (!one.is_array()) bad_type(param, kinds, kind_of(one));
      request.prompts.push_back(parse_ids(one, param, context));
    }
    if (!request.echo) return;
    // By the ids, as text_offset counts: special tokens give no text, and a tokenizer may have changed the rest.
    infer::TextStream stream(context.tokenizer, {}, /*at_start=*/true);
    std::string text;
    for (const std::int64_t id : request.prompts.back()) text += stream.push(static_cast<std::int32_t>(id));
    request.echoed.push_back(text + stream.finish());
  };
  const bool several = value.is_array() && !value.empty() && !value.front().is_number();
  if (!several) return add(value, "prompt");
  const auto count = static_cast<std::int64_t>(value.size());
  if (count > context.options.max_prompts)
    bad_value("prompt", concat("at most ", context.options.max_prompts, " prompts"), concat(count));
  if (count * request.n > context.options.max_texts) {
    bad_value("n", concat("at most ", context.options.max_texts, " texts in all"),
              concat(count, " prompts times ", request.n));
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string param = concat("prompt[", i, "]");
    if (value[i].is_string() != value.front().is_string())
      bad_type(param, "a prompt of the same kind as the first", kind_of(value[i]));
    add(value[i], param);
  }
}

std::string parse_content(const Fields& message, ChatRole role) {
  const char* expected = "a string or a list of text parts";
  if (role == ChatRole::assistant && message.find("content") == nullptr)
    return "";  // null: it had nothing to say
  const Json& content = message.required("content", expected);
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) bad_type(message.path("content"), expected, kind_of(content));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Fields part(content[i], concat(message.path("content"), "[", i, "]"));
    const Json& type = part.required("type", "\"text\"");
    if (type != "text") bad_value(part.path("type"), "\"text\"", shown(type));
    part.required("text", "a string");
    text += *part.string("text");
  }
  return text;
}

ChatRole parse_role(const Fields& message) {
  const char* expected = "\"system\", \"developer\", \"user\" or \"assistant\"";
  message.required("role", expected);
  const std::string role = *message.string("role");
  if (role == "system" || role == "developer") return ChatRole::system;
  if (role == "user") return ChatRole::user;
  if (role == "assistant") return ChatRole::assistant;
  if (role == "tool" || role == "function")
    not_supported(message.path("role"), concat("the server calls no tools, so there is no \"", role, "\""));
  bad_value(message.path("role"), expected, shown(Json(role)));
}

}  // namespace

void check_model(const Fields& fields, const ApiOptions& options) {
  const auto model = fields.string("model");
  if (!model || *model == options.model) return;
  throw RequestError(404,
                     concat("The model `", *model, "` does not exist; this server has `", options.model, "`"),
                     "model", "model_not_found");
}

std::vector<std::int64_t> parse_ids(const Json& list, const std::string& param,
                                    const RequestContext& context) {
  if (!list.is_array()) bad_type(param, "a list of token ids", kind_of(list));
  if (list.empty()) bad_value(param, "at least one token id", "an empty list");
  const std::int64_t last = std::min(context.vocab_size, context.tokenizer.vocab_size()) - 1;
  std::vector<std::int64_t> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& id = list[i];
    // The name is made only where it is needed: lists are long.
    if (id.is_number_unsigned() && id.get<std::uint64_t>() <= static_cast<std::uint64_t>(last)) {
      ids.push_back(id.get<std::int64_t>());
    } else {
      ids.push_back(integer_of(id, concat(param, "[", i, "]"), 0, last));
    }
  }
  return ids;
}

std::int64_t longest_token(const data::Tokenizer& tokenizer) {
  // No text gives a mark of bytes. Other tokenizers have special tokens, whose texts bytes_of() does not tell: 64 bytes
  // are more than any of those in use.
  std::size_t longest = tokenizer.kind() == "bytes" ? 1 : 64;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.bytes_of(id).size());
  return static_cast<std::int64_t>(longest);
}

std::vector<std::int64_t> ids_of_text(const std::string& text, bool special_tokens,
                                      const data::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  if (special_tokens) {
    ids = data::prompt_ids(tokenizer, text);
  } else {
    tokenizer.encode(text, ids);
  }
  return {ids.begin(), ids.end()};
}

std::vector<ChatMessage> parse_messages(const Fields& fields) {
  const Json& list = fields.required("messages", "a list of messages");
  if (!list.is_array()) bad_type("messages", "a list of messages", kind_of(list));
  if (list.empty()) bad_value("messages", "at least one message", "an empty list");
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Fields message(list[i], concat("messages[", i, "]"));
    const ChatRole role = parse_role(message);
    message.refuse_unless("tool_calls", {Json::array()}, "the server calls no tools");
    message.refuse_unless("function_call", {}, "the server calls no functions");
    messages.push_back({role, parse_content(message, role), message.path("content")});
  }
  return messages;
}

std::size_t bytes_of_messages(const std::vector<ChatMessage>& messages) {
  std::size_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.content.size();
  return bytes;
}

CompletionRequest parse_completion(std::string_view body, const RequestContext& context) {
  const Json json = parse_body(body, context.options.json);
  const Fields fields(json);
  CompletionRequest request = parse_common(fields, context, /*chat=*/false);
  request.echo = fields.boolean("echo").value_or(false);
  const Json* logprobs = fields.find("logprobs");
  if (logprobs != nullptr && *logprobs == true) {
    bad_type("logprobs",
             concat("an integer from 0 to ", context.options.max_logprobs, " (chats have booleans)"),
             kind_of(*logprobs));
  }
  if (logprobs != nullptr && *logprobs != false) {
    request.text.sampling.logprobs = fields.integer("logprobs", 0, context.options.max_logprobs);
  }
  request.text.prompt_logprobs = request.echo && request.wants_logprobs();
  request.max_tokens = parse_max_tokens(fields, 0);
  if (request.max_tokens == 0 && !request.echo) bad_value("max_tokens", "at least 1 (0 only with echo)", "0");
  parse_prompts(fields.required("prompt", "a text or token ids"), fields, context, request);
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    // Only add_special_tokens = false leaves nothing of an empty text.
    if (request.prompts[i].empty()) bad_value("prompt", "at least one token", "none");
  }
  check_lengths(request, "prompt");
  check_echo(request, context.options);
  return request;
}

CompletionRequest parse_chat(std::string_view body, const RequestContext& context) {
  const Json json = parse_body(body, context.options.json);
  const Fields fields(json);
  CompletionRequest request = parse_common(fields, context, /*chat=*/true);
  fields.refuse_unless("echo", {false}, "completions have it");
  fields.refuse_unless("add_special_tokens", {false}, "the chat template brings its own");
  fields.refuse_unless("add_generation_prompt", {true}, "the assistant's answer is what is written");
  fields.refuse_unless("continue_final_message", {false}, "the assistant's answer is what is written");
  fields.refuse_unless("chat_template", {}, "the server's is used");
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, context.options.max_logprobs);
  if (top.value_or(0) > 0 && !logprobs)
    bad_value("top_logprobs", "it only with logprobs: true", "it without");
  if (logprobs) request.text.sampling.logprobs = top.value_or(0);
  request.max_tokens = parse_max_tokens(fields, 1);
  const std::vector<ChatMessage> messages = parse_messages(fields);
  check_bytes(bytes_of_messages(messages), "messages", context);
  ChatPrompt prompt = chat_prompt(context.options.chat, messages, context.tokenizer);
  request.prompts.emplace_back(prompt.ids.begin(), prompt.ids.end());
  if (!request.text.ignore_eos) {
    request.text.stop_tokens.assign(prompt.stop_tokens.begin(), prompt.stop_tokens.end());
    request.text.stops.insert(request.text.stops.end(), prompt.stops.begin(), prompt.stops.end());
  }
  check_lengths(request, "messages");
  return request;
}

std::vector<TextRequest> texts_of(const CompletionRequest& request) {
  std::vector<TextRequest> texts;
  for (const auto& prompt : request.prompts) {
    const SharedTokens shared = prompt;
    const std::int64_t room = request.max_length - static_cast<std::int64_t>(prompt.size());
    for (std::int64_t i = 0; i < request.n; ++i) {
      TextRequest text = request.text;
      text.prompt_logprobs =
          request.text.prompt_logprobs && i == 0;  // those of the other samples are the same
      text.prompt = shared;
      text.max_tokens = request.max_tokens.value_or(std::min(request.default_max_tokens, room));
      text.sampling.stream = static_cast<std::uint64_t>(i);
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

}  // namespace gsa::serve
