#include "data/packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "data/testing.h"

namespace gsa::data {
namespace {

using gsa::testing::TemporaryFolder;

// Documents of different lengths whose texts name them: 0, 11, 222, ...
void write_numbers(const std::filesystem::path& folder, int count) {
  const auto tokenizer = byte_tokenizer();
  DatasetWriter writer(folder, *tokenizer);
  for (int i = 0; i < count; ++i) {
    writer.add_document(std::string(static_cast<std::size_t>(i * 7 % 23 + 1), static_cast<char>('a' + i)));
  }
  writer.finish();
}

TEST(Shuffle, IsAPermutation) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 16, 17, 100, 1000}) {
    std::set<std::int64_t> seen;
    const Shuffle shuffle(count, 7, 3);
    for (std::int64_t i = 0; i < count; ++i) seen.insert(shuffle(i));
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
}

TEST(Shuffle, DependsOnSeedAndEpoch) {
  const auto order = [](std::uint64_t seed, std::int64_t epoch) {
    const Shuffle shuffle(100, seed, epoch);
    std::vector<std::int64_t> result;
    for (std::int64_t i = 0; i < 100; ++i) result.push_back(shuffle(i));
    return result;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_FALSE(std::ranges::is_sorted(order(1, 0)));
}

// Where every document first stands is spread evenly: no position is preferred.
TEST(Shuffle, SpreadsEvenly) {
  std::map<std::int64_t, int> first;
  for (std::int64_t epoch = 0; epoch < 2000; ++epoch) ++first[Shuffle(10, 5, epoch)(0)];
  EXPECT_EQ(first.size(), 10u);
  for (const auto& [document, times] : first) {
    EXPECT_GT(times, 120) << document;  // 200 expected, deviation 13
    EXPECT_LT(times, 280) << document;
  }
}

TEST(Packer, AnEpochUsesEveryTokenOnce) {
  const TemporaryFolder folder;
  write_numbers(folder / "d", 20);
  const Dataset dataset(folder / "d");
  for (const std::int64_t length : {1, 2, 7, 64, 1000}) {
    Packer packer(dataset, length, 3);
    std::map<std::int64_t, std::int64_t> found, expected;
    std::int64_t taken = 0;
    while (taken + length <= dataset.tokens()) {
      for (const std::int64_t token : packer.next().tokens) ++found[token];
      taken += length;
    }
    // The rest of the epoch, through a packer that reads one token at a time.
    Packer rest(dataset, 1, 3);
    rest.restore(packer.state());
    for (; taken < dataset.tokens(); ++taken) ++found[rest.next().tokens[0]];
    for (std::int64_t d = 0; d < dataset.documents(); ++d) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(dataset.document_size(d)));
      dataset.read(d, 0, ids);
      for (const std::int64_t id : ids) ++expected[id];
    }
    EXPECT_EQ(found, expected) << length;
    EXPECT_EQ(rest.state(), (PackerState{1, 0, 0}));
  }
}

TEST(Packer, TargetsAreTheNextTokensOfTheSameDocument) {
  const TemporaryFolder folder;
  write_numbers(folder / "d", 20);
  const Dataset dataset(folder / "d");
  Packer packer(dataset, 13, 1, Order::as_written);
  std::vector<std::int64_t> stream;
  for (std::int64_t d = 0; d < dataset.documents(); ++d) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(dataset.document_size(d)));
    dataset.read(d, 0, ids);
    stream.insert(stream.end(), ids.begin(), ids.end());
  }
  for (std::size_t at = 0; at + 13 <= stream.size(); at += 13) {
    const Row row = packer.next();
    ASSERT_EQ(row.sequences.front(), 0);
    for (std::size_t i = 0; i < 13; ++i) {
      EXPECT_EQ(row.tokens[i], stream[at + i]);
      EXPECT_EQ(row.targets[i], stream[at + i] == 257 ? -100 : stream[at + i + 1]);
      // A piece begins at the row's begin and where a document does.
      const bool begins = std::ranges::count(row.sequences, static_cast<std::int64_t>(i)) == 1;
      EXPECT_EQ(begins, i == 0 || stream[at + i] == 256);
    }
  }
}

TEST(Packer, ContinuesFromAnyState) {
  const TemporaryFolder folder;
  write_numbers(folder / "d", 11);
  const Dataset dataset(folder / "d");
  Packer one(dataset, 17, 9);
  for (int i = 0; i < 60; ++i) {
    Packer other(dataset, 17, 9);
    other.restore(one.state());
    const Row a = one.next(), b = other.next();
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_EQ(a.sequences, b.sequences);
  }
  EXPECT_GT(one.state().epoch, 1);
}

TEST(Packer, RefusesStatesOfAnotherDataset) {
  const TemporaryFolder folder;
  write_numbers(folder / "d", 3);
  const Dataset dataset(folder / "d");
  Packer packer(dataset, 8, 1);
  EXPECT_THROW(packer.restore({0, 3, 0}), Error);
  EXPECT_THROW(packer.restore({-1, 0, 0}), Error);
  packer.restore({0, 0, 1000});
  EXPECT_THROW(packer.next(), Error);
  EXPECT_THROW(Packer(dataset, 0, 1), Error);
}

}  // namespace
}  // namespace gsa::data
