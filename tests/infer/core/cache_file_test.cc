// Files of caches: what is written comes back, and nothing else is taken for one.
#include "infer/core/cache_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/crc32c.h"
#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::infer {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

constexpr std::uint32_t kModel = 0x0badcafe;
const std::vector<std::int64_t> kTokens = {5, 0, 7};

CacheShape small_shape(bool int8 = false) {
  return {.layers = 2,
          .kv_heads = 1,
          .head_size = 4,
          .index_head_size = 2,
          .dtype = DType::f32,
          .index_int8 = int8,
          .page_size = 8};
}

// Bytes that tell every tensor and place apart.
std::string bytes_of(const StoredTensor& tensor) {
  std::int64_t count = size_of(tensor.type);
  for (const std::int64_t size : tensor.shape) count *= size;
  std::string bytes(static_cast<std::size_t>(count), '\0');
  std::mt19937 random(crc32c(std::as_bytes(std::span(tensor.name))));
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::map<std::string, std::string> contents(const CacheShape& shape) {
  std::map<std::string, std::string> all;
  for (const StoredTensor& tensor : cache_tensors(shape, static_cast<std::int64_t>(kTokens.size()))) {
    all[tensor.name] = bytes_of(tensor);
  }
  return all;
}

std::string written(const CacheShape& shape) {
  const TemporaryFolder folder;
  const auto all = contents(shape);
  write_cache_file(folder / "cache", shape, kModel, kTokens,
                   [&](const std::string& name) { return std::as_bytes(std::span(all.at(name))); });
  return read_file(folder / "cache", 1 << 20);
}

CacheFile parsed(const std::string& bytes) {
  return parse_cache_file(std::as_bytes(std::span(bytes)), "test.cache");
}

bool is_whole(const CacheFile& file, const CacheShape& shape) {
  const auto all = contents(shape);
  CacheShape without_pages = shape;
  without_pages.page_size = file.shape.page_size;
  return file.tokens == kTokens && file.shape == without_pages && file.rows.size() == all.size() &&
         std::all_of(all.begin(), all.end(), [&](const auto& item) {
           const auto found = file.rows.find(item.first);
           return found != file.rows.end() && found->second.size() == item.second.size() &&
                  std::memcmp(found->second.data(), item.second.data(), item.second.size()) == 0;
         });
}

std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return bytes.replace(at, from.size(), to);
}

TEST(CacheFile, ComesBackAsItWas) {
  for (const bool int8 : {false, true}) {
    const std::string bytes = written(small_shape(int8));
    const CacheFile file = parsed(bytes);
    EXPECT_EQ(file.model, kModel);
    EXPECT_TRUE(is_whole(file, small_shape(int8)));
    check_fits(file, small_shape(int8), kModel, "test.cache");
  }
}

TEST(CacheFile, IndexerKeysOfSomeLayers) {
  for (const bool int8 : {false, true}) {
    CacheShape shape = small_shape(int8);
    shape.layers = 4;
    shape.index_layers = {0, 3};
    const std::string bytes = written(shape);
    const CacheFile file = parsed(bytes);
    EXPECT_TRUE(is_whole(file, shape));
    EXPECT_FALSE(file.rows.contains("layers.1.index_k"));
    check_fits(file, shape, kModel, "test.cache");
    CacheShape other = shape;
    other.index_layers = {0, 2};
    expect_error([&] { check_fits(file, other, kModel, "test.cache"); },
                 {"indexer keys in layers 0, 2", "got layers 0, 3"});
    other.index_layers.clear();
    expect_error([&] { check_fits(file, other, kModel, "test.cache"); },
                 {"in every layer", "got layers 0, 3"});
    // A name that no cache of four layers has.
    expect_error([&] { parsed(replaced(bytes, "layers.3.index_k", "layers.4.index_k")); },
                 {"trailer.crc32c"});
  }
}

TEST(CacheFile, WithoutIndexerAndInEveryType) {
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CacheShape shape = small_shape();
    shape.dtype = type;
    shape.index_head_size = 0;
    EXPECT_TRUE(is_whole(parsed(written(shape)), shape)) << name_of(type);
  }
}

// A changed bit anywhere is noticed, or changes nothing that counts (the space after the header's text; the
// model's fingerprint, which the engine compares with its own).
TEST(CacheFile, NoChangedByteGoesUnnoticed) {
  const std::string good = written(small_shape());
  std::size_t refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    try {
      const CacheFile file = parsed(bad);
      EXPECT_TRUE(is_whole(file, small_shape())) << "byte " << i;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, good.size() * 9 / 10);
}

TEST(CacheFile, CutOffAnywhereIsRefused) {
  const std::string good = written(small_shape());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(parsed(good.substr(0, size)), Error) << size;
  }
  EXPECT_THROW(parsed(good + '\0'), Error);
}

TEST(CacheFile, SaysWhatIsWrong) {
  const std::string good = written(small_shape());
  expect_error([&] { parsed(replaced(good, "gsa-cache", "gsa-trash")); },
               {"test.cache", "gsa-cache", "gsa-trash"});
  expect_error([&] { parsed(replaced(good, "\"version\":\"1\"", "\"version\":\"2\"")); },
               {"version 1", "version 2"});
  expect_error([&] { parsed(replaced(good, "0badcafe", "0BADCAFE")); }, {"hexadecimal", "0BADCAFE"});
  expect_error([&] { parsed(replaced(good, "\"tokens\"", "\"tokenz\"")); }, {"tensor 'tokens'", "none"});
  expect_error([&] { parsed(replaced(good, "layers.1.v", "layers.1.w")); }, {"layers.1.v", "none"});
  std::string damaged = good;
  damaged[good.size() - 40] = static_cast<char>(damaged[good.size() - 40] ^ 4);
  expect_error([&] { parsed(damaged); }, {"checksum", "damaged"});
}

TEST(CacheFile, ASafetensorsFileOfAnotherKindIsRefused) {
  const TemporaryFolder folder;
  const std::string four(4, '\0');
  write_safetensors(folder / "model.safetensors",
                    {.tensors = {{.name = "weight", .type = StoredType::f32, .shape = {1}}},
                     .metadata = {{"format", "pt"}},
                     .bytes = [&](const StoredTensor&) { return std::as_bytes(std::span(four)); }});
  expect_error([&] { parsed(read_file(folder / "model.safetensors", 1000)); }, {"gsa-cache", "pt"});
}

TEST(CacheFile, ForeignModelsAndShapesAreNamed) {
  const std::string bytes = written(small_shape());
  const CacheFile file = parsed(bytes);
  const auto refused = [&](const std::function<void(CacheShape&)>& change,
                           std::initializer_list<std::string> parts) {
    CacheShape shape = small_shape();
    change(shape);
    expect_error([&] { check_fits(file, shape, kModel, "test.cache"); }, parts);
  };
  refused([](CacheShape& s) { s.layers = 3; }, {"test.cache", "layers: 3", "got 2"});
  refused([](CacheShape& s) { s.kv_heads = 2; }, {"heads: 2", "got 1"});
  refused([](CacheShape& s) { s.dtype = DType::bf16; }, {"bfloat16", "got float32"});
  refused([](CacheShape& s) { s.index_int8 = true; }, {"8", "got 32"});
  refused([](CacheShape& s) { s.index_head_size = 0; }, {"size 0", "got 2"});
  expect_error([&] { check_fits(file, small_shape(), 1, "test.cache"); },
               {"00000001", "another model", "0badcafe"});
}

}  // namespace
}  // namespace gsa::infer
