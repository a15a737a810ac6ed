#include "serve/core/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace gsa::serve {
namespace {

using infer::PagePool;
using Tokens = std::vector<std::int64_t>;
using Pages = std::vector<std::int32_t>;

constexpr std::int64_t kPage = 4;

class PrefixCacheTest : public ::testing::Test {
 protected:
  PrefixCacheTest() { pool_->grow(64); }

  // A text that has been read: its pages are in the cache, and nobody else's.
  Pages leave(const Tokens& tokens, bool sparse = true) {
    Pages pages;
    for (std::size_t i = 0; i + kPage <= tokens.size(); i += kPage) pages.push_back(pool_->take());
    cache_.insert(sparse, std::span(tokens).first(pages.size() * kPage), pages);
    for (const std::int32_t page : pages) pool_->release(page);
    return pages;
  }

  static Tokens run(std::int64_t begin, std::int64_t count) {
    Tokens tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), begin);
    return tokens;
  }

  std::shared_ptr<PagePool> pool_ = std::make_shared<PagePool>(kPage);
  PrefixCache cache_{pool_};
};

TEST_F(PrefixCacheTest, FindsTheLongestBeginningInFullPages) {
  const Pages pages = leave(run(0, 11));  // two full pages, and three tokens that are none
  EXPECT_EQ(cache_.pages(), 2);
  EXPECT_EQ(cache_.find(true, run(0, 100)), pages);
  EXPECT_EQ(cache_.find(true, run(0, 8)), pages);
  EXPECT_EQ(cache_.find(true, run(0, 7)), Pages{pages[0]});
  EXPECT_TRUE(cache_.find(true, run(0, 3)).empty());
  EXPECT_TRUE(cache_.find(true, run(1, 8)).empty());  // the same tokens elsewhere
  Tokens other = run(0, 8);
  other[7] = 99;
  EXPECT_EQ(cache_.find(true, other), Pages{pages[0]});
}

TEST_F(PrefixCacheTest, DenseAndSparsePagesAreKeptApart) {
  const Pages sparse = leave(run(0, 4), true), dense = leave(run(0, 8), false);
  EXPECT_EQ(cache_.find(true, run(0, 8)), sparse);
  EXPECT_EQ(cache_.find(false, run(0, 8)), dense);
}

TEST_F(PrefixCacheTest, WhatIsKnownStaysAsItIs) {
  const Pages first = leave(run(0, 8)), second = leave(run(0, 12));
  EXPECT_EQ(cache_.pages(), 3);
  EXPECT_EQ(pool_->in_use(), 3);
  EXPECT_EQ(cache_.find(true, run(0, 12)), (Pages{first[0], first[1], second[2]}));
}

TEST_F(PrefixCacheTest, LetsGoOfWhatWasUsedLongestAgoFromItsEnd) {
  const Pages old = leave(run(0, 8)), recent = leave(run(100, 8));
  EXPECT_EQ(cache_.evict(1), 1);
  EXPECT_EQ(cache_.find(true, run(0, 8)), Pages{old[0]});  // which makes it the one used last
  EXPECT_EQ(cache_.evict(2), 2);
  EXPECT_TRUE(cache_.find(true, run(100, 8)).empty());
  EXPECT_EQ(cache_.find(true, run(0, 8)), Pages{old[0]});
  EXPECT_EQ(cache_.evict(5), 1);
  EXPECT_EQ(pool_->in_use(), 0);
}

TEST_F(PrefixCacheTest, PagesOfRunningTextsAreNotFreedByEviction) {
  const Tokens tokens = run(0, 8);
  leave(tokens);
  infer::Sequence running(pool_);
  running.adopt(cache_.find(true, tokens), tokens);
  leave(run(100, 4));
  EXPECT_EQ(cache_.idle(), 1);
  EXPECT_EQ(cache_.evict(3), 1);
  EXPECT_EQ(pool_->in_use(), 2);
  // Nor are they forgotten: who begins with them finds them, now and when the text has ended.
  EXPECT_EQ(cache_.find(true, tokens), running.pages());
  running.clear();
  EXPECT_EQ(cache_.find(true, tokens).size(), 2U);
  EXPECT_EQ(cache_.evict(3), 2);
  EXPECT_EQ(pool_->in_use(), 0);
}

// The end of a text whose beginning is another's: both were read side by side, and the other has ended.
TEST_F(PrefixCacheTest, IdlePagesAboveUsedOnesAreFreed) {
  leave(run(0, 8));
  leave(run(100, 4));
  std::vector<std::int32_t> own = {pool_->take(), pool_->take(), pool_->take()};
  cache_.insert(true, run(0, 12), own);
  EXPECT_EQ(cache_.pages(), 4);
  EXPECT_EQ(cache_.idle(), 3);
  EXPECT_EQ(cache_.evict(1), 1);  // not by way of the page that is in use
  EXPECT_EQ(cache_.find(true, run(0, 12)).size(), 3U);
  EXPECT_EQ(cache_.evict(2), 2);
  EXPECT_EQ(cache_.pages(), 0);
  for (const std::int32_t page : own) pool_->release(page);
  EXPECT_EQ(pool_->in_use(), 0);
}

// What is idle goes first, although it was used after what a text still has.
TEST_F(PrefixCacheTest, TheLimitKeepsWhatTextsUse) {
  PrefixCache small(pool_, 3);
  const Pages used = {pool_->take(), pool_->take()}, idle = {pool_->take()};
  small.insert(true, run(0, 8), used);
  small.insert(true, run(100, 4), idle);
  pool_->release(idle[0]);
  const Pages more = {pool_->take()};
  EXPECT_EQ(small.insert(true, run(200, 4), more), 1);
  EXPECT_EQ(small.find(true, run(0, 8)), used);
  EXPECT_TRUE(small.find(true, run(100, 4)).empty());
  for (const std::int32_t page : {used[0], used[1], more[0]}) pool_->release(page);
}

TEST_F(PrefixCacheTest, HoldsNoMorePagesThanItMay) {
  PrefixCache small(pool_, 3);
  const auto leave_in_small = [&](const Tokens& tokens) {
    Pages pages;
    for (std::size_t i = 0; i + kPage <= tokens.size(); i += kPage) pages.push_back(pool_->take());
    EXPECT_EQ(small.insert(true, tokens, pages), 0);  // they are still in use
    for (const std::int32_t page : pages) pool_->release(page);
  };
  leave_in_small(run(0, 8));
  leave_in_small(run(0, 24));  // its first three pages
  EXPECT_EQ(small.pages(), 3);
  EXPECT_EQ(small.find(true, run(0, 24)).size(), 3U);
  EXPECT_EQ(pool_->in_use(), 3);
  // What was used longest ago goes for what is new.
  const std::int32_t page = pool_->take();
  EXPECT_EQ(small.insert(true, run(100, 4), Pages{page}), 1);
  pool_->release(page);
  EXPECT_EQ(small.find(true, run(0, 24)).size(), 2U);
  EXPECT_EQ(small.find(true, run(100, 4)), Pages{page});
  EXPECT_EQ(pool_->in_use(), 3);

  PrefixCache none(pool_, 0);
  const std::int32_t other = pool_->take();
  none.insert(true, run(0, 4), Pages{other});
  pool_->release(other);
  EXPECT_TRUE(none.find(true, run(0, 4)).empty());
  EXPECT_EQ(pool_->in_use(), 3);
}

// Against a plain list of (tokens, page), under random work.
TEST_F(PrefixCacheTest, NeverGivesAPageForOtherTokens) {
  std::mt19937 random(7);
  std::vector<Tokens> held(64);  // what a page was filled with, and everything before it
  for (int step = 0; step < 4000; ++step) {
    Tokens tokens(random() % 25);
    for (std::int64_t& token : tokens) token = random() % 2;
    const bool sparse = random() % 2 == 0;
    Pages found = cache_.find(sparse, tokens);
    infer::Sequence sequence(pool_);
    sequence.adopt(found, std::span(tokens).first(found.size() * kPage));
    for (std::size_t i = 0; i < found.size(); ++i) {
      Tokens expected(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * kPage));
      expected.push_back(sparse ? 1 : 0);
      ASSERT_EQ(held[static_cast<std::size_t>(found[i])], expected) << "step " << step;
    }
    const std::size_t wanted = tokens.size() / kPage;
    const auto missing = static_cast<std::int64_t>(wanted - found.size());
    if (pool_->available() < missing) cache_.evict(missing - pool_->available());
    ASSERT_GE(pool_->available(), missing);
    Pages own;
    while (found.size() < wanted) {
      own.push_back(pool_->take());
      found.push_back(own.back());
      Tokens filled(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(found.size() * kPage));
      filled.push_back(sparse ? 1 : 0);
      held[static_cast<std::size_t>(own.back())] = filled;
    }
    cache_.insert(sparse, std::span(tokens).first(wanted * kPage), found);
    for (const std::int32_t page : own) pool_->release(page);
    if (random() % 16 == 0) cache_.evict(random() % 8);
    ASSERT_EQ(cache_.idle() + static_cast<std::int64_t>(sequence.pages().size()), pool_->in_use());
  }
}

}  // namespace
}  // namespace gsa::serve
