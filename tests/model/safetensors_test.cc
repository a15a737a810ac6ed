#include "core/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "model/errors.h"
#include "model/temporary_folder.h"

namespace gsa::testing {
namespace {

// A file with this header, the length in front, and so many bytes of data (0, 1, 2, ...).
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

SafetensorsHeader parse_header(const std::string& file, const SafetensorsLimits& limits = {}) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x.safetensors", limits);
}

void expect_refused(const std::string& file, std::initializer_list<std::string> parts) {
  expect_error([&] { parse_header(file); }, {"file 'x.safetensors'", "expected", "got"});
  expect_error([&] { parse_header(file); }, parts);
}

constexpr const char* kTwo =
    R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"__metadata__":{"format":"pt"},)"
    R"("a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})";

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const SafetensorsHeader header = parse_header(file_of(kTwo, 32));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].type, StoredType::f64);
  EXPECT_TRUE(header.tensors[0].shape.empty());
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].begin, 8);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_begin, 8 + static_cast<std::int64_t>(std::strlen(kTwo)));
}

TEST(Safetensors, TypesOfTensorsGoThereAndBack) {
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const StoredType stored = stored_type_of(type);
    EXPECT_EQ(size_of(stored), static_cast<std::int64_t>(size_of(type)));
    EXPECT_EQ(dtype_of(stored), type);
  }
  EXPECT_STREQ(name_of(stored_type_of(DType::bf16)), "BF16");
  EXPECT_EQ(dtype_of(StoredType::i64), std::nullopt);
  expect_error([] { stored_type_of(static_cast<DType>(99)); }, {"dtype", "float32", "99"});
}

TEST(Safetensors, EmptyTensorsAndEmptyFilesAreFiles) {
  EXPECT_TRUE(parse_header(file_of("{}", 0)).tensors.empty());
  EXPECT_TRUE(parse_header(file_of("{}      ", 0)).tensors.empty());  // padded, as writers do
  const auto header = parse_header(file_of(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", 0));
  EXPECT_EQ(header.tensors.size(), 1u);
}

TEST(Safetensors, WhatIsNoSuchFile) {
  expect_refused("", {"8 bytes of length", "0 bytes in all"});
  expect_refused("1234567", {"7 bytes"});
  expect_refused(std::string(8, '\xff'), {"at most 100000000 bytes", "18446744073709551615"});
  expect_refused(file_of("{}", 0).substr(0, 9), {"header of 2 bytes", "has 1 after them"});
  expect_refused(file_of("", 0), {"starts with '{'"});
  expect_refused(file_of(" {}", 0), {"starts with '{'"});
  expect_refused(file_of("[]", 0), {"starts with '{'"});
  expect_refused(file_of("{", 0), {"JSON", "an error at byte"});
  expect_refused(file_of("{}x", 0), {"JSON"});
  expect_refused(file_of("{}{}", 0), {"JSON"});
  expect_refused(file_of(std::string("{}\0\0", 4), 0), {"a byte 0"});
  expect_refused(file_of("{\"\xff\":{}}", 0), {"JSON"});
  expect_refused(file_of("{}", 1), {"0 bytes of tensors", "got 1"});
  // 100 MB is checked before the file is: a length alone must not allocate.
  std::string huge(8, '\0');
  const std::uint64_t length = 100'000'001;
  std::memcpy(huge.data(), &length, 8);
  expect_refused(huge + "{}", {"at most 100000000", "100000001"});
}

struct BadTensor {
  const char* name;
  const char* value;  // of tensor "t", or a whole header
  const char* part;
};

class BadTensors : public ::testing::TestWithParam<BadTensor> {};

TEST_P(BadTensors, AreRefusedWithTheReason) {
  const std::string value = GetParam().value;
  const std::string header = value.starts_with("HEADER") ? value.substr(6) : "{\"t\":" + value + "}";
  expect_refused(file_of(header, 8), {GetParam().part});
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, BadTensors,
    ::testing::Values(
        BadTensor{"number", "3", "an object"}, BadTensor{"list", "[]", "an object"},
        BadTensor{"null", "null", "an object"}, BadTensor{"empty", "{}", "dtype, shape and data_offsets"},
        BadTensor{"no_dtype", R"({"shape":[2],"data_offsets":[0,8]})", "dtype, shape and data_offsets"},
        BadTensor{"no_offsets", R"({"shape":[2],"dtype":"F32"})", "dtype, shape and data_offsets"},
        BadTensor{"extra_key", R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", "\"x\""},
        BadTensor{"dtype_number", R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})", "text as dtype"},
        BadTensor{"dtype_unknown", R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", "\"F33\""},
        BadTensor{"dtype_half_bytes", R"({"dtype":"F4","shape":[2],"data_offsets":[0,8]})", "whole bytes"},
        BadTensor{"shape_text", R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})", "a list as shape"},
        BadTensor{"shape_negative", R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "-2"},
        BadTensor{"shape_fraction", R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "2.0"},
        BadTensor{"shape_nested", R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})", "a list"},
        BadTensor{"shape_true", R"({"dtype":"F32","shape":[true],"data_offsets":[0,8]})", "true"},
        BadTensor{"shape_null", R"({"dtype":"F32","shape":[null],"data_offsets":[0,8]})", "null"},
        BadTensor{"shape_huge", R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})",
                  "63 bits"},
        BadTensor{"shape_beyond", R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]})",
                  "got"},
        BadTensor{"product_wraps", R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})",
                  "63 bits"},
        BadTensor{"product_wraps_to_fit",
                  R"({"dtype":"F32","shape":[2147483649,2147483648,2],"data_offsets":[0,8]})", "63 bits"},
        BadTensor{"rank", R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]})",
                  "8 dimensions"},
        BadTensor{"offsets_one", R"({"dtype":"F32","shape":[2],"data_offsets":[8]})", "two data_offsets"},
        BadTensor{"offsets_three", R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})",
                  "two data_offsets"},
        BadTensor{"offsets_object", R"({"dtype":"F32","shape":[2],"data_offsets":{}})",
                  "a list as data_offsets"},
        BadTensor{"offsets_reversed", R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "no gap"},
        BadTensor{"too_short", R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "8 bytes for F32 [2]"},
        BadTensor{"too_long", R"({"dtype":"F32","shape":[2],"data_offsets":[0,12]})", "offsets 0 to 12"},
        BadTensor{"gap_in_front", R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "bytes from 0 on"},
        BadTensor{"rest_unclaimed", R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})",
                  "4 bytes of tensors"},
        BadTensor{"twice_dtype", R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})",
                  "a second"},
        BadTensor{
            "twice_tensor",
            R"(HEADER{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            "every name once"},
        BadTensor{
            "overlap",
            R"(HEADER{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            "no overlap"},
        BadTensor{
            "gap",
            R"(HEADER{"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            "no gap"},
        BadTensor{"metadata_number", R"(HEADER{"__metadata__":{"a":1}})", "text as __metadata__"},
        BadTensor{"metadata_text", R"(HEADER{"__metadata__":"a"})", "object as __metadata__"},
        BadTensor{"metadata_twice", R"(HEADER{"__metadata__":{},"__metadata__":{}})", "a second"},
        BadTensor{"metadata_key_twice", R"(HEADER{"__metadata__":{"a":"","a":""}})", "a second"},
        BadTensor{"metadata_nested", R"(HEADER{"__metadata__":{"a":{}}})", "text as __metadata__"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, OwnLimitsHold) {
  SafetensorsLimits limits;
  limits.tensors = 1;
  expect_error([&] { parse_header(file_of(kTwo, 32), limits); }, {"at most 1 tensors"});
  limits = {};
  limits.name_bytes = 0;
  expect_error([&] { parse_header(file_of(kTwo, 32), limits); }, {"at most 0 bytes"});
  limits = {};
  limits.metadata_bytes = 7;
  expect_error([&] { parse_header(file_of(kTwo, 32), limits); }, {"7 bytes of metadata"});
  limits = {};
  limits.header_bytes = 10;
  expect_error([&] { parse_header(file_of(kTwo, 32), limits); }, {"at most 10 bytes"});
}

// ---- writing ----

SafetensorsContent sample(std::vector<std::vector<std::byte>>& storage) {
  SafetensorsContent content;
  content.tensors = {{"w.bf16", StoredType::bf16, {3}, 0, 0},
                     {"scalar", StoredType::f64, {}, 0, 0},
                     {"empty", StoredType::f32, {0, 4}, 0, 0},
                     {"a \"quoted\"\n\xc3\xa9 name", StoredType::f32, {2, 2}, 0, 0},
                     {"b", StoredType::u8, {1}, 0, 0}};
  content.metadata = {{"format", "pt"}};
  for (std::size_t n : {6, 8, 0, 16, 1}) {
    storage.emplace_back(n);
    for (std::size_t i = 0; i < n; ++i) storage.back()[i] = static_cast<std::byte>(17 * n + i);
  }
  content.bytes = [content, &storage](const StoredTensor& tensor) {
    for (std::size_t i = 0; i < content.tensors.size(); ++i) {
      if (content.tensors[i].name == tensor.name) return std::span<const std::byte>(storage[i]);
    }
    return std::span<const std::byte>();
  };
  return content;
}

TEST(Safetensors, ComesBackAsWritten) {
  TemporaryFolder folder;
  std::vector<std::vector<std::byte>> storage;
  const SafetensorsContent content = sample(storage);
  write_safetensors(folder / "x.safetensors", content);
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(file.header().metadata, content.metadata);
  EXPECT_EQ(file.header().tensors.size(), content.tensors.size());
  EXPECT_EQ(file.header().data_begin % 8, 0);
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    const StoredTensor* got = file.find(content.tensors[i].name);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->type, content.tensors[i].type);
    EXPECT_EQ(got->shape, content.tensors[i].shape);
    EXPECT_EQ(got->begin % size_of(got->type), 0);
    const auto bytes = file.bytes(*got);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), storage[i].begin(), storage[i].end()));
  }
  EXPECT_EQ(file.find("nothing"), nullptr);
}

TEST(Safetensors, EveryCutIsRefused) {
  TemporaryFolder folder;
  std::vector<std::vector<std::byte>> storage;
  write_safetensors(folder / "x", sample(storage));
  const std::string whole = read_file(folder / "x", 1 << 20);
  EXPECT_NO_THROW(parse_header(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_header(whole.substr(0, size)), Error) << size;
  }
  EXPECT_THROW(parse_header(whole + '\0'), Error);
}

// A flipped bit is either noticed or stands in a name or in data; nothing else may come of it.
TEST(Safetensors, FlippedBitsDoNoHarm) {
  TemporaryFolder folder;
  std::vector<std::vector<std::byte>> storage;
  write_safetensors(folder / "x", sample(storage));
  const std::string whole = read_file(folder / "x", 1 << 20);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      try {
        const auto header = parse_header(damaged);
        EXPECT_EQ(header.tensors.size(), 5u);
      } catch (const Error&) {
      }
    }
  }
}

TEST(Safetensors, WriterRefusesWhatCannotBeRead) {
  TemporaryFolder folder;
  SafetensorsContent content;
  const std::byte data[8] = {};
  content.bytes = [&](const StoredTensor&) { return std::span<const std::byte>(data, 8); };
  content.tensors = {{"a", StoredType::f32, {2}, 0, 0}, {"a", StoredType::f32, {2}, 0, 0}};
  expect_error([&] { write_safetensors(folder / "x", content); }, {"every name once", "\"a\""});
  content.tensors = {{"__metadata__", StoredType::f32, {2}, 0, 0}};
  expect_error([&] { write_safetensors(folder / "x", content); }, {"__metadata__"});
  content.tensors = {{"a", StoredType::f32, {3}, 0, 0}};
  expect_error([&] { write_safetensors(folder / "x", content); }, {"12 bytes", "got 8"});
  content.tensors = {{"a", StoredType::f32, {INT64_MAX}, 0, 0}};
  expect_error([&] { write_safetensors(folder / "x", content); }, {"63 bits"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // nothing half-written stays
}

TEST(SafetensorsFile, NamesTheFileThatIsNotThere) {
  TemporaryFolder folder;
  expect_error([&] { SafetensorsFile(folder / "none"); }, {(folder / "none").string(), "No such file"});
  expect_error([&] { SafetensorsFile(folder.path()); }, {"a regular file"});
  std::ofstream(folder / "empty").close();
  expect_error([&] { SafetensorsFile(folder / "empty"); }, {"0 bytes in all"});
}

// ---- the atomic writer ----

TEST(AtomicFile, OldFileStaysUntilCommit) {
  TemporaryFolder folder;
  const auto write = [&](const char* text, bool commit) {
    AtomicFile file(folder / "f");
    file.write(text);
    if (commit) file.commit();
  };
  write("one", true);
  write("two", false);
  EXPECT_EQ(read_file(folder / "f", 100), "one");
  write("three", true);
  EXPECT_EQ(read_file(folder / "f", 100), "three");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 1u);
}

TEST(AtomicFile, FailuresNameTheFileAndTheReason) {
  TemporaryFolder folder;
  expect_error([&] { AtomicFile(folder / "no" / "f"); }, {(folder / "no" / "f").string(), "No such file"});
  expect_error([] { read_file("/dev/null", 10); }, {"a regular file"});
  expect_error([&] { read_file(folder / "none", 10); }, {"No such file"});
  write_file(folder / "f", "0123456789");
  expect_error([&] { read_file(folder / "f", 9); }, {"at most 9 bytes", "10"});
}

TEST(AtomicFile, WhatIsNoRegularFileStays) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder / "link");
  for (const auto& [name, kind] :
       {std::pair{"folder", "got a folder"}, {"pipe", "got a pipe"}, {"link", "got a pipe"}}) {
    expect_error([&] { AtomicFile(folder / name); }, {"expected a regular file", kind});
    expect_error([&] { check_writable(folder / name); }, {"expected a regular file", kind});
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "folder"));
}

TEST(AtomicFile, ALinkStaysAndItsFileIsReplaced) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "there");
  std::filesystem::create_symlink("there/f", folder / "one");  // there is no f yet
  std::filesystem::create_symlink("one", folder / "two");
  for (const char* text : {"first", "second"}) {
    write_file(folder / "two", text);
    EXPECT_EQ(read_file(folder / "there" / "f", 100), text);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "one"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "two"));
  std::filesystem::create_symlink("round", folder / "round");
  expect_error([&] { AtomicFile(folder / "round"); }, {"round", "follow its links"});
}

TEST(AtomicFile, CheckWritableLeavesNothing) {
  TemporaryFolder folder;
  check_writable(folder / "f");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  expect_error([&] { check_writable(folder / "no" / "f"); }, {"No such file"});
}

}  // namespace
}  // namespace gsa::testing
