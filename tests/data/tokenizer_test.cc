#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include "data/testing.h"
#include "gsa/error.h"

namespace gsa::data {
namespace {

using gsa::testing::TemporaryFolder;
using gsa::testing::write_text;

std::vector<std::int32_t> ids_of_text(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string all_bytes() {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  return text;
}

TEST(ByteTokenizer, GivesBytesBack) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_EQ(tokenizer->decode(ids_of_text(*tokenizer, all_bytes())), all_bytes());
  EXPECT_EQ(ids_of_text(*tokenizer, "Az"), (std::vector<std::int32_t>{'A', 'z'}));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{tokenizer->bos(), 'A', tokenizer->eos()}), "A");
  EXPECT_THROW(tokenizer->decode(std::vector<std::int32_t>{258}), Error);
  EXPECT_THROW(tokenizer->decode(std::vector<std::int32_t>{-1}), Error);
}

std::string bytes_of_all(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += tokenizer.bytes_of(id);
  return bytes;
}

TEST(ByteTokenizer, BytesOfTokensAreTheText) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(bytes_of_all(*tokenizer, ids_of_text(*tokenizer, all_bytes())), all_bytes());
  EXPECT_EQ(tokenizer->bytes_of(tokenizer->eos()), "");
  EXPECT_THROW(tokenizer->bytes_of(258), Error);
}

TEST(ByteTokenizer, IsKeptInAFolder) {
  const TemporaryFolder folder;
  byte_tokenizer()->save(folder.path());
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_EQ(load_tokenizer("bytes")->fingerprint(), tokenizer->fingerprint());
  EXPECT_TRUE(has_tokenizer(folder.path()));
}

TEST(Tokenizer, MissingOrDamagedFilesAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THROW(load_tokenizer(folder / "none"), Error);
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
  EXPECT_FALSE(has_tokenizer(folder.path()));
  write_text(folder / "tokenizer_config.json", "{\"tokenizer_class\": \"Other\"}");
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
  EXPECT_FALSE(has_tokenizer(folder.path()));
  write_text(folder / "tokenizer_config.json", "{");
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
  write_text(folder / "tokenizer.model", "not a model");
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
  write_text(folder / "tokenizer.model", "");
  EXPECT_THROW(load_tokenizer(folder.path()), Error);
}

class SentencePiece : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<std::string> lines;
    for (int i = 0; i < 400; ++i) {
      lines.push_back("the keeper of lamp " + std::to_string(i) + " walks to the harbour");
      lines.push_back("\tand back, " + std::to_string(i * 7) + " times;  twice");
    }
    model = new std::string(train_sentencepiece({.lines = lines, .vocab_size = 340}));
  }
  static void TearDownTestSuite() { delete model; }
  static std::string* model;
};
std::string* SentencePiece::model = nullptr;

TEST_F(SentencePiece, GivesAnyTextBack) {
  const auto tokenizer = sentencepiece_tokenizer(*model, "model");
  EXPECT_EQ(tokenizer->vocab_size(), 340);
  for (const std::string text :
       {"the keeper walks", " leading  and double  spaces ", "line\nafter\n\nline\ttab",
        "Größe, 漢字 and 🙂 are not in the vocabulary", "", "1234567"}) {
    EXPECT_EQ(tokenizer->decode(ids_of_text(*tokenizer, text)), text);
  }
  // Digits stand alone, so that numbers are read digit by digit.
  EXPECT_GE(ids_of_text(*tokenizer, "1234567").size(), 7u);
  EXPECT_LT(ids_of_text(*tokenizer, "the keeper of lamp").size(), 10u);
  EXPECT_THROW(tokenizer->decode(std::vector<std::int32_t>{340}), Error);
}

// Spaces, line ends, characters that only bytes can write, and what is no UTF-8 at all.
TEST_F(SentencePiece, BytesOfTokensAreTheText) {
  const auto tokenizer = sentencepiece_tokenizer(*model, "model");
  for (const std::string text : {"the  keeper\n of lamp 12 ", " Zürich \xF0\x9F\x8C\x8A 灯", "\t"}) {
    EXPECT_EQ(bytes_of_all(*tokenizer, ids_of_text(*tokenizer, text)), text);
  }
  EXPECT_EQ(tokenizer->bytes_of(tokenizer->bos()), "");
  EXPECT_EQ(tokenizer->bytes_of(tokenizer->eos()), "");
  EXPECT_THROW(tokenizer->bytes_of(-1), Error);
}

TEST_F(SentencePiece, IsKeptInAFolder) {
  const TemporaryFolder folder;
  const auto tokenizer = sentencepiece_tokenizer(*model, "model");
  tokenizer->save(folder.path());
  const auto again = load_tokenizer(folder.path()), file = load_tokenizer(folder / "tokenizer.model");
  EXPECT_TRUE(has_tokenizer(folder.path()));
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(file->fingerprint(), tokenizer->fingerprint());
  EXPECT_NE(tokenizer->fingerprint(), byte_tokenizer()->fingerprint());
  EXPECT_EQ(ids_of_text(*again, "the harbour"), ids_of_text(*tokenizer, "the harbour"));
}

TEST_F(SentencePiece, TrainingSaysWhatIsWrong) {
  EXPECT_THROW(train_sentencepiece({.lines = {}, .vocab_size = 300}), Error);
  const auto message = [](const std::string& line, std::int64_t vocab_size) -> std::string {
    try {
      train_sentencepiece({.lines = {line}, .vocab_size = vocab_size});
      return "nothing";
    } catch (const Error& error) {
      return error.what();
    }
  };
  // 256 bytes, three marks, the line end, and "a": nothing to merge.
  EXPECT_EQ(message("a", 30000),
            "gsa::tokenizer: argument 'vocab_size': expected at most 261 pieces, all that this text gives, "
            "got 30000");
  EXPECT_EQ(message("abcdefghijklmnop", 265),
            "gsa::tokenizer: argument 'vocab_size': expected at least 276 pieces, one for each byte, mark "
            "and common "
            "character of this text, got 265");
}

// What a long document's pieces give is what the whole text gives: line ends are tokens of their own.
TEST_F(SentencePiece, PiecesOfLinesGiveTheIdsOfTheWhole) {
  const auto tokenizer = sentencepiece_tokenizer(*model, "model");
  const std::string first = "the keeper\n  of lamp 12\n", second = " walks\n\nto the harbour";
  std::vector<std::int32_t> pieces;
  tokenizer->encode(first, pieces);
  tokenizer->encode(second, pieces);
  EXPECT_EQ(pieces, ids_of_text(*tokenizer, first + second));
}

}  // namespace
}  // namespace gsa::data
