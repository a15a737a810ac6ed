// Documents and windows: every prediction counts once, with the context it should have.
#include "eval/windows.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "data/dataset.h"
#include "eval/numbered_documents.h"
#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::eval {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;
using testing::NumberedDocuments;

std::vector<WindowBatch> all_batches(const Documents& documents, const WindowOptions& options) {
  WindowReader reader(documents, options);
  std::vector<WindowBatch> batches;
  while (auto batch = reader.next()) batches.push_back(std::move(*batch));
  return batches;
}

struct WindowCase {
  std::int64_t length, stride, batch_tokens;
};

class Windows : public ::testing::TestWithParam<WindowCase> {};

TEST_P(Windows, CountEveryPredictionOnceWithEnoughContext) {
  const auto [length, stride, batch_tokens] = GetParam();
  const std::vector<std::int64_t> sizes = {1, 2, 89, 3, 31, 32, 33, 63, 1};
  const NumberedDocuments documents(sizes);
  std::map<std::int64_t, int> counted;
  std::int64_t predictions = 0;
  for (const WindowBatch& batch : all_batches(documents, {length, stride, batch_tokens, 0})) {
    ASSERT_EQ(batch.tokens.size(), batch.targets.size());
    ASSERT_EQ(batch.starts.back(), static_cast<std::int64_t>(batch.tokens.size()));
    EXPECT_TRUE(batch.windows() == 1 || batch.starts.back() <= batch_tokens);
    predictions += batch.predictions;
    for (std::int64_t w = 0; w < batch.windows(); ++w) {
      const std::int64_t begin = batch.starts[static_cast<std::size_t>(w)];
      const std::int64_t end = batch.starts[static_cast<std::size_t>(w) + 1];
      ASSERT_GT(end, begin);
      EXPECT_LE(end - begin, length);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t token = batch.tokens[static_cast<std::size_t>(i)];
        const std::int64_t target = batch.targets[static_cast<std::size_t>(i)];
        if (i > begin) {
          EXPECT_EQ(token, batch.tokens[static_cast<std::size_t>(i) - 1] + 1);
        }
        if (target < 0) continue;
        EXPECT_EQ(target, token + 1);  // ids count up through a document
        ++counted[target];
        const std::int64_t in_document = documents.offset_of(target);
        EXPECT_GE(i - begin + 1, std::min(in_document, length - stride + 1));
      }
    }
  }
  std::int64_t wanted = 0;
  for (const std::int64_t size : sizes) wanted += size - 1;
  EXPECT_EQ(predictions, wanted);
  EXPECT_EQ(static_cast<std::int64_t>(counted.size()), wanted);
  for (const auto& [target, times] : counted) EXPECT_EQ(times, 1) << target;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Windows,
                         ::testing::Values(WindowCase{32, 32, 64}, WindowCase{32, 8, 64},
                                           WindowCase{32, 31, 1}, WindowCase{33, 1, 100}, WindowCase{1, 1, 7},
                                           WindowCase{97, 50, 97}, WindowCase{1000, 1000, 4096}),
                         [](const auto& shape) {
                           return concat("length_", shape.param.length, "_stride_", shape.param.stride,
                                         "_batch_", shape.param.batch_tokens);
                         });

TEST(WindowLimits, StopWithTheWindowThatReachesThem) {
  const NumberedDocuments documents({50, 50});
  std::int64_t predictions = 0;
  for (const auto& batch : all_batches(documents, {16, 16, 16, 20})) predictions += batch.predictions;
  EXPECT_EQ(predictions, 32);
  EXPECT_EQ(WindowReader(documents, {16, 16, 16, 20}).predictions(), 20);
  EXPECT_EQ(WindowReader(documents, {16, 16, 16, 0}).predictions(), 98);
}

TEST(WindowErrors, SayWhatIsExpected) {
  const NumberedDocuments documents({50}), single({1, 1});
  expect_error([&] { WindowReader(documents, {16, 17, 64, 0}); }, {"stride", "1 .. 16", "17"});
  expect_error([&] { WindowReader(documents, {0, 0, 64, 0}); }, {"length", "at least 1"});
  expect_error([&] { WindowReader(single, {16, 16, 64, 0}); }, {"at least two tokens", "none"});
}

TEST(TextBytes, AreThoseOfThePredictedText) {
  const auto documents = text_documents({"lamp", "höhle"}, data::byte_tokenizer());
  // bos and eos have no bytes, and bos is never predicted.
  std::int64_t predictions = 0, bytes = 0;
  for (const auto& batch : all_batches(*documents, {3, 2, 8, 0})) {
    predictions += batch.predictions;
    bytes += batch.text_bytes;
  }
  EXPECT_EQ(predictions, 4 + 1 + 6 + 1);
  EXPECT_EQ(bytes, 4 + 6);
}

TEST(DatasetDocuments, AreReadApartOrJoined) {
  const TemporaryFolder folder;
  const auto tokenizer = data::byte_tokenizer();
  const std::vector<std::string> texts = {"one", "twenty", "x", "three hundred"};
  {
    data::DatasetWriter writer(folder / "data", *tokenizer);
    for (const std::string& text : texts) writer.add_document(text);
    writer.finish();
  }
  const auto apart = dataset_documents(folder / "data");
  ASSERT_EQ(apart->count(), 4);
  EXPECT_EQ(apart->size(1), 8);
  const auto joined = dataset_documents(folder / "data", Joining::all);
  ASSERT_EQ(joined->count(), 1);
  std::vector<std::int64_t> all;
  for (std::int64_t d = 0; d < 4; ++d) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(apart->size(d)));
    apart->read(d, 0, ids);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  ASSERT_EQ(joined->size(0), static_cast<std::int64_t>(all.size()));
  for (std::size_t begin = 0; begin < all.size(); ++begin) {
    for (std::size_t end = begin; end <= all.size(); ++end) {
      std::vector<std::int64_t> part(end - begin);
      joined->read(0, static_cast<std::int64_t>(begin), part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

TEST(FileDocument, IsTheWholeFileBetweenMarks) {
  const TemporaryFolder folder;
  std::ofstream(folder / "text.txt") << "two\n\nparagraphs\n";
  const auto documents = file_document(folder / "text.txt", data::byte_tokenizer());
  ASSERT_EQ(documents->count(), 1);
  EXPECT_EQ(documents->size(0), 16 + 2);
  std::ofstream(folder / "blank.txt") << " \n\n";
  expect_error([&] { file_document(folder / "blank.txt", data::byte_tokenizer()); },
               {"blank.txt", "expected text", "empty or blank"});
  expect_error([&] { file_document(folder / "missing.txt", data::byte_tokenizer()); }, {"missing.txt"});
}

}  // namespace
}  // namespace gsa::eval
