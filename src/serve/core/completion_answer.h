// Answers to completions and chats as OpenAI's API has them: whole ones, and the chunks of a stream. No torch header.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "data/tokenizer.h"
#include "infer/core/sampling.h"
#include "infer/core/text_stream.h"
#include "serve/core/scheduler.h"

namespace gsa::serve {

// What every answer and chunk of a call begins with.
struct AnswerHead {
  bool chat = false;
  std::string id;            // "cmpl-...", "chatcmpl-..."
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
};

AnswerHead new_head(bool chat, const std::string& model);

// Log-probabilities of one choice's tokens, collected until they are taken.
//   completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, offsets in characters of the choice's
//                text. A token that is no whole character is "bytes:\xe2\x96", as OpenAI writes it; a mark, which has
//                no text, is "token_id:257", as vLLM writes ids.
//   chats:       {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}
class LogprobList {
 public:
  // at_start: the choice's own text begins one, as TextStream has it.
  LogprobList(const data::Tokenizer& tokenizer, bool chat, bool at_start);

  // An echoed prompt, before any token. logprobs: of tokens 1, 2, ...; the first has none.
  void prompt(std::span<const std::int64_t> ids, const std::vector<infer::SampledToken>& logprobs);
  void token(const infer::SampledToken& token);

  bool empty() const { return count_ == 0; }
  OrderedJson take();

 private:
  void add_completion(const infer::SampledToken& token, const std::string& text);
  std::string name_of(std::int32_t id) const;
  OrderedJson chat_entry(std::int32_t id, double logprob) const;
  void clear();

  const data::Tokenizer& tokenizer_;
  bool chat_;
  infer::TextStream text_;  // of the tokens that were written
  std::int64_t offset_ = 0, count_ = 0;
  OrderedJson list_;
};

// One choice of a whole answer. logprobs: null where none were asked for.
OrderedJson choice_json(bool chat, std::size_t index, const std::string& text, OrderedJson logprobs,
                        std::optional<Finish> finish);
// One of a chat's stream.
OrderedJson delta_json(std::size_t index, OrderedJson delta, OrderedJson logprobs,
                       std::optional<Finish> finish);

OrderedJson usage_json(const TextUsage& usage);

// A whole answer. choices: the JSON of each. prompt_ids: of a chat, where they were asked for.
std::string answer_text(const AnswerHead& head, const std::vector<std::string>& choices,
                        const TextUsage& usage, const OrderedJson& prompt_ids = nullptr);

// A chunk of a stream, of one choice or of none. beginning: chunk_beginning() of the call, made once, because the
// compute thread writes chunks. usage: absent unless the client asked for it (null in all but the last).
std::string chunk_beginning(const AnswerHead& head);
std::string chunk_event(const std::string& beginning, const std::optional<OrderedJson>& choice,
                        const std::optional<OrderedJson>& usage, const OrderedJson& prompt_ids = nullptr);

// {"error": {"message", "type", "param", "code"}}; empty: null.
OrderedJson error_json(int status, const std::string& message, const std::string& param = "",
                       const std::string& code = "");
// "data: ...\n\n".
std::string event_of(const OrderedJson& json);
// JSON as text; bytes that are no UTF-8 become U+FFFD.
std::string text_of(const OrderedJson& json);

}  // namespace gsa::serve
