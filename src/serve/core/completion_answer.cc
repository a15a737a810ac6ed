#include "serve/core/completion_answer.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "core/utf8.h"

namespace gsa::serve {
namespace {

constexpr char kHex[] = "0123456789abcdef";

std::string random_name() {
  std::random_device device;
  std::string name;
  for (int word = 0; word < 3; ++word) {
    for (std::uint32_t rest = device(), i = 0; i < 8; ++i, rest >>= 4) name += kHex[rest & 15];
  }
  return name;
}

std::int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

OrderedJson finish_json(std::optional<Finish> finish) {
  if (!finish) return nullptr;
  return *finish == Finish::stop ? "stop" : "length";
}

OrderedJson null_or(const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); }

// Up to the list of choices, which stays open.
std::string open_head(const AnswerHead& head, const char* object) {
  std::string text = text_of({{"id", head.id},
                              {"object", object},
                              {"created", head.created},
                              {"model", head.model},
                              {"system_fingerprint", nullptr},
                              {"choices", OrderedJson::array()}});
  text.resize(text.size() - 2);
  return text;
}

std::string prompt_ids_member(const OrderedJson& ids) {
  return ids.is_null() ? "" : ",\"prompt_token_ids\":" + text_of(ids);
}

}  // namespace

AnswerHead new_head(bool chat, const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.chat = chat,
          .id = (chat ? "chatcmpl-" : "cmpl-") + random_name(),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model};
}

LogprobList::LogprobList(const data::Tokenizer& tokenizer, bool chat, bool at_start)
    : tokenizer_(tokenizer), chat_(chat), text_(tokenizer, {}, at_start) {
  clear();
}

void LogprobList::clear() {
  count_ = 0;
  const OrderedJson none = OrderedJson::array();
  if (chat_) {
    list_ = {{"content", none}};
  } else {
    list_ = {{"tokens", none}, {"token_logprobs", none}, {"top_logprobs", none}, {"text_offset", none}};
  }
}

OrderedJson LogprobList::take() {
  OrderedJson taken = std::move(list_);
  clear();
  return taken;
}

std::string LogprobList::name_of(std::int32_t id) const {
  std::string bytes = tokenizer_.bytes_of(id);
  if (bytes.empty()) return concat("token_id:", id);
  if (valid_utf8(bytes) == bytes.size()) return bytes;
  if (chat_) {  // whose entries have the bytes beside it
    infer::Utf8Stream stream;
    std::string text = stream.push(bytes);
    return text + stream.finish();
  }
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return name;
}

OrderedJson LogprobList::chat_entry(std::int32_t id, double logprob) const {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : tokenizer_.bytes_of(id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", name_of(id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

void LogprobList::add_completion(const infer::SampledToken& token, const std::string& text) {
  list_["tokens"].push_back(name_of(token.id));
  list_["text_offset"].push_back(offset_);
  offset_ += characters_of(text);
  ++count_;
  if (!token.logprob) {
    list_["token_logprobs"].push_back(nullptr);
    list_["top_logprobs"].push_back(nullptr);
    return;
  }
  list_["token_logprobs"].push_back(*token.logprob);
  // The token itself is always there. Of tokens with the same text the more likely one stays.
  OrderedJson top = OrderedJson::object();
  for (const infer::TokenLogprob& other : token.top) top.emplace(name_of(other.id), other.logprob);
  top.emplace(name_of(token.id), *token.logprob);
  list_["top_logprobs"].push_back(std::move(top));
}

void LogprobList::prompt(std::span<const std::int64_t> ids,
                         const std::vector<infer::SampledToken>& logprobs) {
  // As parse_completion() makes the text that is echoed.
  infer::TextStream stream(tokenizer_, {}, /*at_start=*/true);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::int32_t>(ids[i]);
    infer::SampledToken token{.id = id, .logprob = {}, .top = {}};
    if (i > 0 && i <= logprobs.size()) token = logprobs[i - 1];
    add_completion(token, stream.push(id));
  }
  offset_ += characters_of(stream.finish());
}

void LogprobList::token(const infer::SampledToken& token) {
  if (!chat_) return add_completion(token, text_.push(token.id));
  OrderedJson entry = chat_entry(token.id, token.logprob.value_or(0));
  entry["top_logprobs"] = OrderedJson::array();
  for (const infer::TokenLogprob& other : token.top) {
    entry["top_logprobs"].push_back(chat_entry(other.id, other.logprob));
  }
  list_["content"].push_back(std::move(entry));
  ++count_;
}

OrderedJson choice_json(bool chat, std::size_t index, const std::string& text, OrderedJson logprobs,
                        std::optional<Finish> finish) {
  OrderedJson choice = {{"index", index}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = finish_json(finish);
  return choice;
}

OrderedJson delta_json(std::size_t index, OrderedJson delta, OrderedJson logprobs,
                       std::optional<Finish> finish) {
  return {{"index", index},
          {"delta", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_json(finish)}};
}

OrderedJson usage_json(const TextUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::string answer_text(const AnswerHead& head, const std::vector<std::string>& choices,
                        const TextUsage& usage, const OrderedJson& prompt_ids) {
  std::string text = open_head(head, head.chat ? "chat.completion" : "text_completion");
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += ',';
    text += choices[i];
  }
  return text + "],\"usage\":" + text_of(usage_json(usage)) + prompt_ids_member(prompt_ids) + "}";
}

std::string chunk_beginning(const AnswerHead& head) {
  return "data: " + open_head(head, head.chat ? "chat.completion.chunk" : "text_completion");
}

std::string chunk_event(const std::string& beginning, const std::optional<OrderedJson>& choice,
                        const std::optional<OrderedJson>& usage, const OrderedJson& prompt_ids) {
  std::string event = beginning;
  if (choice) event += text_of(*choice);
  event += ']';
  if (usage) event += ",\"usage\":" + text_of(*usage);
  return event + prompt_ids_member(prompt_ids) + "}\n\n";
}

OrderedJson error_json(int status, const std::string& message, const std::string& param,
                       const std::string& code) {
  const char* type = status == 429   ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return {
      {"error", {{"message", message}, {"type", type}, {"param", null_or(param)}, {"code", null_or(code)}}}};
}

std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string event_of(const OrderedJson& json) { return concat("data: ", text_of(json), "\n\n"); }

}  // namespace gsa::serve
