// The bodies of POST /v1/completions and /v1/chat/completions, read and checked. No torch header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "serve/core/api_options.h"
#include "serve/core/json_fields.h"
#include "serve/core/scheduler.h"

namespace gsa::serve {

// What a request is checked against.
struct RequestContext {
  const ApiOptions& options;
  const data::Tokenizer& tokenizer;
  std::int64_t max_length = 0;  // of prompt and text together
  std::int64_t vocab_size = 0;  // of the model
  // Bytes: longest_token() of the tokenizer. 0: texts of any length are tokenised.
  std::int64_t longest_token = 0;
};

struct CompletionRequest {
  bool chat = false;
  std::vector<std::vector<std::int64_t>> prompts;  // token ids
  std::vector<std::string> echoed;                 // text of each prompt, where echo asks for it
  std::int64_t n = 1;                              // texts for each
  std::optional<std::int64_t> max_tokens;          // absent: default_max_tokens, cut to what fits
  std::int64_t default_max_tokens = 0;
  std::int64_t max_length = 0;
  bool echo = false, stream = false, include_usage = false;
  bool return_token_ids = false;  // of prompts and texts, as vLLM has it
  TextRequest text;               // what all have in common

  bool wants_logprobs() const { return text.sampling.logprobs.has_value(); }
};

// They throw RequestError.
CompletionRequest parse_completion(std::string_view body, const RequestContext& context);
CompletionRequest parse_chat(std::string_view body, const RequestContext& context);

// The texts to be written: prompt after prompt, n of each. Sample i draws from stream i. Log-probabilities of a prompt
// are asked for with sample 0 alone.
std::vector<TextRequest> texts_of(const CompletionRequest& request);

// Pieces that other requests have too.
void check_model(const Fields& fields, const ApiOptions& options);
// A list of token ids that the model and its tokenizer have.
std::vector<std::int64_t> parse_ids(const Json& list, const std::string& param,
                                    const RequestContext& context);
// Bytes that a token stands for at most.
std::int64_t longest_token(const data::Tokenizer& tokenizer);
// The ids of a text; special_tokens: with what the tokenizer wants before it.
std::vector<std::int64_t> ids_of_text(const std::string& text, bool special_tokens,
                                      const data::Tokenizer& tokenizer);
std::vector<ChatMessage> parse_messages(const Fields& fields);
std::size_t bytes_of_messages(const std::vector<ChatMessage>& messages);

}  // namespace gsa::serve
