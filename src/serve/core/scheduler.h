// Continuous batching: requests come at any time, their prompts are read in chunks between the steps in which all
// running texts get their next token, and a text that has ended makes room for one that waits. No torch header.
//
//   Scheduler scheduler(model, tokenizer, options);
//   std::thread compute([&] { scheduler.run(); });
//   const TextId id = scheduler.submit({.prompt = ids, .max_tokens = 100}, sink);
//   ...
//   scheduler.stop(30s); compute.join();
//
// Memory is counted in pages: a request that can never fit is refused at once, one that does not fit now waits, and
// where running texts outgrow the cache, the one that came last gives up its pages and is read again later
// (pre-emption by recompute). Pages of prompts and of texts that have ended stay as long as nobody needs them: a
// request that begins with the same tokens takes them over (serve/core/prefix_cache.h). Who came first is served
// first; a quarter of what is read goes to short prompts behind a long one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"
#include "gsa/error.h"
#include "infer/core/sampling.h"
#include "serve/core/metrics.h"
#include "serve/core/model.h"

namespace gsa::serve {

struct SchedulerOptions {
  std::int64_t max_batch = 256;   // texts that are written at once
  std::int64_t max_queue = 1024;  // texts that wait; more are refused
  // The time between two tokens of a running text that chunks of other prompts aim to stay below (serve/core/pace.h).
  // A chunk has a page at least.
  std::chrono::duration<double> max_gap = std::chrono::milliseconds(200);
  bool prefix_cache = true;
  // Pages that the prefix cache may hold.
  std::int64_t max_prefix_pages = std::numeric_limits<std::int64_t>::max();
};

// Tokens that several texts may have in common: a queue of samples of a long prompt holds it once.
class SharedTokens {
 public:
  SharedTokens() = default;
  SharedTokens(std::vector<std::int64_t> tokens)  // as a vector where one is meant
      : tokens_(std::make_shared<const std::vector<std::int64_t>>(std::move(tokens))) {}
  SharedTokens(std::initializer_list<std::int64_t> tokens) : SharedTokens(std::vector(tokens)) {}

  std::span<const std::int64_t> span() const {
    return tokens_ ? std::span<const std::int64_t>(*tokens_) : std::span<const std::int64_t>();
  }
  bool empty() const { return span().empty(); }
  std::size_t size() const { return span().size(); }

 private:
  std::shared_ptr<const std::vector<std::int64_t>> tokens_;
};

// A text to be written.
struct TextRequest {
  SharedTokens prompt;  // at least one token
  infer::SamplingOptions sampling = {};
  std::int64_t max_tokens = 16;  // 0: the prompt is only read
  std::vector<std::string> stops = {};
  std::vector<std::int64_t> stop_tokens = {};  // marks that end it, besides the model's, with ignore_eos too
  bool ignore_eos = false;
  // Log-probabilities of the prompt's own tokens, and of as many most likely ones as sampling.logprobs says.
  bool prompt_logprobs = false;
  // When its request was there, from which latencies count; zero: when it is submitted.
  std::chrono::steady_clock::time_point arrived = {};
};

enum class Finish { stop, length };  // by the model or a stop string; by max_tokens

struct TextUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // of these, that another request had left
  std::int64_t completion_tokens = 0;  // the mark that ended it included, as clients count
};

// What becomes of a text. Called on the compute thread: must not throw, block or take long. After finished() or
// failed() nothing follows.
class TextSink {
 public:
  virtual ~TextSink() = default;
  // Once, before the first token, where the request asked for prompt_logprobs: of prompt tokens 1, 2, ...
  virtual void prompt(std::vector<infer::SampledToken> logprobs) = 0;
  // A token, and the text that has become certain with it, which may be empty and may belong to earlier tokens. The
  // token of a mark that ends the text comes with none: whoever adds up log-probabilities wants it.
  virtual void token(const infer::SampledToken& token, const std::string& more) = 0;
  // more: what was held back.
  virtual void finished(Finish finish, const std::string& more, const TextUsage& usage) = 0;
  virtual void failed(const std::string& message) = 0;
};

using TextId = std::uint64_t;

// The queue is full: try again later.
class QueueFull : public Error {
 public:
  explicit QueueFull(const std::string& message, std::int64_t seconds) : Error(message), seconds_(seconds) {}
  std::int64_t retry_after() const { return seconds_; }  // seconds

 private:
  std::int64_t seconds_;
};

// The server is going down.
class Stopping : public Error {
 public:
  using Error::Error;
};

class Scheduler {
 public:
  // Model and tokenizer must outlive it.
  Scheduler(Model& model, const data::Tokenizer& tokenizer, const SchedulerOptions& options = {});
  ~Scheduler();

  // Works until stop(); on the thread that computes.
  void run();

  // The rest may be called from any thread.

  // Throws gsa::Error naming the argument for a request that cannot be, QueueFull, Stopping. Sinks of one call may be
  // the same.
  TextId submit(TextRequest request, std::shared_ptr<TextSink> sink);
  // All or none of them, one behind another in the queue.
  std::vector<TextId> submit(std::vector<TextRequest> requests, std::vector<std::shared_ptr<TextSink>> sinks);
  // The text ends where it is and its pages are free with the next pass; what that pass still tells is the last that
  // its sink hears. Texts that have ended are no error. failed: not its client left, but another text of its request
  // failed; it counts as one that failed.
  void cancel(TextId id, bool failed = false);

  // Where the model looks when it reads tokens[position]. done or failed is called on the compute thread; neither, once
  // a cancel() has been noticed.
  TextId look(std::vector<std::int64_t> tokens, std::int64_t position,
              std::function<void(const infer::Look&)> done, std::function<void(const std::string&)> failed);

  // No new requests; running and waiting ones may end for so long, then they fail. run() returns.
  void stop(std::chrono::duration<double> grace);

  // Largest prompt_tokens + max_tokens that can be served: positions or memory, whichever ends first.
  std::int64_t max_length() const;
  std::int64_t max_queue() const;
  const ModelFacts& facts() const;
  MetricsSnapshot metrics() const;
  // Why nobody should send more: passes fail one after another, or the model is lost. Empty: all is well.
  std::string trouble() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gsa::serve
