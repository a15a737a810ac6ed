#include "infer/core/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "infer/core/cache_shape.h"
#include "model/cost.h"
#include "model/errors.h"

namespace gsa::infer {
namespace {

using gsa::testing::expect_error;

TEST(PagePool, GivesEveryPageOnceAndTakesItBack) {
  PagePool pool(16);
  pool.grow(3);
  std::set<std::int32_t> pages = {pool.take(), pool.take(), pool.take()};
  EXPECT_EQ(pages, (std::set<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.available(), 0);
  pool.release(1);
  EXPECT_EQ(pool.in_use(), 2);
  EXPECT_EQ(pool.take(), 1);
}

TEST(PagePool, AGrownPoolKeepsItsPages) {
  PagePool pool(16);
  pool.grow(2);
  EXPECT_EQ(pool.take(), 0);
  pool.grow(4);
  EXPECT_EQ(pool.capacity(), 4);
  EXPECT_EQ(pool.users(0), 1);
  // A free page of before comes before a new one.
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.take(), 2);
}

TEST(PagePool, ASharedPageIsFreeWhenItsLastUserLetsGo) {
  PagePool pool(16);
  pool.grow(1);
  const std::int32_t page = pool.take();
  pool.share(page);
  pool.release(page);
  EXPECT_EQ(pool.in_use(), 1);
  pool.release(page);
  EXPECT_EQ(pool.in_use(), 0);
}

TEST(PagePool, IdleIsWhatKeepersAloneHold) {
  PagePool pool(16);
  pool.grow(2);
  const std::int32_t page = pool.take();
  EXPECT_EQ(pool.idle(), 0);
  pool.keep(page);
  EXPECT_EQ(pool.idle(), 0);
  pool.release(page);
  EXPECT_EQ(pool.idle(), 1);
  EXPECT_TRUE(pool.is_idle(page));
  pool.keep(page);  // a second one, and somebody who uses it
  pool.share(page);
  EXPECT_EQ(pool.idle(), 0);
  pool.unkeep(page);
  pool.release(page);
  EXPECT_EQ(pool.idle(), 1);
  pool.unkeep(page);
  EXPECT_EQ(pool.idle(), 0);
  EXPECT_EQ(pool.in_use(), 0);
  EXPECT_FALSE(pool.is_idle(page));
}

TEST(Sequence, EmptyOneForksAndTruncates) {
  const auto pool = std::make_shared<PagePool>(16);
  Sequence sequence(pool);
  EXPECT_EQ(sequence.fork().length(), 0);
  sequence.truncate(0);
  expect_error([&] { sequence.truncate(1); }, {"truncate", "0 .. 0", "got 1"});
  expect_error([&] { sequence.fork(-1); }, {"fork", "0 .. 0", "got -1"});
}

TEST(CacheShape, BytesAreThoseOfTheCostModel) {
  for (const char* preset : {"tiny", "small", "paper-1.7b", "llama-7b-class"}) {
    for (const std::int64_t every : {1, 3}) {
      nn::ModelConfig config = nn::ModelConfig::preset(preset);
      config.index_layers = nn::every_nth_layer(config.layers, every);
      const CacheShape shape = cache_shape(config, {.dtype = DType::bf16});
      const nn::Cost cost = nn::estimate_cost(config, {.length = 1000, .dtype = DType::bf16});
      EXPECT_DOUBLE_EQ(static_cast<double>(1000 * shape.bytes_per_token()), cost.cache.total())
          << preset << ", an indexer every " << every;
    }
  }
}

TEST(CacheShape, EightBitKeysTakeOneByteANumberAndAScale) {
  const nn::ModelConfig config = nn::ModelConfig::preset("paper-1.7b");  // 24 layers, 4 heads of 128, d_I 64
  EXPECT_EQ(cache_shape(config, {}).bytes_per_token(), 24 * (2 * 4 * 128 * 2 + 64 * 2));
  EXPECT_EQ(cache_shape(config, {.index_int8 = true}).bytes_per_token(), 24 * (2 * 4 * 128 * 2 + 64 + 4));
  EXPECT_EQ(cache_shape(config, {.selects = false}).bytes_per_token(), 24 * 2 * 4 * 128 * 2);
  expect_error([&] { cache_shape(config, {.selects = false, .index_int8 = true}); },
               {"index_int8", "indexer"});
}

TEST(CacheShape, LayersThatShareASelectionKeepNoIndexerKeys) {
  nn::ModelConfig config = nn::ModelConfig::preset("paper-1.7b");
  config.index_layers = nn::every_nth_layer(24, 4);
  const CacheShape shape = cache_shape(config, {});
  EXPECT_EQ(shape.bytes_per_token(), 24 * 2 * 4 * 128 * 2 + 6 * 64 * 2);
  EXPECT_EQ(cache_shape(config, {.index_int8 = true}).bytes_per_token(), 24 * 2 * 4 * 128 * 2 + 6 * (64 + 4));
  EXPECT_EQ(cache_shape(config, {.selects = false}).bytes_per_token(), 24 * 2 * 4 * 128 * 2);
  EXPECT_TRUE(shape.has_index(8));
  EXPECT_FALSE(shape.has_index(9));
  CacheShape wrong = shape;
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{1, 2}, {0, 4, 4}, {0, 24}, {0, -1}}) {
    wrong.index_layers = layers;
    expect_error([&] { wrong.validate(); }, {"index_layers"});
  }
  wrong.index_layers = {0};
  wrong.index_head_size = 0;
  expect_error([&] { wrong.validate(); }, {"index_layers", "without an indexer"});
}

TEST(CacheShape, PageSizesArePowersOfTwo) {
  const nn::ModelConfig config = nn::ModelConfig::preset("tiny");
  for (const std::int64_t size : {0, 4, 12, 65, 2048}) {
    expect_error([&] { cache_shape(config, {.page_size = size}); }, {"page_size", std::to_string(size)});
  }
  EXPECT_EQ(cache_shape(config, {.page_size = 8}).pages_for(17), 3);
}

TEST(FormatBytes, ThreeDigitsAndAUnit) {
  EXPECT_EQ(format_bytes(800), "800 bytes");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(format_bytes((std::int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(123 * (std::int64_t{1} << 20)), "123 MiB");
}

}  // namespace
}  // namespace gsa::infer
