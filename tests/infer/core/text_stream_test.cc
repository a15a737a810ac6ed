#include "infer/core/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "model/errors.h"

namespace gsa::infer {
namespace {

using gsa::testing::expect_error;

constexpr char kBad[] = "\xEF\xBF\xBD";

bool is_utf8(const std::string& text) {
  Utf8Stream stream;
  const std::string seen = stream.push(text);
  return seen == text && stream.finish().empty();
}

// All of a text through Utf8Stream, cut into pieces of the given size.
std::string in_pieces(const std::string& bytes, std::size_t size) {
  Utf8Stream stream;
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += size) text += stream.push(bytes.substr(i, size));
  return text + stream.finish();
}

TEST(Utf8Stream, CharactersComeWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xC3"), "a");
  EXPECT_EQ(stream.push("\xA9z"), "\xC3\xA9z");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("\x8C"), "");
  EXPECT_EQ(stream.push("\x8A"), "\xF0\x9F\x8C\x8A");
  EXPECT_EQ(stream.finish(), "");
}

// As Unicode recommends: one U+FFFD for each longest beginning of a character (table 3-8 of the standard).
TEST(Utf8Stream, WhatIsNoUtf8IsReplaced) {
  const std::string bad = kBad;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xF1\x80\x80\xE1\x80\xC2"
       "b\x80"
       "c\x80\xBF"
       "d",
       "a" + bad + bad + bad + "b" + bad + "c" + bad + bad + "d"},
      {"\xC0\xAF", bad + bad},                      // overlong
      {"\xE0\x80\xAF", bad + bad + bad},            // overlong
      {"\xED\xA0\x80", bad + bad + bad},            // a surrogate
      {"\xF4\x90\x80\x80", bad + bad + bad + bad},  // beyond U+10FFFF
      {"\xFF", bad},
      {"x\xE2\x82", "x" + bad},  // the end is missing
      {"\xEF\xBF\xBD", bad},     // U+FFFD itself
      {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
      {std::string("\0z", 2), std::string("\0z", 2)},
  };
  for (const auto& [bytes, text] : cases) {
    for (std::size_t size = 1; size <= 4; ++size)
      EXPECT_EQ(in_pieces(bytes, size), text) << "pieces of " << size;
  }
}

TEST(Utf8Stream, AnyBytesGiveUtf8HoweverTheyAreCut) {
  std::mt19937 generator(3);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(40, 0);
    for (char& c : bytes) {
      // Mostly bytes that begin or continue characters.
      c = static_cast<char>(generator() % 3 == 0 ? generator() : 0x80 + generator() % 0x80);
    }
    const std::string whole = in_pieces(bytes, bytes.size());
    EXPECT_TRUE(is_utf8(whole));
    for (std::size_t size = 1; size < 5; ++size) EXPECT_EQ(in_pieces(bytes, size), whole);
  }
}

struct Streamed {
  std::vector<std::string> parts;  // what each push gave, and finish() last
  std::string text;
  std::string stop;  // empty: none
};

Streamed stream_bytes(const std::string& text, const std::vector<std::string>& stops) {
  const auto tokenizer = data::byte_tokenizer();
  TextStream stream(*tokenizer, stops);
  Streamed result;
  for (const char c : text) {
    result.parts.push_back(stream.push(static_cast<unsigned char>(c)));
    if (stream.stopped()) break;
  }
  result.parts.push_back(stream.finish());
  for (const std::string& part : result.parts) result.text += part;
  if (stream.stopped()) result.stop = stream.stop();
  return result;
}

TEST(TextStream, AStopStringEndsTheTextAndIsNeverShown) {
  const Streamed found = stream_bytes("one END two", {"END"});
  EXPECT_EQ(found.text, "one ");
  EXPECT_EQ(found.stop, "END");
  EXPECT_EQ(found.parts, (std::vector<std::string>{"o", "n", "e", " ", "", "", "", ""}));
  // A beginning that comes to nothing is shown when that is certain, and at the end.
  EXPECT_EQ(stream_bytes("one EN two", {"END"}).parts[6], "EN ");
  EXPECT_EQ(stream_bytes("one EN", {"END"}).text, "one EN");
  // One that begins inside another's beginning.
  EXPECT_EQ(stream_bytes("xaabaab!", {"aabaaba", "aab!"}).text, "xaab");
  EXPECT_EQ(stream_bytes("aaab", {"aab"}).text, "a");
}

TEST(TextStream, TheFirstCompleteStopStringCounts) {
  EXPECT_EQ(stream_bytes("abc", {"abc", "b"}).text, "a");
  EXPECT_EQ(stream_bytes("abc", {"abc", "b"}).stop, "b");
  // Complete at once: the longest.
  EXPECT_EQ(stream_bytes("xabc", {"c", "abc", "bc"}).text, "x");
  EXPECT_EQ(stream_bytes("xabc", {"c", "abc", "bc"}).stop, "abc");
  EXPECT_EQ(stream_bytes("", {"abc"}).text, "");
}

TEST(TextStream, StopStringsMayHaveAnyCharacters) {
  EXPECT_EQ(stream_bytes("gr\xC3\xBC\xC3\x9F dich", {"\xC3\x9F"}).text, "gr\xC3\xBC");
  EXPECT_EQ(stream_bytes("a\n\nb", {"\n\n"}).text, "a");
  EXPECT_EQ(stream_bytes("a\xFF!", {std::string(kBad) + "!"}).text, "a");
  expect_error([] { stream_bytes("a", {"b", ""}); }, {"stop", "empty"});
}

// A plain search over the whole text is the definition; the stream agrees, and shows nothing that it would
// have to take back.
TEST(TextStream, AgreesWithASearchOverTheWholeText) {
  std::mt19937 generator(9);
  const std::vector<std::vector<std::string>> sets = {
      {"ab"}, {"aab", "ba"}, {"abab", "bb", "aaa"}, {"b\xC3\xA9"}};
  for (int i = 0; i < 800; ++i) {
    std::vector<std::string> stops = sets[generator() % sets.size()];
    if (i % 2 == 0) {  // long ones that repeat themselves and each other
      stops.resize(generator() % 4);
      for (std::string& stop : stops) {
        stop.clear();
        for (std::size_t n = 3 + generator() % 8; n > 0; --n) stop += generator() % 4 == 0 ? 'b' : 'a';
      }
    }
    std::string text;
    for (int n = 0; n < 40; ++n) text += std::vector<std::string>{"a", "b", "\xC3\xA9"}[generator() % 12 / 5];
    std::string wanted = text;
    bool done = false;
    for (std::size_t end = 1; end <= text.size() && !done; ++end) {
      std::size_t longest = 0;
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
      }
      done = longest > 0;
      if (done) wanted = text.substr(0, end - longest);
    }
    const Streamed found = stream_bytes(text, stops);
    EXPECT_EQ(found.text, wanted) << text;
    EXPECT_EQ(!found.stop.empty(), done) << text;
    for (const std::string& part : found.parts) EXPECT_TRUE(is_utf8(part));
  }
}

class WithPieces : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<std::string> lines;
    for (int i = 0; i < 400; ++i) lines.push_back("the keeper of lamp " + std::to_string(i) + " walks home");
    model = new std::string(data::train_sentencepiece({.lines = lines, .vocab_size = 320}));
  }
  static void TearDownTestSuite() { delete model; }
  static std::string* model;
};
std::string* WithPieces::model = nullptr;

TEST_F(WithPieces, TextIsThatOfTheTokens) {
  const auto tokenizer = data::sentencepiece_tokenizer(*model, "model");
  for (const std::string text :
       {"the keeper of lamp 12\n walks  home", " Z\xC3\xBCrich \xF0\x9F\x8C\x8A \xE7\x81\xAF"}) {
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    ids.push_back(tokenizer->eos());
    TextStream stream(*tokenizer, {});
    std::string seen;
    for (const std::int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_TRUE(is_utf8(part));
      seen += part;
    }
    EXPECT_EQ(seen + stream.finish(), text);
  }
}

// Tokens of several characters: the stop string lies across them.
TEST_F(WithPieces, StopStringsAreFoundAcrossTokens) {
  const auto tokenizer = data::sentencepiece_tokenizer(*model, "model");
  std::vector<std::int32_t> ids;
  tokenizer->encode("the keeper of lamp walks home", ids);
  EXPECT_LT(ids.size(), 12u);
  TextStream stream(*tokenizer, {"er of la"});
  std::string seen;
  for (const std::int32_t id : ids) seen += stream.push(id);
  EXPECT_EQ(seen + stream.finish(), "the keep");
  EXPECT_EQ(stream.stop(), "er of la");
}

}  // namespace
}  // namespace gsa::infer
