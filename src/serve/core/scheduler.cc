#include "serve/core/scheduler.h"

#include "serve/core/scheduler_impl.h"

namespace gsa::serve {
namespace {

constexpr const char* kOp = "serve";
constexpr std::int64_t kFailures = 3;  // passes in a row: one alone may be a text's own fault

}  // namespace

// ---- requests, on the threads of those who ask

void Scheduler::Impl::check_token(std::int64_t token) const {
  if (token < 0 || token >= facts_.vocab_size) {
    bad_argument(kOp, "prompt", concat("token ids in 0 .. ", facts_.vocab_size - 1), concat(token));
  }
}

std::unique_ptr<TextJob> Scheduler::Impl::make(TextRequest request, std::shared_ptr<TextSink> sink) const {
  if (request.prompt.empty()) bad_argument(kOp, "prompt", "at least one token", "none");
  const std::span<const std::int64_t> tokens = request.prompt.span();
  for (const std::int64_t token : tokens) check_token(token);
  if (request.max_tokens < 0) bad_argument(kOp, "max_tokens", "0 or more", concat(request.max_tokens));
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt > max_length() || request.max_tokens > max_length() - prompt) {
    bad_argument(kOp, "max_tokens", concat("prompt and text of at most ", max_length(), " tokens"),
                 concat(prompt, " and ", request.max_tokens));
  }
  request.sampling.validate();
  auto job = std::make_unique<TextJob>();
  job->sampler.emplace(request.sampling, tokenizer_.vocab_size());
  if (request.sampling.repetition_penalty != 1) {
    job->sampler->remember(std::vector<std::int32_t>(tokens.begin(), tokens.end()));
  }
  job->stream.emplace(tokenizer_, request.stops, infer::is_empty_text(tokenizer_, tokens));
  if (request.arrived != Clock::time_point()) job->arrived = request.arrived;
  job->prompt_length = prompt;
  job->request = std::move(request);
  job->sink = std::move(sink);
  return job;
}

std::unique_ptr<TextJob> Scheduler::Impl::make(std::vector<std::int64_t> tokens,
                                               std::int64_t position) const {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (position < 0 || position >= length) {
    bad_argument(kOp, "position", concat("0 .. ", length - 1), concat(position));
  }
  if (position >= max_length()) {
    bad_argument(kOp, "tokens", concat("at most ", max_length(), " up to the position"),
                 concat(position + 1));
  }
  for (const std::int64_t token : tokens) check_token(token);
  auto job = std::make_unique<TextJob>();
  job->look.emplace().token = tokens[static_cast<std::size_t>(position)];
  tokens.resize(static_cast<std::size_t>(position));
  job->tokens = std::move(tokens);
  job->prompt_length = position;
  return job;
}

std::vector<TextId> Scheduler::Impl::submit(std::vector<std::unique_ptr<TextJob>> jobs) {
  std::vector<TextId> ids;
  const auto count = static_cast<std::int64_t>(jobs.size());
  if (count > options_.max_queue) {
    bad_argument(kOp, "n", concat("at most ", options_.max_queue, " texts a request, as many as may wait"),
                 concat(count));
  }
  {
    const std::lock_guard lock(mutex_);
    if (deadline_) throw Stopping("the server is shutting down");
    if (queued_ + count > options_.max_queue) {
      book_.refused(count);
      throw QueueFull(concat("the queue is full: ", queued_, " texts wait, at most ", options_.max_queue,
                             " may; try again later"),
                      book_.seconds_until_room());
    }
    queued_ += count;
    for (auto& job : jobs) {
      job->id = next_id_++;
      ids.push_back(job->id);
      inbox_.push_back(std::move(job));
    }
  }
  arrived_.notify_one();
  return ids;
}

void Scheduler::Impl::cancel(TextId id, bool failed) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.emplace_back(id, failed);
  }
  arrived_.notify_one();
}

void Scheduler::Impl::stop(std::chrono::duration<double> grace) {
  {
    const std::lock_guard lock(mutex_);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
    deadline_ = deadline_ ? std::min(*deadline_, end) : end;
  }
  arrived_.notify_one();
}

// ---- the loop

bool Scheduler::Impl::take_in() {
  std::vector<std::unique_ptr<TextJob>> arrivals;
  std::vector<std::pair<TextId, bool>> gone;
  {
    std::unique_lock lock(mutex_);
    const bool idle = waiting_.empty() && running_.empty();
    if (idle) arrived_.wait(lock, [&] { return !inbox_.empty() || deadline_; });
    std::swap(arrivals, inbox_);
    std::swap(gone, cancelled_);
    if (idle && arrivals.empty()) return false;
  }
  for (auto& job : arrivals) {
    last_taken_in_ = job->id;
    waiting_.emplace(last_taken_in_, std::move(job));
  }
  for (const auto& [id, failed] : gone) {
    Jobs& jobs = running_.contains(id) ? running_ : waiting_;
    const auto job = jobs.extract(id);
    if (job.empty()) continue;  // it had ended
    ++departures_;
    if (&jobs == &waiting_) {
      const std::lock_guard lock(mutex_);
      --queued_;
    }
    if (job.mapped()->look) continue;  // no text
    failed ? book_.failed() : book_.cancelled();
  }
  return true;
}

bool Scheduler::Impl::deadline_passed() const {
  const std::lock_guard lock(mutex_);
  return deadline_ && Clock::now() >= *deadline_;
}

void Scheduler::Impl::run() {
  while (take_in()) {
    if (deadline_passed()) fail_all("the server is shutting down");
    try {
      read();
      write();
    } catch (
        const std::exception& error) {  // no memory, outside of a pass: which text is whole cannot be told
      pass_failed(error);
      fail_all(error.what());
    }
    note_state();
  }
  note_state();
}

void Scheduler::Impl::note_state() {
  std::int64_t writing = 0;
  for (const auto& [id, job] : running_) writing += job->writes() ? 1 : 0;
  const auto running = static_cast<std::int64_t>(running_.size());
  book_.state({.last_taken_in = last_taken_in_,
               .waiting = static_cast<std::int64_t>(waiting_.size()),
               .reading = running - writing,
               .writing = writing,
               .pages_total = facts_.capacity,
               .pages_free = model_.free_pages(),
               .pages_held = facts_.capacity - model_.free_pages() - prefixes_.idle(),
               .pages_cached = prefixes_.pages()});
}

// What came while the compute thread was at a pass waits, too.
MetricsSnapshot Scheduler::Impl::metrics() const {
  MetricsSnapshot metrics = book_.snapshot();
  const std::lock_guard lock(mutex_);
  metrics.waiting += static_cast<std::int64_t>(next_id_ - 1 - metrics.last_taken_in);
  return metrics;
}

void Scheduler::Impl::pass_failed(const std::exception& error) {
  ++failures_;
  if (dynamic_cast<const ModelLost*>(&error) != nullptr) lost_ = true;
}

std::string Scheduler::Impl::trouble() const {
  if (lost_) return "the model's device has failed: the server must be started again";
  const std::int64_t failures = failures_;
  return failures < kFailures ? ""
                              : concat("the model does not work: ", failures, " passes in a row have failed");
}

// ---- the face

Scheduler::Scheduler(Model& model, const data::Tokenizer& tokenizer, const SchedulerOptions& options)
    : impl_(std::make_unique<Impl>(model, tokenizer, options)) {}
Scheduler::~Scheduler() = default;

void Scheduler::run() { impl_->run(); }

TextId Scheduler::submit(TextRequest request, std::shared_ptr<TextSink> sink) {
  std::vector<std::unique_ptr<TextJob>> jobs;
  jobs.push_back(impl_->make(std::move(request), std::move(sink)));
  return impl_->submit(std::move(jobs)).front();
}

std::vector<TextId> Scheduler::submit(std::vector<TextRequest> requests,
                                      std::vector<std::shared_ptr<TextSink>> sinks) {
  if (requests.size() != sinks.size()) {
    bad_argument(kOp, "sinks", concat("one for each of ", requests.size(), " requests"),
                 concat(sinks.size()));
  }
  std::vector<std::unique_ptr<TextJob>> jobs;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    jobs.push_back(impl_->make(std::move(requests[i]), std::move(sinks[i])));
  }
  return impl_->submit(std::move(jobs));
}

void Scheduler::cancel(TextId id, bool failed) { impl_->cancel(id, failed); }

TextId Scheduler::look(std::vector<std::int64_t> tokens, std::int64_t position,
                       std::function<void(const infer::Look&)> done,
                       std::function<void(const std::string&)> failed) {
  std::vector<std::unique_ptr<TextJob>> jobs;
  jobs.push_back(impl_->make(std::move(tokens), position));
  jobs.front()->look->done = std::move(done);
  jobs.front()->look->failed = std::move(failed);
  return impl_->submit(std::move(jobs)).front();
}

void Scheduler::stop(std::chrono::duration<double> grace) { impl_->stop(grace); }

std::int64_t Scheduler::max_length() const { return impl_->max_length(); }
std::int64_t Scheduler::max_queue() const { return impl_->max_queue(); }
const ModelFacts& Scheduler::facts() const { return impl_->facts(); }
MetricsSnapshot Scheduler::metrics() const { return impl_->metrics(); }
std::string Scheduler::trouble() const { return impl_->trouble(); }

}  // namespace gsa::serve
