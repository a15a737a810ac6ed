// A turn's two passes: a chunk of the prompts that are read, a token for each text that is written.
#include "serve/core/scheduler_impl.h"

namespace gsa::serve {
namespace {

constexpr std::int64_t kRowsAtOnce = std::int64_t{1} << 24;  // logits of a prompt's own tokens, numbers

}  // namespace

// ---- reading prompts

// Tokens of it that one pass can have. A chunk is computed in one way: what a text had drawn below dense_below is read
// apart from the rest.
std::int64_t Scheduler::Impl::readable(const TextJob& job) const {
  const std::int64_t begin = job.read();
  if (begin < job.prompt_length) return job.prompt_length - begin;
  const std::int64_t limit = std::min(job.length() - begin, facts_.max_chunk);
  std::int64_t count = 0;
  while (count < limit && sparse_at(job, begin + count) == sparse_at(job, begin)) ++count;
  return count;
}

// How a pass is divided among the texts that are read. A quarter is for those that have less before them than the one
// that came first, the shortest first: a question need not wait for somebody else's book. All else goes by arrival.
std::vector<Scheduler::Impl::Share> Scheduler::Impl::shares() const {
  bool somebody_writes = false;
  std::vector<Share> shares;
  for (const auto& [id, job] : running_) {
    somebody_writes = somebody_writes || job->writes();
    if (!job->writes() && !job->was_read()) shares.push_back({.job = job.get(), .wanted = readable(*job)});
  }
  if (shares.empty()) return shares;
  struct Room {
    Pace::Room pace;
    std::int64_t rows = 0;  // of logits, for texts that want all of theirs
  };
  const auto give = [&](Room& room, Share& share, std::int64_t limit) {
    const TextJob& job = *share.job;
    const bool all_rows = job.wants_prompt_rows();
    if (all_rows) limit = std::min(limit, room.rows);
    const std::int64_t count = pace_.take(room.pace, job.read() + share.count, limit);
    if (all_rows) room.rows -= count;
    return count;
  };
  Room room{pace_.room(somebody_writes, shares.front().job->read()),
            std::max<std::int64_t>(kRowsAtOnce / facts_.vocab_size, 1)};
  Room quarter{{room.pace.seconds / 4, room.pace.tokens / 4}, room.rows / 4};
  const auto left = [](const Share* share) { return share->job->length() - share->job->read(); };
  std::vector<Share*> shorter;
  for (Share& share : shares) {
    if (left(&share) < left(&shares.front())) shorter.push_back(&share);
  }
  std::stable_sort(shorter.begin(), shorter.end(), [&](auto* a, auto* b) { return left(a) < left(b); });
  for (Share* share : shorter) share->count = give(room, *share, give(quarter, *share, share->wanted));
  for (Share& share : shares) share.count += give(room, share, share.wanted - share.count);
  return shares;
}

Scheduler::Impl::Pass Scheduler::Impl::reading_pass() {
  start_waiting();
  Pass pass;
  for (const Share& share : shares()) {
    TextJob& job = *share.job;
    if (share.count < share.wanted) pass.full = true;
    if (share.count == 0) continue;
    const std::int64_t begin = job.read();
    const bool prompt = begin < job.prompt_length;
    pass.tokens += share.count;
    pass.pages += pages_more(job, share.count);
    pass.jobs.push_back(&job);
    pass.chunks.push_back(
        {.sequence = &*job.sequence,
         .tokens = std::span(job.tokens)
                       .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(share.count)),
         .prompt_length = prompt ? job.prompt_length + (job.look ? 1 : 0) : begin + 1,
         .all_rows = job.wants_prompt_rows()});
  }
  return pass;
}

void Scheduler::Impl::read() {
  // A look costs a pass over the whole cache: one a turn, and then nothing else is read.
  const auto ready = std::find_if(running_.begin(), running_.end(),
                                  [](const auto& job) { return job.second->look && job.second->was_read(); });
  looked_ = ready != running_.end() && !looked_;
  if (looked_) return look(*ready->second);
  Pass pass = reading_pass();
  while (!pass.chunks.empty() && !make_room(pass.pages)) {
    preempt(*running_.rbegin()->second);
    pass = reading_pass();
  }
  note_state();  // before anybody hears of a text that was just taken up
  if (!pass.chunks.empty()) run(pass);
}

void Scheduler::Impl::run(const Pass& pass) {
  std::vector<Pace::Part> parts;
  std::vector<TextId> ids;
  for (std::size_t i = 0; i < pass.jobs.size(); ++i) {
    parts.push_back({pass.jobs[i]->read(), static_cast<std::int64_t>(pass.chunks[i].tokens.size())});
    ids.push_back(pass.jobs[i]->id);
  }
  const auto start = Clock::now();
  try {
    std::span<const float> rows = model_.prefill(pass.chunks);
    pass_done();
    book_.prefilled(pass.tokens);
    for (std::size_t i = 0; i < pass.jobs.size(); ++i) {
      TextJob& job = *pass.jobs[i];
      const auto width = static_cast<std::size_t>(facts_.vocab_size);
      const std::size_t count = pass.chunks[i].all_rows ? pass.chunks[i].tokens.size() : 1;
      const auto own = rows.first(count * width);
      rows = rows.subspan(count * width);
      if (pass.chunks[i].all_rows) take_prompt_rows(job, parts[i].context, own);
      keep_prefix(job);
      if (job.was_read() && !job.look) draw(job, own.last(width));
    }
  } catch (const std::exception& error) {
    pass_failed(error);
    return fail(ids, error.what());
  }
  const std::chrono::duration<double> took = Clock::now() - start;
  pace_.read(parts, pass.full, took.count());
}

// rows: of prompt tokens begin, begin + 1, ...; each speaks of the token after it.
void Scheduler::Impl::take_prompt_rows(TextJob& job, std::int64_t begin, std::span<const float> rows) {
  const auto width = static_cast<std::size_t>(facts_.vocab_size);
  const std::int64_t top = job.request.sampling.logprobs.value_or(0);
  for (std::int64_t next = begin + 1; !rows.empty(); ++next, rows = rows.subspan(width)) {
    const bool known = next <= static_cast<std::int64_t>(job.prompt_logprobs.size());  // before a pre-emption
    if (known || next >= job.prompt_length) continue;
    const auto id = static_cast<std::int32_t>(job.tokens[static_cast<std::size_t>(next)]);
    job.prompt_logprobs.push_back(infer::with_logprobs(id, rows.first(width), top));
  }
}

void Scheduler::Impl::look(TextJob& job) {
  if (!make_room(pages_more(job, 1))) return preempt(job);  // others took the last page: it is read again
  const std::unique_ptr<TextJob> owned = leave(job);
  try {
    const infer::Look look = model_.look(*job.sequence, job.look->token);
    pass_done();
    job.look->done(look);
  } catch (const std::exception& error) {
    pass_failed(error);
    owned->fail(error.what());
  }
}

// ---- writing texts

void Scheduler::Impl::write() {
  std::vector<TextJob*> jobs;
  for (;;) {
    jobs.clear();
    std::int64_t pages = 0;
    for (const auto& [id, job] : running_) {
      if (!job->writes()) continue;
      jobs.push_back(job.get());
      pages += pages_more(*job, 1);
    }
    if (jobs.empty()) return;
    if (make_room(pages)) break;
    preempt(*running_.rbegin()->second);
  }
  std::vector<NextToken> steps;
  std::vector<TextId> ids;
  for (TextJob* job : jobs) {
    steps.push_back({&*job->sequence, job->tokens.back()});
    ids.push_back(job->id);
  }
  const auto start = Clock::now();
  try {
    const std::span<const float> rows = model_.decode(steps);
    pass_done();
    book_.stepped(static_cast<std::int64_t>(steps.size()));
    const auto width = static_cast<std::size_t>(facts_.vocab_size);
    std::vector<Drawn> drawn(jobs.size());
    model_.share(static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i) {
      const auto own = static_cast<std::size_t>(i);
      drawn[own] = sample(*jobs[own], rows.subspan(own * width, width));
    });
    for (std::size_t i = 0; i < jobs.size(); ++i) take(*jobs[i], drawn[i]);
  } catch (const std::exception& error) {
    pass_failed(error);
    return fail(ids, error.what());
  }
  const std::chrono::duration<double> took = Clock::now() - start;
  pace_.stepped(took.count());
}

// Touches nothing but the job, as several are drawn from at a time.
Scheduler::Impl::Drawn Scheduler::Impl::sample(TextJob& job, std::span<const float> logits) {
  try {
    return {job.sampler->sample(logits), ""};
  } catch (const Error& error) {  // NaN among the logits of this text
    return {{}, error.what()};
  }
}

// The text's first or next token from its logits.
void Scheduler::Impl::draw(TextJob& job, std::span<const float> logits) {
  const bool first = job.drawn() == 0;
  if (first && job.request.prompt_logprobs) job.sink->prompt(std::exchange(job.prompt_logprobs, {}));
  if (job.request.max_tokens == 0) {
    finish(job, Finish::length, false);
    return;
  }
  take(job, sample(job, logits));
}

void Scheduler::Impl::take(TextJob& job, const Drawn& drawn) {
  if (!drawn.error.empty()) {
    fail(job, drawn.error);
    return;
  }
  const infer::SampledToken& token = drawn.token;
  const bool first = job.drawn() == 0;
  const auto now = Clock::now();
  const std::chrono::duration<double> waited = now - (first ? job.arrived : job.last_token);
  job.last_token = now;
  book_.drawn(first, waited.count());
  const auto is_in = [&](const std::vector<std::int64_t>& marks) {
    return std::find(marks.begin(), marks.end(), token.id) != marks.end();
  };
  if ((!job.request.ignore_eos && is_in(ends_)) || is_in(job.request.stop_tokens)) {
    job.sink->token(token, "");
    finish(job, Finish::stop, true);
    return;
  }
  job.tokens.push_back(token.id);
  job.sink->token(token, job.stream->push(token.id));
  if (job.stream->stopped()) {
    finish(job, Finish::stop, false);
  } else if (job.drawn() == job.request.max_tokens) {
    finish(job, Finish::length, false);
  }
}

std::unique_ptr<TextJob> Scheduler::Impl::leave(const TextJob& job) {
  ++departures_;
  return std::move(running_.extract(job.id).mapped());
}

void Scheduler::Impl::finish(TextJob& job, Finish finish, bool end_mark) {
  const std::unique_ptr<TextJob> owned = leave(job);
  const std::string more = job.stream->finish();
  if (job.stream->stopped()) finish = Finish::stop;  // which may show in the last character only
  keep_prefix(job);
  job.sequence.reset();
  const std::chrono::duration<double> took = Clock::now() - job.arrived;
  book_.finished(finish == Finish::stop, took.count());
  job.sink->finished(finish, more,
                     {.prompt_tokens = job.prompt_length,
                      .cached_tokens = job.cached,
                      .completion_tokens = job.drawn() + (end_mark ? 1 : 0)});
}

void Scheduler::Impl::fail(TextJob& job, const std::string& message) {
  const std::unique_ptr<TextJob> owned = leave(job);
  if (!owned->look) book_.failed();
  owned->sequence.reset();
  owned->fail(message);
}

void Scheduler::Impl::fail(std::span<const TextId> ids, const std::string& message) {
  for (const TextId id : ids) {
    const auto job = running_.find(id);
    if (job != running_.end()) fail(*job->second, message);
  }
}

void Scheduler::Impl::fail_all(const std::string& message) {
  for (Jobs* jobs : {&running_, &waiting_}) {
    for (const auto& [id, job] : *jobs) {
      if (!job->look) book_.failed();
      job->fail(message);
    }
    const std::lock_guard lock(mutex_);
    if (jobs == &waiting_) queued_ -= static_cast<std::int64_t>(jobs->size());
    jobs->clear();
  }
}

}  // namespace gsa::serve
