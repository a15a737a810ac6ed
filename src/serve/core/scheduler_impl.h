// The scheduler's inside: its state and its steps. scheduler.cc has requests and the loop, scheduler_room.cc memory and
// who is taken up, scheduler_passes.cc reading prompts and writing texts. No torch header.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serve/core/metrics_book.h"
#include "serve/core/pace.h"
#include "serve/core/prefix_cache.h"
#include "serve/core/scheduler.h"
#include "serve/core/text_job.h"

namespace gsa::serve {

using Jobs = std::map<TextId, std::unique_ptr<TextJob>>;  // by arrival

class Scheduler::Impl {
 public:
  Impl(Model& model, const data::Tokenizer& tokenizer, const SchedulerOptions& options)
      : model_(model),
        tokenizer_(tokenizer),
        options_(options),
        facts_(model.facts()),
        prefixes_(model.start().pool(), options.max_prefix_pages),
        pace_(options.max_gap, facts_.page_size, facts_.max_chunk) {
    options_.max_batch = std::min(options_.max_batch, facts_.max_batch);
    options_.max_prefix_pages = std::min(options_.max_prefix_pages, facts_.capacity);
    ends_ = facts_.ends;
    ends_.push_back(tokenizer.eos());
  }

  void run();
  std::vector<TextId> submit(std::vector<std::unique_ptr<TextJob>> jobs);
  void cancel(TextId id, bool failed);
  void stop(std::chrono::duration<double> grace);

  std::unique_ptr<TextJob> make(TextRequest request, std::shared_ptr<TextSink> sink) const;
  std::unique_ptr<TextJob> make(std::vector<std::int64_t> tokens, std::int64_t position) const;

  std::int64_t max_length() const {
    return std::min(facts_.max_positions, facts_.capacity * facts_.page_size);
  }
  std::int64_t max_queue() const { return options_.max_queue; }
  const ModelFacts& facts() const { return facts_; }
  MetricsSnapshot metrics() const;
  std::string trouble() const;

 private:
  struct Pass {
    std::vector<Chunk> chunks;
    std::vector<TextJob*> jobs;  // of the chunks
    std::int64_t pages = 0;      // that it takes
    std::int64_t tokens = 0;     // that it has
    bool full = false;           // somebody has more to be read
  };

  void check_token(std::int64_t token) const;
  bool take_in();  // false: nothing more will come
  bool deadline_passed() const;

  std::int64_t pages_for(std::int64_t tokens) const {
    return (tokens + facts_.page_size - 1) / facts_.page_size;
  }
  // Pages that the sequence lacks for so many tokens more.
  std::int64_t pages_more(const TextJob& job, std::int64_t tokens) const {
    const auto held = job.sequence ? static_cast<std::int64_t>(job.sequence->pages().size()) : 0;
    return std::max<std::int64_t>(pages_for(job.read() + tokens) - held, 0);
  }
  // Whether position p of a text is computed sparsely: all of a prompt by the prompt's length.
  bool sparse_at(const TextJob& job, std::int64_t position) const {
    return model_.sparse_at(std::max(job.prompt_length + (job.look ? 1 : 0), position + 1));
  }

  bool admit(TextJob& job);
  bool still_waits(TextJob& job);
  bool waits_for_another(TextJob& job, std::int64_t known);
  void start_waiting();
  bool fits(const TextJob& job) const;
  bool make_room(std::int64_t pages);
  void preempt(TextJob& job);
  void keep_prefix(const TextJob& job);

  struct Share {  // of a pass
    TextJob* job = nullptr;
    std::int64_t wanted = 0, count = 0;  // tokens
  };
  std::int64_t readable(const TextJob& job) const;
  std::vector<Share> shares() const;
  Pass reading_pass();
  void read();
  void run(const Pass& pass);
  void take_prompt_rows(TextJob& job, std::int64_t begin, std::span<const float> rows);
  void write();
  struct Drawn {
    infer::SampledToken token;
    std::string error;  // where the text ends instead
  };
  static Drawn sample(TextJob& job, std::span<const float> logits);
  void draw(TextJob& job, std::span<const float> logits);
  void take(TextJob& job, const Drawn& drawn);
  void look(TextJob& job);
  std::unique_ptr<TextJob> leave(const TextJob& job);
  void finish(TextJob& job, Finish finish, bool end_mark);
  void fail(TextJob& job, const std::string& message);
  void fail(std::span<const TextId> ids, const std::string& message);  // those of them that still run
  void fail_all(const std::string& message);
  void pass_done() { failures_ = 0; }
  void pass_failed(const std::exception& error);
  void note_state();

  Model& model_;
  const data::Tokenizer& tokenizer_;
  SchedulerOptions options_;
  const ModelFacts facts_;
  std::vector<std::int64_t> ends_;

  // The compute thread's own.
  Jobs waiting_, running_;
  PrefixCache prefixes_;
  Pace pace_;
  TextId last_taken_in_ = 0;
  bool looked_ = false;                            // in the last turn
  std::uint64_t departures_ = 0;                   // of running texts, which is what makes room
  std::pair<TextId, std::uint64_t> blocked_ = {};  // the text that had no room, and after how many of them

  // Shared with who submits.
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::unique_ptr<TextJob>> inbox_;
  std::vector<std::pair<TextId, bool>> cancelled_;  // and whether by a failure
  TextId next_id_ = 1;
  std::int64_t queued_ = 0;                    // texts in inbox_ and waiting_
  std::optional<Clock::time_point> deadline_;  // when stop() was called: until then

  std::atomic<std::int64_t> failures_ = 0;  // passes that have failed since one did not
  std::atomic<bool> lost_ = false;          // no pass will succeed

  MetricsBook book_;
};

}  // namespace gsa::serve
