// One text on its way through the scheduler. No torch header.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "infer/core/text_stream.h"
#include "serve/core/scheduler.h"

namespace gsa::serve {

using Clock = std::chrono::steady_clock;

// A request to look instead of to write: reads what is before the token, then the token.
struct LookJob {
  std::int64_t token = 0;
  std::function<void(const infer::Look&)> done;
  std::function<void(const std::string&)> failed;
};

struct TextJob {
  TextId id = 0;  // in the order of arrival
  TextRequest request;
  std::shared_ptr<TextSink> sink;  // of a text
  std::optional<LookJob> look;

  // The prompt's and those drawn; until it is taken up first, the request has the prompt and here is none.
  std::vector<std::int64_t> tokens;
  std::int64_t prompt_length = 0;
  std::optional<Sequence> sequence;  // what has been read of them; absent while it waits
  std::optional<infer::Sampler> sampler;
  std::optional<infer::TextStream> stream;
  std::vector<infer::SampledToken> prompt_logprobs;  // of prompt tokens 1, 2, ... so far
  std::int64_t cached = 0;                           // prompt tokens that were found in the prefix cache
  bool taken_up = false;                             // it has run before
  TextId waits_for = 0;                              // a text that is reading what this one begins with,
  std::int64_t waits_until = 0;                      // so many tokens of it

  Clock::time_point arrived = Clock::now(), last_token = {};

  std::span<const std::int64_t> text() const { return tokens.empty() ? request.prompt.span() : tokens; }
  std::int64_t length() const { return static_cast<std::int64_t>(text().size()); }
  // It is read from now on: what waits must not hold a prompt of its own.
  void own_tokens() {
    if (!tokens.empty() || request.prompt.empty()) return;
    const auto prompt = request.prompt.span();
    tokens.assign(prompt.begin(), prompt.end());
    request.prompt = {};
  }
  std::int64_t drawn() const { return length() - prompt_length; }
  std::int64_t read() const { return sequence ? sequence->length() : 0; }
  bool wants_prompt_rows() const {
    return request.prompt_logprobs && drawn() == 0 &&
           static_cast<std::int64_t>(prompt_logprobs.size()) < prompt_length - 1;
  }
  bool was_read() const { return read() == length(); }
  // All but the last token, which the next step reads: it is written, not read any more.
  bool writes() const { return drawn() > 0 && read() + 1 == length(); }

  void fail(const std::string& message) {
    if (look) {
      look->failed(message);
    } else {
      sink->failed(message);
    }
  }
};

}  // namespace gsa::serve
