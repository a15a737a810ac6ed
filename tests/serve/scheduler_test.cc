#include "serve/core/scheduler.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "serve/rule_model.h"

namespace gsa::serve {
namespace {

using namespace std::chrono_literals;
using infer::SampledToken;
using Tokens = std::vector<std::int64_t>;

Tokens prompt_of(std::int64_t seed, std::int64_t length) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  Tokens tokens;
  for (std::int64_t i = 0; i < length; ++i) tokens.push_back('a' + static_cast<std::int64_t>(random() % 26));
  return tokens;
}

// What came of a text.
class Record : public TextSink {
 public:
  void prompt(std::vector<SampledToken> logprobs) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(text_.empty());
    logprobs_ = std::move(logprobs);
  }
  void token(const SampledToken& token, const std::string& more) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over_);
    tokens_.push_back(token.id);
    text_ += more;
    changed_.notify_all();
  }
  void finished(Finish finish, const std::string& more, const TextUsage& usage) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over_);
    text_ += more;
    finish_ = finish;
    usage_ = usage;
    over_ = true;
    if (at_end_) at_end_();
    changed_.notify_all();
  }
  void failed(const std::string& message) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over_);
    error_ = message;
    over_ = true;
    changed_.notify_all();
  }

  const Record& wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return over_; })) << "the text did not end";
    return *this;
  }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return over_ || tokens_.size() >= count; }));
  }
  bool over() {
    const std::lock_guard lock(mutex_);
    return over_;
  }
  std::size_t tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_.size();
  }

  std::string text_, error_;
  std::vector<std::int32_t> tokens_;
  std::vector<SampledToken> logprobs_;
  Finish finish_ = Finish::stop;
  TextUsage usage_;
  bool over_ = false;
  std::function<void()> at_end_ = nullptr;  // called on the compute thread

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A scheduler at work.
class Running {
 public:
  explicit Running(const RuleOptions& rule = {}, const SchedulerOptions& options = {})
      : model(rule), tokenizer(data::byte_tokenizer()), scheduler(model, *tokenizer, options) {
    thread = std::thread([this] { scheduler.run(); });
  }
  ~Running() { stop(0s); }
  void stop(std::chrono::duration<double> grace) {
    scheduler.stop(grace);
    if (thread.joinable()) thread.join();
  }

  std::shared_ptr<Record> submit(TextRequest request) {
    auto record = std::make_shared<Record>();
    record_ids.push_back(scheduler.submit(std::move(request), record));
    return record;
  }
  std::shared_ptr<Record> submit(Tokens prompt, std::int64_t max_tokens) {
    return submit({.prompt = std::move(prompt), .sampling = {.temperature = 0}, .max_tokens = max_tokens});
  }

  // The text that the model's rule gives.
  std::string expected(Tokens prompt, std::int64_t count) const {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t next = model.next(prompt);
      if (next == 257) break;
      text += static_cast<char>(next);
      prompt.push_back(next);
    }
    return text;
  }

  // When nothing runs, what is in use is the prefix cache's.
  void expect_no_leak() {
    stop(60s);
    const MetricsSnapshot metrics = scheduler.metrics();
    EXPECT_EQ(metrics.reading + metrics.writing + metrics.waiting, 0);
    EXPECT_EQ(metrics.pages_held, 0);
    EXPECT_EQ(metrics.pages_in_use, metrics.pages_cached);
    EXPECT_EQ(model.pages_in_use(), metrics.pages_cached);
  }

  RuleModel model;
  std::unique_ptr<data::Tokenizer> tokenizer;
  Scheduler scheduler;
  std::thread thread;
  std::vector<TextId> record_ids;
};

TEST(Scheduler, WritesWhatTheModelSays) {
  Running run;
  const Tokens prompt = prompt_of(1, 30);
  const auto text = run.submit(prompt, 20);
  text->wait();
  EXPECT_EQ(text->text_, run.expected(prompt, 20));
  EXPECT_EQ(text->finish_, Finish::length);
  EXPECT_EQ(text->usage_.prompt_tokens, 30);
  EXPECT_EQ(text->usage_.completion_tokens, 20);
  run.expect_no_leak();
}

TEST(Scheduler, ManyTextsAtOnceAreEachTheirOwn) {
  Running run({.max_chunk = 16, .max_batch = 7});
  std::vector<std::shared_ptr<Record>> texts;
  for (std::int64_t i = 0; i < 60; ++i)
    texts.push_back(run.submit(prompt_of(i % 20, 1 + i * 3 % 70), i % 25));
  for (std::int64_t i = 0; i < 60; ++i) {
    const Record& text = texts[static_cast<std::size_t>(i)]->wait();
    EXPECT_EQ(text.text_, run.expected(prompt_of(i % 20, 1 + i * 3 % 70), i % 25)) << i;
    EXPECT_EQ(text.error_, "");
  }
  run.expect_no_leak();
}

TEST(Scheduler, EndsAtMarksAndStopStrings) {
  Running run({.end_after = 12});
  const Tokens prompt = prompt_of(3, 10);
  const auto ended = run.submit(prompt, 50);
  ended->wait();
  EXPECT_EQ(ended->finish_, Finish::stop);
  EXPECT_EQ(ended->text_.size(), 2U);
  EXPECT_EQ(ended->usage_.completion_tokens, 3);  // with the mark

  Running endless;
  const std::string whole = endless.expected(prompt, 40);
  const auto stopped = endless.submit(
      {.prompt = prompt, .sampling = {.temperature = 0}, .max_tokens = 40, .stops = {whole.substr(20, 5)}});
  stopped->wait();
  EXPECT_EQ(stopped->text_, whole.substr(0, whole.find(whole.substr(20, 5))));
  EXPECT_EQ(stopped->finish_, Finish::stop);
}

TEST(Scheduler, ReadsOnlyWithoutTokensToWrite) {
  Running run;
  const auto text = run.submit(prompt_of(1, 9), 0);
  text->wait();
  EXPECT_EQ(text->text_, "");
  EXPECT_EQ(text->finish_, Finish::length);
  EXPECT_EQ(run.model.prefilled, 9);
}

// The page size is 8: of 33 tokens four pages are full.
TEST(Scheduler, WhatSeveralBeginWithIsReadOnce) {
  Running run({.a_step = 100us});
  const Tokens shared = prompt_of(1, 512);
  std::vector<std::shared_ptr<Record>> texts;
  std::vector<Tokens> prompts;
  for (std::int64_t i = 0; i < 16; ++i) {
    prompts.push_back(shared);
    prompts.back().push_back('A' + i);
    texts.push_back(run.submit(prompts.back(), 5));
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i]->wait().text_, run.expected(prompts[i], 5));
  }
  EXPECT_EQ(run.model.prefilled, 512 + 16);
  const MetricsSnapshot metrics = run.scheduler.metrics();
  EXPECT_EQ(metrics.prefix_hit_tokens, 15 * 512);
  EXPECT_EQ(metrics.prefix_query_tokens, 16 * 513);
  run.expect_no_leak();
}

TEST(Scheduler, ANewTurnFindsPromptAndAnswer) {
  Running run;
  Tokens chat = prompt_of(5, 40);
  const auto first = run.submit(chat, 24);
  first->wait();
  chat.insert(chat.end(), first->tokens_.begin(), first->tokens_.end());
  chat.push_back('?');
  const auto second = run.submit(chat, 4);
  second->wait();
  EXPECT_EQ(second->text_, run.expected(chat, 4));
  EXPECT_EQ(second->usage_.cached_tokens, 56);  // of 63 that were read: 7 pages
}

// Distinct texts take no more memory the more of them come.
TEST(Scheduler, ThePrefixCacheKeepsWithinItsLimit) {
  Running run({}, {.max_prefix_pages = 20});
  for (std::int64_t i = 0; i < 30; ++i) {
    const Tokens prompt = prompt_of(i, 60);
    EXPECT_EQ(run.submit(prompt, 8)->wait().text_, run.expected(prompt, 8));
  }
  const auto again = run.submit(prompt_of(29, 60), 1);
  EXPECT_EQ(again->wait().usage_.cached_tokens, 56);
  run.expect_no_leak();
  EXPECT_EQ(run.model.pages_in_use(), 20);
  EXPECT_EQ(run.scheduler.metrics().evicted_pages, 30 * 8 - 20);
}

// A writes for long behind a prompt of 64 pages, B ends and leaves 40, C needs 60 of 160: B's go for that, and D finds
// A's prompt.
TEST(Scheduler, PagesOfRunningTextsStayInThePrefixCache) {
  Running run({.capacity = 160, .a_step = 1ms});
  const Tokens prompt = prompt_of(1, 64 * 8);
  const auto a = run.submit(prompt, 760);
  a->wait_for_tokens(1);
  run.submit(prompt_of(2, 40 * 8), 1)->wait();
  EXPECT_EQ(run.submit(prompt_of(3, 60 * 8), 1)->wait().usage_.cached_tokens, 0);
  EXPECT_GT(run.scheduler.metrics().evicted_pages, 0);
  EXPECT_FALSE(a->over());
  EXPECT_EQ(run.submit(prompt, 1)->wait().usage_.cached_tokens, 63 * 8);
  run.scheduler.cancel(run.record_ids.front());
  run.expect_no_leak();
}

TEST(Scheduler, SharedPagesAreHeldOnce) {
  Running run({.a_step = 1ms});
  const Tokens prompt = prompt_of(1, 80);
  std::vector<std::shared_ptr<Record>> texts;
  for (int i = 0; i < 4; ++i) texts.push_back(run.submit(prompt, 3000));
  MetricsSnapshot metrics;
  while ((metrics = run.scheduler.metrics()).writing < 4) std::this_thread::sleep_for(1ms);
  const std::int64_t held = metrics.pages_held;
  // Nine pages of the prompt are everybody's, what is behind them each text's own.
  std::int64_t most = 9;
  for (const auto& text : texts) most += static_cast<std::int64_t>(80 + text->tokens()) / 8 + 1 - 9;
  EXPECT_GE(held, 9 + 4);
  EXPECT_LE(held, most);
  for (const TextId id : run.record_ids) run.scheduler.cancel(id);
  run.expect_no_leak();
}

// As much of it as may be kept; nobody waits for what will not be there.
TEST(Scheduler, WhatSeveralBeginWithMayBeMoreThanTheLimit) {
  Running run({.a_step = 100us}, {.max_prefix_pages = 20});
  std::vector<std::shared_ptr<Record>> texts;
  std::vector<Tokens> prompts;
  for (std::int64_t i = 0; i < 12; ++i) {
    prompts.push_back(prompt_of(i % 2, 512));
    prompts.back().push_back('A' + i);
    texts.push_back(run.submit(prompts.back(), 5));
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i]->wait().text_, run.expected(prompts[i], 5));
  }
  run.expect_no_leak();
  EXPECT_LE(run.model.pages_in_use(), 20);
}

TEST(Scheduler, WithoutThePrefixCacheEverythingIsRead) {
  Running run({}, {.prefix_cache = false});
  const Tokens prompt = prompt_of(1, 100);
  run.submit(prompt, 1)->wait();
  run.submit(prompt, 1)->wait();
  EXPECT_EQ(run.model.prefilled, 200);
  run.expect_no_leak();
  EXPECT_EQ(run.model.pages_in_use(), 0);
}

// 24 pages of 8: each text grows to 12 pages, four of them do not fit.
TEST(Scheduler, PreemptsTheLastToComeAndLosesNothing) {
  for (const bool prefixes : {true, false}) {
    Running run({.capacity = 24}, {.prefix_cache = prefixes});
    std::vector<std::shared_ptr<Record>> texts;
    for (std::int64_t i = 0; i < 4; ++i) texts.push_back(run.submit(prompt_of(i, 30), 66));
    for (std::int64_t i = 0; i < 4; ++i) {
      const Record& text = texts[static_cast<std::size_t>(i)]->wait();
      EXPECT_EQ(text.text_, run.expected(prompt_of(i, 30), 66)) << i << " " << text.error_;
    }
    EXPECT_GT(run.scheduler.metrics().preemptions, 0);
    run.expect_no_leak();
  }
}

TEST(Scheduler, AsLongAsTheCacheIsStillFits) {
  Running run({.capacity = 10});
  EXPECT_EQ(run.scheduler.max_length(), 80);
  const Tokens prompt = prompt_of(1, 60);
  run.submit(prompt_of(2, 79), 1)->wait();  // fills the prefix cache
  EXPECT_EQ(run.submit(prompt, 20)->wait().text_, run.expected(prompt, 20));
  EXPECT_THROW(run.submit(prompt, 21), Error);
}

TEST(Scheduler, PromptLogprobsComeBeforeTheText) {
  for (const std::int64_t chunk : {64, 5}) {
    Running run({.max_chunk = chunk});
    const Tokens prompt = prompt_of(1, 33);
    run.submit(prompt, 1)->wait();  // its pages would answer, but have no logits
    const auto text = run.submit({.prompt = prompt,
                                  .sampling = {.temperature = 0, .logprobs = 2},
                                  .max_tokens = 1,
                                  .prompt_logprobs = true});
    text->wait();
    ASSERT_EQ(text->logprobs_.size(), 32U);
    for (std::size_t i = 0; i < 32; ++i) {
      const std::int64_t next =
          run.model.next(Tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i) + 1));
      EXPECT_EQ(text->logprobs_[i].id, prompt[i + 1]);
      ASSERT_EQ(text->logprobs_[i].top.size(), 2U);
      EXPECT_EQ(text->logprobs_[i].top[0].id, next);
      EXPECT_EQ(text->logprobs_[i].logprob == text->logprobs_[i].top[0].logprob, prompt[i + 1] == next);
    }
    EXPECT_EQ(text->text_, run.expected(prompt, 1));
  }
}

TEST(Scheduler, SampledTextsFollowTheirSeedWhateverElseRuns) {
  const auto sample = [](Running& run, std::uint64_t seed) {
    return run.submit({.prompt = prompt_of(1, 20),
                       .sampling = {.temperature = 3, .seed = seed},
                       .max_tokens = 30,
                       .ignore_eos = true});
  };
  Running alone;
  const auto lonely = sample(alone, 5);
  const std::vector<std::int32_t> first = lonely->wait().tokens_;
  Running crowded({.capacity = 32});
  std::vector<std::shared_ptr<Record>> others;
  for (std::int64_t i = 0; i < 10; ++i) others.push_back(crowded.submit(prompt_of(i, 40), 40));
  const auto same = sample(crowded, 5), other = sample(crowded, 6);
  EXPECT_EQ(same->wait().tokens_, first);
  EXPECT_NE(other->wait().tokens_, first);
  for (const auto& text : others) text->wait();
}

// 24 pages of 8: each text grows to 12 pages. Draws and penalties of one that was pre-empted go on where they were.
TEST(Scheduler, PreemptionChangesNoDraw) {
  const auto sample = [](Running& run, std::int64_t number) {
    return run.submit({.prompt = prompt_of(number, 30),
                       .sampling = {.temperature = 3, .repetition_penalty = 1.5, .seed = 5},
                       .max_tokens = 66,
                       .ignore_eos = true});
  };
  for (const bool prefixes : {true, false}) {
    Running crowded({.capacity = 24}, {.prefix_cache = prefixes});
    std::vector<std::shared_ptr<Record>> texts;
    for (std::int64_t i = 0; i < 4; ++i) texts.push_back(sample(crowded, i));
    for (std::int64_t i = 0; i < 4; ++i) {
      Running alone;
      EXPECT_EQ(texts[static_cast<std::size_t>(i)]->wait().tokens_, sample(alone, i)->wait().tokens_) << i;
    }
    EXPECT_GT(crowded.scheduler.metrics().preemptions, 0);
    crowded.expect_no_leak();
  }
}

TEST(Scheduler, CancelledTextsGiveTheirPagesBack) {
  Running run({.a_step = 1ms}, {.prefix_cache = false});
  const auto going = run.submit(prompt_of(1, 20), 4000);
  const auto waiting = run.submit(prompt_of(2, 20), 4000);
  going->wait_for_tokens(3);
  for (const TextId id : run.record_ids) run.scheduler.cancel(id);
  run.scheduler.cancel(12345);  // nobody
  run.submit(prompt_of(3, 5), 1)->wait();
  run.submit(prompt_of(3, 5), 1)->wait();
  EXPECT_FALSE(going->over() || waiting->over());
  EXPECT_EQ(run.scheduler.metrics().cancelled, 2);
  run.expect_no_leak();
  EXPECT_EQ(run.model.pages_in_use(), 0);
}

TEST(Scheduler, AFullQueueRefuses) {
  Running run({.a_step = 1ms}, {.max_batch = 1, .max_queue = 3});
  const auto first = run.submit(prompt_of(0, 5), 4000);
  first->wait_for_tokens(1);
  std::vector<std::shared_ptr<Record>> texts;
  for (std::int64_t i = 0; i < 3; ++i) texts.push_back(run.submit(prompt_of(i, 5), 1));
  try {
    run.submit(prompt_of(9, 5), 1);
    FAIL() << "expected the queue to be full";
  } catch (const QueueFull& full) {
    EXPECT_GE(full.retry_after(), 1);
  }
  EXPECT_EQ(run.scheduler.metrics().refused, 1);
  run.scheduler.cancel(run.record_ids.front());
  for (const auto& text : texts) EXPECT_EQ(text->wait().error_, "");
  EXPECT_EQ(run.submit(prompt_of(9, 5), 1)->wait().error_, "");
}

TEST(Scheduler, AFailedPassFailsItsTextsAlone) {
  Running run;
  run.model.fail_next = true;
  EXPECT_NE(run.submit(prompt_of(1, 5), 3)->wait().error_.find("the pass failed"), std::string::npos);
  const Tokens prompt = prompt_of(2, 5);
  EXPECT_EQ(run.submit(prompt, 3)->wait().text_, run.expected(prompt, 3));
  EXPECT_EQ(run.scheduler.metrics().failed, 1);
  run.expect_no_leak();
}

TEST(Scheduler, LooksThatFailAreNoTexts) {
  RuleModel model;
  const auto tokenizer = data::byte_tokenizer();
  Scheduler scheduler(model, *tokenizer);
  int failures = 0;
  for (int i = 0; i < 2; ++i) {
    scheduler.look(
        prompt_of(1, 30), 20, [](const infer::Look&) { ADD_FAILURE(); },
        [&](const std::string&) { ++failures; });
  }
  const auto text = std::make_shared<Record>();
  scheduler.submit({.prompt = prompt_of(2, 30), .max_tokens = 1}, text);
  scheduler.stop(0s);
  scheduler.run();
  EXPECT_EQ(failures, 2);
  EXPECT_EQ(text->wait().text_, "");
  EXPECT_EQ(scheduler.metrics().failed, 1);
}

TEST(Scheduler, StopLetsTextsEndOrCutsThem) {
  {
    Running run({.a_step = 200us});
    const auto text = run.submit(prompt_of(1, 5), 50);
    run.stop(60s);
    EXPECT_EQ(text->text_, run.expected(prompt_of(1, 5), 50));
    EXPECT_THROW(run.submit(prompt_of(1, 5), 1), Stopping);
  }
  Running run({.a_step = 1ms});
  const auto text = run.submit(prompt_of(1, 5), 4000);
  text->wait_for_tokens(1);
  run.stop(0s);
  EXPECT_NE(text->error_.find("shutting down"), std::string::npos);
}

// A long prompt comes in chunks, and a text that runs gets a token after each of them, within the gap: from the first
// prompt that the server sees, and although tokens get dearer with their context. Time is what the passes should have
// taken: a slower machine makes chunks shorter.
TEST(Scheduler, LongPromptsDoNotStallRunningTexts) {
  Running run({.max_chunk = 1024, .a_step = 1ms, .a_token = 100us, .a_context = 50us}, {.max_gap = 30ms});
  const auto text = run.submit(prompt_of(1, 8), 4000);
  text->wait_for_tokens(3);
  run.model.longest_turn = 0;
  const std::size_t before = text->tokens();
  run.submit(prompt_of(2, 3000), 1)->wait();
  EXPECT_LE(run.model.longest_turn, 30'000);
  // Of 250 us each at the end, more than a page of 8 fits.
  EXPECT_LE(text->tokens() - before, 3000U / 16);
  for (std::int64_t i = 0; i < 20; ++i)
    run.submit(prompt_of(10 + i, 1 + i * 7), 1)->wait();  // short ones between
  run.submit(prompt_of(3, 3000), 1)->wait();
  EXPECT_LE(run.model.longest_turn, 30'000);
  run.scheduler.cancel(run.record_ids.front());
}

// Who asks little does not wait for the whole of what somebody else has to be read: 4,000 tokens in 800 ms.
TEST(Scheduler, ShortPromptsDoNotWaitForLongOnes) {
  for (const bool somebody_writes : {false, true}) {
    Running run({.capacity = 4096, .max_chunk = 64, .a_token = 200us}, {.max_gap = 20ms});
    if (somebody_writes) run.submit(prompt_of(9, 8), 4000)->wait_for_tokens(1);
    const auto book = run.submit(prompt_of(1, 4000), 1);
    const auto report = run.submit(prompt_of(4, 3900), 1);
    while (run.model.prefilled < 100) std::this_thread::sleep_for(1ms);
    const auto question = run.submit(prompt_of(2, 40), 1);
    EXPECT_EQ(question->wait().text_, run.expected(prompt_of(2, 40), 1));
    EXPECT_LT(run.model.prefilled, 2000) << somebody_writes;
    EXPECT_FALSE(book->over() || report->over());
    EXPECT_EQ(book->wait().text_, run.expected(prompt_of(1, 4000), 1));
    run.scheduler.cancel(run.record_ids.front());
  }
}

// However many of them come: a quarter of a pass is theirs.
TEST(Scheduler, ShortPromptsDoNotHoldUpTheFirst) {
  Running run({.capacity = 4096, .max_chunk = 64, .a_token = 100us}, {.max_batch = 64});
  const auto book = std::make_shared<Record>();
  std::int64_t until_then = 0;  // tokens that were read
  book->at_end_ = [&] { until_then = run.model.prefilled; };
  run.scheduler.submit({.prompt = prompt_of(1, 3200), .sampling = {.temperature = 0}, .max_tokens = 1}, book);
  std::vector<std::shared_ptr<Record>> questions;
  for (std::int64_t i = 0; i < 200; ++i) questions.push_back(run.submit(prompt_of(2 + i, 60), 1));
  book->wait();
  EXPECT_LE(until_then, 3200 * 4 / 3 + 2 * 64);
  EXPECT_TRUE(questions.front()->over());
  for (std::int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(questions[static_cast<std::size_t>(i)]->wait().text_, run.expected(prompt_of(2 + i, 60), 1));
  }
  run.expect_no_leak();
}

TEST(Scheduler, LooksReadWhatIsBefore) {
  Running run;
  const Tokens tokens = prompt_of(1, 50);
  for (const std::int64_t position : {0, 1, 8, 33, 49}) {
    std::promise<infer::Look> answer;
    run.scheduler.look(
        tokens, position, [&](const infer::Look& look) { answer.set_value(look); },
        [&](const std::string& message) { ADD_FAILURE() << message; });
    EXPECT_EQ(answer.get_future().get().position, position);
  }
  EXPECT_THROW(run.scheduler.look(tokens, 50, nullptr, nullptr), Error);
  run.expect_no_leak();
}

// A chunk, a step and a look would be 25 ms.
TEST(Scheduler, LooksHaveTurnsOfTheirOwn) {
  Running run({.a_step = 8ms, .a_token = 100us}, {.max_gap = 20ms});
  const auto text = run.submit(prompt_of(1, 8), 4000);
  text->wait_for_tokens(3);
  run.model.longest_turn = 0;
  std::promise<void> all;
  std::atomic<int> looks = 0;
  for (std::int64_t i = 0; i < 6; ++i) {
    run.scheduler.look(
        prompt_of(2, 30), i,
        [&](const infer::Look&) {
          if (++looks == 6) all.set_value();
        },
        [&](const std::string& message) { ADD_FAILURE() << message; });
  }
  run.submit(prompt_of(3, 100), 1)->wait();
  all.get_future().wait();
  EXPECT_LE(run.model.longest_turn, 20'000);
  run.scheduler.cancel(run.record_ids.front());
}

TEST(Scheduler, CancelledLooksAreNotComputed) {
  Running run({.a_step = 1ms}, {.max_batch = 1});
  const auto busy = run.submit(prompt_of(1, 5), 4000);
  busy->wait_for_tokens(1);
  const auto never = [](const auto&) { ADD_FAILURE() << "a look that was cancelled"; };
  run.scheduler.cancel(run.scheduler.look(prompt_of(2, 500), 400, never, never));
  run.scheduler.cancel(run.record_ids.front());
  run.submit(prompt_of(3, 5), 1)->wait();
  EXPECT_EQ(run.scheduler.metrics().cancelled, 1);  // a look is no text
  EXPECT_LT(run.model.prefilled, 400);
  run.expect_no_leak();
}

// Prompts of 20 that grow to 12 pages each in 24: pre-emption after the log-probabilities were told.
TEST(Scheduler, PromptLogprobsAreReadOnceOnly) {
  Running run({.capacity = 24}, {.prefix_cache = false});
  std::vector<std::shared_ptr<Record>> texts;
  for (std::int64_t i = 0; i < 4; ++i) {
    texts.push_back(run.submit({.prompt = prompt_of(i, 20),
                                .sampling = {.temperature = 0, .logprobs = 1},
                                .max_tokens = 76,
                                .prompt_logprobs = true}));
  }
  for (std::int64_t i = 0; i < 4; ++i) {
    const Record& text = texts[static_cast<std::size_t>(i)]->wait();
    EXPECT_EQ(text.text_, run.expected(prompt_of(i, 20), 76)) << text.error_;
    EXPECT_EQ(text.logprobs_.size(), 19U);
  }
  EXPECT_GT(run.scheduler.metrics().preemptions, 0);
  EXPECT_EQ(run.scheduler.metrics().prompt_tokens, 80);
  run.expect_no_leak();
}

// A pass may take long: what comes meanwhile is in the queue.
TEST(Scheduler, WhatWasNotTakenInWaits) {
  RuleModel model;
  const auto tokenizer = data::byte_tokenizer();
  Scheduler scheduler(model, *tokenizer);
  for (int i = 0; i < 3; ++i) {
    scheduler.submit({.prompt = {1}, .max_tokens = 1}, std::make_shared<Record>());
    EXPECT_EQ(scheduler.metrics().waiting, i + 1);
  }
  scheduler.stop(60s);
  scheduler.run();
  EXPECT_EQ(scheduler.metrics().waiting, 0);
  EXPECT_EQ(scheduler.metrics().generated_tokens, 3);
}

TEST(Scheduler, MoreTextsThanMayEverWaitAreRefusedForGood) {
  Running run({}, {.max_queue = 3});
  std::vector<TextRequest> requests(4, {.prompt = {1}});
  std::vector<std::shared_ptr<TextSink>> sinks(4, std::make_shared<Record>());
  try {
    run.scheduler.submit(std::move(requests), std::move(sinks));
    FAIL() << "expected an error";
  } catch (const QueueFull&) {
    FAIL() << "trying again would not help";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at most 3 texts"), std::string::npos) << error.what();
  }
}

TEST(Scheduler, BadRequestsAreRefusedByName) {
  Running run;
  const auto message = [&](TextRequest request) -> std::string {
    try {
      run.submit(std::move(request));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({.prompt = {}}).find("prompt"), std::string::npos);
  EXPECT_NE(message({.prompt = {258}}).find("0 .. 257"), std::string::npos);
  EXPECT_NE(message({.prompt = {-1}}).find("0 .. 257"), std::string::npos);
  EXPECT_NE(message({.prompt = {1}, .max_tokens = -1}).find("max_tokens"), std::string::npos);
  EXPECT_NE(message({.prompt = {1}, .max_tokens = 4096}).find("4096"), std::string::npos);
  EXPECT_NE(message({.prompt = {1}, .sampling = {.top_p = 2}}).find("top_p"), std::string::npos);
  EXPECT_NE(message({.prompt = {1}, .stops = {""}}).find("stop"), std::string::npos);
}

// dense_below is 40: prompts below it and what they draw up to it are dense. Pages of one kind serve no text that would
// have computed them in the other way.
TEST(Scheduler, PagesBelowAndAboveDenseBelowAreNotMixed) {
  Running run({.dense_below = 40});
  const Tokens prompt = prompt_of(1, 60);
  const Tokens half(prompt.begin(), prompt.begin() + 32);
  run.submit(half, 30)->wait();
  const auto whole = run.submit(prompt, 1);
  whole->wait();
  EXPECT_EQ(whole->usage_.cached_tokens, 0);
  const auto again = run.submit(half, 1);
  again->wait();
  EXPECT_EQ(again->usage_.cached_tokens, 24);
}

// Everything at once, by a seed: arrivals, cancellations, a cache that is too small.
TEST(Scheduler, UnderRandomWorkTextsAreRightAndNothingLeaks) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    Running run({.capacity = 40, .max_chunk = 16, .max_batch = 6, .dense_below = seed == 3 ? 50 : 0},
                {.max_queue = 500});
    std::mt19937 random(seed);
    std::vector<std::pair<std::shared_ptr<Record>, std::string>> texts;
    std::vector<bool> cancelled;
    for (int i = 0; i < 150; ++i) {
      Tokens prompt = prompt_of(random() % 3, 1 + random() % 120);
      const std::int64_t count = random() % 60;
      texts.emplace_back(run.submit(prompt, count), run.expected(prompt, count));
      cancelled.push_back(false);
      if (random() % 4 == 0) {
        const std::size_t victim = random() % texts.size();
        run.scheduler.cancel(run.record_ids[victim]);
        cancelled[victim] = true;
      }
      if (random() % 8 == 0) std::this_thread::sleep_for(1ms);
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (cancelled[i]) continue;
      EXPECT_EQ(texts[i].first->wait().text_, texts[i].second)
          << seed << " " << i << " " << texts[i].first->error_;
    }
    run.expect_no_leak();
  }
}

}  // namespace
}  // namespace gsa::serve
