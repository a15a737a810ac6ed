#include "data/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "core/crc32c.h"
#include "core/json.h"
#include "data/testing.h"

namespace gsa::data {
namespace {

using gsa::testing::TemporaryFolder;
using gsa::testing::write_text;

void write_small(const std::filesystem::path& folder,
                 std::int64_t shard_tokens = DatasetWriter::kShardTokens) {
  const auto tokenizer = byte_tokenizer();
  DatasetWriter writer(folder, *tokenizer, shard_tokens);
  for (const char* text : {"first text", "", "the third, which is longer", "x"}) writer.add_document(text);
  writer.finish();
}

std::string text_of(const Dataset& dataset, std::int64_t document) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(dataset.document_size(document)));
  dataset.read(document, 0, ids);
  const std::vector<std::int32_t> narrow(ids.begin(), ids.end());
  return byte_tokenizer()->decode(narrow);
}

// What is thrown when the dataset is opened; empty when nothing is.
std::string complaint(const std::filesystem::path& folder, bool verify = false) {
  try {
    const Dataset dataset(folder, verify);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// The folder's manifest after a change.
template <typename Change>
void change_manifest(const std::filesystem::path& folder, const Change& change) {
  Json manifest = parse_json(read_file(folder / "dataset.json", 1 << 20), "dataset.json");
  change(manifest);
  write_text(folder / "dataset.json", manifest.dump());
}

TEST(Crc32c, MatchesPublishedValues) {
  const auto of = [](const std::string& text) { return crc32c(std::as_bytes(std::span(text))); };
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xe3069283u);
  EXPECT_EQ(of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(of(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Crc32c, ContinuesAnywhere) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i * 37));
  const auto bytes = std::as_bytes(std::span(text));
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), crc32c(bytes)) << cut;
  }
}

TEST(Dataset, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  for (const std::int64_t shard_tokens : {std::int64_t(1), std::int64_t(14), DatasetWriter::kShardTokens}) {
    const auto place = folder / std::to_string(shard_tokens);
    write_small(place, shard_tokens);
    const Dataset dataset(place, true);
    EXPECT_EQ(dataset.documents(), 4);
    EXPECT_EQ(dataset.tokens(), 10 + 0 + 26 + 1 + 2 * 4);
    EXPECT_EQ(dataset.vocab_size(), 258);
    EXPECT_EQ(text_of(dataset, 0), "first text");
    EXPECT_EQ(text_of(dataset, 1), "");
    EXPECT_EQ(text_of(dataset, 2), "the third, which is longer");
    EXPECT_EQ(text_of(dataset, 3), "x");
    EXPECT_EQ(load_tokenizer(place)->fingerprint(), dataset.tokenizer_fingerprint());
    EXPECT_THROW(dataset.document_size(4), Error);
    EXPECT_THROW(dataset.document_size(-1), Error);
    std::vector<std::int64_t> ids(4);
    EXPECT_THROW(dataset.read(3, 0, ids), Error);
  }
}

TEST(Dataset, DocumentsStandBetweenMarks) {
  const TemporaryFolder folder;
  write_small(folder / "d");
  const Dataset dataset(folder / "d");
  std::vector<std::int64_t> ids(3);
  dataset.read(3, 0, ids);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{256, 'x', 257}));
}

TEST(Dataset, UnfinishedOrForeignFoldersAreRefused) {
  const TemporaryFolder folder;
  {
    const auto tokenizer = byte_tokenizer();
    DatasetWriter writer(folder / "cut", *tokenizer);
    writer.add_document("never finished");
  }
  EXPECT_NE(complaint(folder / "cut").find("dataset.json"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "cut"));
  EXPECT_NE(complaint(folder / "none").find("gsa tokenize"), std::string::npos);

  write_small(folder / "d");
  EXPECT_THROW(DatasetWriter(folder / "d", *byte_tokenizer()), Error);
}

TEST(Dataset, PiecesMakeTheSameDocument) {
  const TemporaryFolder folder;
  const auto tokenizer = byte_tokenizer();
  DatasetWriter writer(folder / "pieces", *tokenizer, 14);
  writer.append("first ");
  writer.append("text");
  writer.end_document();
  writer.end_document();
  writer.append("the third, ");
  writer.append("");
  writer.append("which is longer");
  writer.end_document();
  writer.append("x");
  writer.finish();
  write_small(folder / "whole", 14);
  const Dataset pieces(folder / "pieces", true), whole(folder / "whole", true);
  EXPECT_EQ(pieces.fingerprint(), whole.fingerprint());
}

TEST(Dataset, ThreadsWriteTheSame) {
  const TemporaryFolder folder;
  const auto tokenizer = byte_tokenizer();
  const ThreadParallel threads(3);
  for (const Parallel* parallel : {&serial(), static_cast<const Parallel*>(&threads)}) {
    DatasetWriter writer(folder / (parallel == &threads ? "threads" : "serial"), *tokenizer, 1 << 20,
                         *parallel);
    for (int i = 0; i < 70'000; ++i) writer.add_document("document " + std::to_string(i));
    for (int i = 0; i < 100; ++i) writer.append(std::string(100'000, static_cast<char>('a' + i % 26)));
    writer.finish();
  }
  EXPECT_EQ(Dataset(folder / "threads", true).fingerprint(), Dataset(folder / "serial", true).fingerprint());
}

TEST(Dataset, NothingStaysOfWhatWasNotFinished) {
  const TemporaryFolder folder;
  const auto tokenizer = byte_tokenizer();
  {
    DatasetWriter writer(folder / "d", *tokenizer, 4);
    for (int i = 0; i < 5; ++i) writer.add_document("several shards");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "d"));
  // As a killed run leaves it.
  std::filesystem::create_directory(folder / "d");
  write_text(folder / "d/tokens-00007.bin", "x");
  write_text(folder / "d/.documents-00008.bin.12.0.tmp", "x");
  write_text(folder / "d/notes.txt", "mine");
  write_small(folder / "d");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "d")) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_EQ(names, (std::set<std::string>{"dataset.json", "documents-00000.bin", "notes.txt",
                                          "tokenizer_config.json", "tokens-00000.bin"}));
  // A folder that was there stays.
  std::filesystem::create_directory(folder / "empty");
  EXPECT_THROW(DatasetWriter(folder / "empty", *tokenizer).finish(), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "empty"));
}

TEST(Dataset, DamageIsNamed) {
  const TemporaryFolder folder;
  const auto fresh = [&](const std::string& name) {
    write_small(folder / name, 14);
    return folder / name;
  };
  {
    const auto place = fresh("short");
    std::filesystem::resize_file(place / "tokens-00000.bin", 3);
    EXPECT_NE(complaint(place).find("tokens-00000.bin"), std::string::npos);
  }
  {
    const auto place = fresh("flipped");
    std::string bytes = read_file(place / "tokens-00000.bin", 1 << 20);
    bytes[2] ^= 1;
    write_text(place / "tokens-00000.bin", bytes);
    EXPECT_NE(complaint(place).find("damaged"), std::string::npos);
    EXPECT_NE(complaint(place, true).find("damaged"), std::string::npos);
  }
  {
    const auto place = fresh("outside");
    std::string bytes = read_file(place / "tokens-00000.bin", 1 << 20);
    bytes[3] = '\x7f';
    write_text(place / "tokens-00000.bin", bytes);
    change_manifest(
        place, [&](Json& m) { m["shards"][0]["tokens_crc32c"] = crc32c(std::as_bytes(std::span(bytes))); });
    const Dataset dataset(place);
    std::vector<std::int64_t> ids(2);
    EXPECT_THROW(dataset.read(0, 0, ids), Error);
  }
  {
    const auto place = fresh("ends");
    std::string bytes = read_file(place / "documents-00000.bin", 1 << 20);
    bytes[7] = '\x40';
    write_text(place / "documents-00000.bin", bytes);
    change_manifest(place, [&](Json& m) {
      m["shards"][0]["documents_crc32c"] = crc32c(std::as_bytes(std::span(bytes)));
    });
    EXPECT_NE(complaint(place).find("documents-00000.bin': expected growing ends"), std::string::npos);
  }
}

// What was right is not read again until the file changes, or dataset.json expects something else.
TEST(Dataset, RightChecksumsAreRemembered) {
  const TemporaryFolder folder;
  const auto place = folder / "d", memory = place / ".verified.json";
  write_small(place, 14);
  EXPECT_EQ(complaint(place), "");
  Json first = parse_json(read_file(memory, 1 << 20), "memory");
  EXPECT_EQ(first.size(), 6u);  // three shards of two files
  // A memory that calls damage right is believed: it is not looked at.
  std::string bytes = read_file(place / "tokens-00001.bin", 1 << 20);
  bytes[2] ^= 1;
  write_text(place / "tokens-00001.bin", bytes);
  EXPECT_NE(complaint(place).find("tokens-00001.bin"), std::string::npos);
  struct stat info = {};
  ASSERT_EQ(::stat((place / "tokens-00001.bin").c_str(), &info), 0);
  first["tokens-00001.bin"]["changed_ns"] = info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec;
  write_text(memory, first.dump());
  EXPECT_EQ(complaint(place), "");
  EXPECT_NE(complaint(place, true).find("damaged"), std::string::npos);
  // Nothing that stands there instead of a memory does harm.
  for (const char* text : {"", "[]", "{\"tokens-00001.bin\": 3}"}) {
    write_text(memory, text);
    EXPECT_NE(complaint(place).find("damaged"), std::string::npos) << text;
  }
}

TEST(Dataset, OneWriterAtATime) {
  const TemporaryFolder folder;
  const auto tokenizer = byte_tokenizer();
  {
    DatasetWriter writer(folder / "a/b", *tokenizer);
    writer.add_document("the first");
    EXPECT_THROW(DatasetWriter(folder / "a/b", *tokenizer), Error);
    writer.finish();
    EXPECT_THROW(DatasetWriter(folder / "a/b", *tokenizer), Error);
  }
  EXPECT_EQ(text_of(Dataset(folder / "a/b"), 0), "the first");
  EXPECT_FALSE(std::filesystem::exists(folder / "a/b/.lock"));
  { DatasetWriter(folder / "c/d", *tokenizer); }
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));  // all that it made
}

TEST(Dataset, ManifestIsStrict) {
  const TemporaryFolder folder;
  int number = 0;
  const auto after = [&](const auto& change) {
    const auto place = folder / std::to_string(number++);
    write_small(place);
    change_manifest(place, change);
    return complaint(place);
  };
  EXPECT_EQ(after([](Json&) {}), "");
  EXPECT_NE(after([](Json& m) { m["extra"] = 1; }).find("'extra'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m.erase("vocab_size"); }).find("'vocab_size'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["version"] = 2; }).find("'version'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["tokens"] = -1; }).find("'tokens'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["tokens"] = 1.5; }).find("'tokens'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["tokens"] = std::uint64_t(1) << 63; }).find("'tokens'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["tokens"] = 44; }).find("totals"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["shards"] = 7; }).find("'shards'"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["token_bytes"] = 4; }).find("tokens-00000.bin"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["shards"][0]["tokens_file"] = "../x"; }).find("../x"), std::string::npos);
  EXPECT_NE(after([](Json& m) { m["shards"] = Json::array(); }).find("totals"), std::string::npos);
}

}  // namespace
}  // namespace gsa::data
