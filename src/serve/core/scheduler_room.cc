// Memory in pages, and which texts are taken up with it.
#include "serve/core/scheduler_impl.h"

namespace gsa::serve {
namespace {

std::int64_t common_length(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

// ---- room

// Pages beside those of running texts: free ones, and what the prefix cache could give up.
bool Scheduler::Impl::fits(const TextJob& job) const {
  if (running_.empty()) return true;  // max_length() has seen to it
  // What those need that are being read, a page for each that is written, and its own.
  std::int64_t needed = pages_more(job, job.length() + 1 - job.read());
  for (const auto& [id, other] : running_) {
    needed += other->writes() ? 1 : pages_more(*other, other->length() + 1 - other->read());
  }
  const std::int64_t missing = needed - model_.free_pages();
  return missing <= prefixes_.idle();
}

bool Scheduler::Impl::make_room(std::int64_t pages) {
  const std::int64_t missing = pages - model_.free_pages();
  if (missing > 0) book_.evicted(prefixes_.evict(missing));
  return model_.free_pages() >= pages;
}

// Its pages go; what it has drawn stays, and is read again with the prompt.
void Scheduler::Impl::preempt(TextJob& job) {
  book_.preempted();
  keep_prefix(job);
  job.sequence.reset();
  ++departures_;
  waiting_.insert(running_.extract(job.id));
  const std::lock_guard lock(mutex_);
  ++queued_;
}

// The full pages of what has been read, as far as all of it was computed in one way.
void Scheduler::Impl::keep_prefix(const TextJob& job) {
  if (!options_.prefix_cache || job.read() == 0) return;
  const bool sparse = sparse_at(job, 0);
  std::int64_t length = job.read();
  // Texts that grow beyond dense_below: the shorter ones of their beginnings.
  while (length > 0 && sparse_at(job, length - 1) != sparse) length -= 1;
  const auto pages = static_cast<std::size_t>(length / facts_.page_size);
  const std::int64_t let_go = prefixes_.insert(
      sparse, std::span(job.tokens).first(pages * static_cast<std::size_t>(facts_.page_size)),
      std::span(job.sequence->pages()).first(pages));
  book_.evicted(let_go);
}

// ---- who is taken up

// What it waits for is still being read.
bool Scheduler::Impl::still_waits(TextJob& job) {
  if (job.waits_for == 0) return false;
  const auto other = running_.find(job.waits_for);
  if (other != running_.end() && other->second->read() < job.waits_until) return true;
  job.waits_for = 0;
  return false;
}

// Somebody is reading more of what this text begins with than is known so far: it is worth waiting for.
bool Scheduler::Impl::waits_for_another(TextJob& job, std::int64_t known) {
  const bool sparse = sparse_at(job, 0);
  for (const auto& [id, other] : running_) {
    if (other->was_read() || other->writes() || sparse_at(*other, 0) != sparse) continue;
    std::int64_t shared = common_length(other->text(), job.text());
    shared = std::min(shared, job.length() - 1) / facts_.page_size * facts_.page_size;
    shared = std::min(shared, options_.max_prefix_pages * facts_.page_size);
    if (shared <= known || other->read() >= shared)
      continue;  // in the second case, others have pushed it out
    job.waits_for = id;
    job.waits_until = shared;
    return true;
  }
  return false;
}

// Gives it a sequence, with the pages that are known already. False: not now.
bool Scheduler::Impl::admit(TextJob& job) {
  if (still_waits(job)) return false;
  const bool looks_up = options_.prefix_cache && !job.wants_prompt_rows();
  std::vector<std::int32_t> pages;
  std::int64_t known = 0;
  if (looks_up && job.length() > 1) {
    // At least one token must be read, for its logits.
    const auto tokens = job.text().first(job.text().size() - (job.look ? 0 : 1));
    pages = prefixes_.find(sparse_at(job, 0), tokens);
    known = static_cast<std::int64_t>(pages.size()) * facts_.page_size;
    if (waits_for_another(job, known)) return false;
  }
  job.sequence = model_.start();
  job.sequence->adopt(pages, job.text().first(static_cast<std::size_t>(known)));
  if (!fits(job)) {
    job.sequence.reset();
    return false;
  }
  job.own_tokens();
  if (!std::exchange(job.taken_up, true)) {
    job.cached = known;
    book_.taken_up(job.prompt_length);
  }
  if (looks_up) book_.looked_up(known, job.length());
  return true;
}

// Takes up texts that wait, in the order of arrival.
void Scheduler::Impl::start_waiting() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    TextJob& job = *it->second;
    if (static_cast<std::int64_t>(running_.size()) >= options_.max_batch) return;
    if (blocked_ == std::pair(job.id, departures_)) return;
    if (!admit(job)) {
      if (job.waits_for == 0) {  // no room: nobody overtakes it, and it is asked again when somebody has left
        blocked_ = {job.id, departures_};
        return;
      }
      ++it;
      continue;
    }
    running_.insert(waiting_.extract(it++));
    const std::lock_guard lock(mutex_);
    --queued_;
  }
}

}  // namespace gsa::serve
