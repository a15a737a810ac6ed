#include "data/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "data/line_sample.h"
#include "data/testing.h"
#include "gsa/error.h"
#include "model/errors.h"

namespace gsa::data {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;
using gsa::testing::write_text;

struct Read {
  std::vector<std::string> documents;
  std::size_t largest_piece = 0;
  std::int64_t bytes = 0;
};

Read read(const DocumentSource& source) {
  Read result;
  std::string current;
  read_documents(source, {.text =
                              [&](std::string_view piece) {
                                current += piece;
                                result.largest_piece = std::max(result.largest_piece, piece.size());
                              },
                          .end =
                              [&] {
                                result.documents.push_back(current);
                                current.clear();
                              },
                          .progress = [&](std::int64_t bytes) { result.bytes = bytes; }});
  EXPECT_EQ(current, "") << "text after the last document";
  return result;
}

using Texts = std::vector<std::string>;

TEST(Documents, AFileIsADocument) {
  const TemporaryFolder folder;
  for (const std::string text : {"one\n\ntwo\n", "no line end", "\n\nblank before", "\r\n\xff binary"}) {
    write_text(folder / "a.txt", text);
    const Read result = read({.path = folder / "a.txt"});
    EXPECT_EQ(result.documents, Texts{text});
    EXPECT_EQ(result.bytes, static_cast<std::int64_t>(text.size()));
  }
  for (const std::string text : {"", "\n", " \n\t\n"}) {
    write_text(folder / "a.txt", text);
    EXPECT_EQ(read({.path = folder / "a.txt"}).documents, Texts{});
  }
}

TEST(Documents, BlankLinesSplit) {
  const TemporaryFolder folder;
  const DocumentSource source{.path = folder / "a.txt", .split = Split::blank_lines};
  write_text(folder / "a.txt", "\n\none\nmore\n\n \t\r\ntwo\r\n\nthree");
  EXPECT_EQ(read(source).documents, (Texts{"one\nmore", "two\r", "three"}));
}

TEST(Documents, ASeparatorSplits) {
  const TemporaryFolder folder;
  const DocumentSource source{.path = folder / "a.txt", .split = Split::separator, .separator = "<|end|>"};
  write_text(folder / "a.txt", "one\n\nmore\n<|end|>\n<|end|>\ntwo <|end|>\n<|end|>\r\nthree\n<|end|>");
  EXPECT_EQ(read(source).documents, (Texts{"one\n\nmore", "two <|end|>", "three"}));
}

TEST(Documents, JsonLines) {
  const TemporaryFolder folder;
  const DocumentSource source{.path = folder / "a.jsonl", .format = TextFormat::jsonl, .field = "body"};
  write_text(folder / "a.jsonl",
             "{\"body\": \"one\\nmore \\u00e4\", \"other\": 1}\n\n{\"body\": \"  \"}\n{\"body\": \"two\"}");
  EXPECT_EQ(read(source).documents, (Texts{"one\nmore \u00e4", "two"}));
  write_text(folder / "a.jsonl", "{\"body\": \"one\"}\n{\"text\": \"two\"}\n");
  expect_error([&] { read(source); }, {"a.jsonl, line 2", "'body'"});
  write_text(folder / "a.jsonl", "{\"body\": \"one\"}\n{\"body\": 3}\n");
  expect_error([&] { read(source); }, {"a.jsonl, line 2"});
  write_text(folder / "a.jsonl", "{\"body\": \n");
  expect_error([&] { read(source); }, {"a.jsonl, line 1", "JSON"});
  EXPECT_EQ(format_by_name("x/y.jsonl"), TextFormat::jsonl);
  EXPECT_EQ(format_by_name("x/y.txt"), TextFormat::text);
}

// A document beyond any buffer comes in pieces, each of whole lines or, in a line that never ends, of whole
// characters.
TEST(Documents, LongDocumentsComeInPieces) {
  const TemporaryFolder folder;
  std::string lines, one_line, json = "{\"text\": \"";
  for (int i = 0; lines.size() < 3'000'000; ++i) lines += "line " + std::to_string(i) + " \u00e4\n";
  while (one_line.size() < 3'000'000) one_line += "\u6f22\u5b57";
  for (int i = 0; i < 300'000; ++i) json += "a line\\n";
  json += "\"}";
  for (const Split split : {Split::file, Split::blank_lines, Split::separator}) {
    write_text(folder / "a.txt", lines);
    const DocumentSource source{.path = folder / "a.txt", .split = split, .separator = "end"};
    const Read result = read(source);
    ASSERT_EQ(result.documents.size(), 1u);
    EXPECT_EQ(result.documents[0], split == Split::file ? lines : lines.substr(0, lines.size() - 1));
    EXPECT_LT(result.largest_piece, 400'000u);
    write_text(folder / "a.txt", one_line);
    const Read long_line = read(source);
    EXPECT_EQ(long_line.documents, Texts{one_line});
    EXPECT_LT(long_line.largest_piece, 600'000u);
  }
  write_text(folder / "a.jsonl", json);
  const Read from_json = read({.path = folder / "a.jsonl", .format = TextFormat::jsonl});
  ASSERT_EQ(from_json.documents.size(), 1u);
  EXPECT_EQ(from_json.documents[0].size(), 300'000u * 7);
  EXPECT_LT(from_json.largest_piece, 400'000u);
}

TEST(Documents, PiecesNeverCutACharacter) {
  const TemporaryFolder folder;
  std::string text = "x";  // so that characters straddle the pieces' ends
  while (text.size() < 2'000'000) text += "\u6f22";
  write_text(folder / "a.txt", text);
  read_documents({.path = folder / "a.txt"},
                 {.text =
                      [](std::string_view piece) {
                        EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xc0, 0x80);
                        EXPECT_EQ(static_cast<unsigned char>(piece.back()) & 0xc0, 0x80);
                      },
                  .end = [] {},
                  .progress = nullptr});
}

TEST(Documents, WhatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  expect_error([&] { read({.path = folder / "none.txt"}); }, {"none.txt", "No such file"});
  expect_error([&] { read({.path = folder.path()}); }, {folder.path().string(), "directory"});
}

TEST(Documents, ProgressMayEndTheReading) {
  const TemporaryFolder folder;
  write_text(folder / "a.txt", "text");
  EXPECT_THROW(
      read_documents({.path = folder / "a.txt"}, {.text = [](std::string_view) {},
                                                  .end = [] {},
                                                  .progress = [](std::int64_t) { throw Error("stopped"); }}),
      Error);
}

TEST(LineSample, KeepsAllOrAnEvenShare) {
  LineSample all(1000), some(100);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  all.add(text);
  some.add(text);
  EXPECT_EQ(all.lines().size(), 1000u);
  EXPECT_EQ(all.lines()[7], "line 7");
  EXPECT_EQ(some.seen(), 1000);
  const std::set<std::string> different(some.lines().begin(), some.lines().end());
  EXPECT_EQ(different.size(), 100u);
  // The later half is drawn as often as the earlier: 50 expected, deviation 5.
  const auto late = std::count_if(some.lines().begin(), some.lines().end(),
                                  [](const std::string& line) { return line.size() == 8 && line[5] >= '5'; });
  EXPECT_GT(late, 25);
  EXPECT_LT(late, 75);
}

TEST(LineSample, CutsLongLinesBetweenCharacters) {
  std::string text = "x";
  while (text.size() < 3 * LineSample::kMaxLine) text += "\u6f22";
  LineSample sample(100);
  sample.add(text);
  std::string joined;
  for (const std::string& line : sample.lines()) {
    EXPECT_LE(line.size(), LineSample::kMaxLine);
    EXPECT_NE(static_cast<unsigned char>(line.front()) & 0xc0, 0x80);
    joined += line;
  }
  EXPECT_EQ(joined, text);
}

}  // namespace
}  // namespace gsa::data
