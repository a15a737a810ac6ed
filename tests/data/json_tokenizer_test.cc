// tokenizer.json: pieces, marks, errors. Its ids are compared with the package `tokenizers` in
// tests/program/test_tokenizer_json.py.
#include <gtest/gtest.h>

#include "core/json.h"
#include "core/utf8.h"
#include "data/regex.h"
#include "data/testing.h"
#include "data/text_steps.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"
#include "model/errors.h"

namespace gsa::data {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;
using gsa::testing::write_text;

// All bytes as a byte-level vocabulary writes them, in order; then "in", "ing", "Ġin", and a mark.
Json byte_level() {
  Json vocabulary = Json::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    vocabulary[utf8_of(static_cast<std::uint32_t>(printable ? byte : next++))] = byte;
  }
  vocabulary["in"] = 256;
  vocabulary["ing"] = 257;
  vocabulary["Ġin"] = 258;
  vocabulary["<|end|>"] = 260;
  return {{"version", "1.0"},
          {"added_tokens",
           Json::array({{{"id", 260}, {"content", "<|end|>"}, {"special", true}, {"normalized", false}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", Json::array({"i n", Json::array({"in", "g"}), "Ġ in"})}}}};
}

// Characters a, b, ▁ and bytes.
Json characters() {
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"a", 3},
                     {"b", 4},     {"▁", 5},   {"ab", 6},   {"▁ab", 7}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_token(byte)] = 8 + byte;
  return {{"added_tokens",
           Json::array({{{"id", 1}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
                        {{"id", 2}, {"content", "</s>"}, {"special", true}, {"normalized", false}}})},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             Json::array({{{"type", "Prepend"}, {"prepend", "▁"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}})}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders", Json::array({{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                                      {{"type", "ByteFallback"}},
                                      {{"type", "Fuse"}},
                                      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"byte_fallback", true},
            {"vocab", vocabulary},
            {"merges", Json::array({"a b", "▁ ab"})}}}};
}

class JsonTokenizer : public ::testing::Test {
 protected:
  JsonTokenizer() {
    write_text(folder_ / "tokenizer_config.json", R"({"bos_token": "<|end|>", "eos_token": "<|end|>"})");
  }

  std::unique_ptr<Tokenizer> load(const Json& json) {
    write_text(folder_ / "tokenizer.json", json.dump());
    return load_tokenizer(folder_.path());
  }
  std::vector<std::int32_t> ids(const Json& json, const std::string& text) {
    std::vector<std::int32_t> result;
    load(json)->encode(text, result);
    return result;
  }
  void marks(const std::string& config) { write_text(folder_ / "tokenizer_config.json", config); }

  TemporaryFolder folder_;
};

using Ids = std::vector<std::int32_t>;

TEST_F(JsonTokenizer, MergesInTheOrderOfRanks) {
  EXPECT_EQ(ids(byte_level(), "in ing"), (Ids{256, 32, 257}));  // "in" "g" before " " "in"
  EXPECT_EQ(ids(byte_level(), " in"), (Ids{258}));
  EXPECT_EQ(ids(byte_level(), "<|end|>in<|end"), (Ids{260, 256, '<', '|', 'e', 'n', 'd'}));
  Json whole = byte_level();
  whole["model"]["vocab"]["Ġing"] = 259;  // in the vocabulary, but no merge makes it
  EXPECT_EQ(ids(whole, " ing"), (Ids{32, 257}));
  whole["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids(whole, " ing"), (Ids{259}));
}

// A word beyond the length up to which ranks are scanned gives the same ids.
TEST_F(JsonTokenizer, LongWordsAreMergedAsShortOnesAre) {
  std::string text;
  Ids expected;
  for (int i = 0; i < 100; ++i) {
    text += i % 3 == 0 ? "in" : "ing";
    expected.push_back(i % 3 == 0 ? 256 : 257);
  }
  EXPECT_EQ(ids(byte_level(), text), expected);
}

TEST_F(JsonTokenizer, GivesAnyBytesBack) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  for (const bool bytes : {true, false}) {
    if (!bytes) marks(R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
    const auto tokenizer = load(bytes ? byte_level() : characters());
    for (const std::string& text :
         {all, std::string("ab \xFF\xFE b"), std::string("  in\xE4\xB8 漢\n"), std::string()}) {
      Ids result;
      tokenizer->encode(text, result);
      EXPECT_EQ(tokenizer->decode(result), text);
    }
    EXPECT_THROW(tokenizer->decode(Ids{static_cast<std::int32_t>(tokenizer->vocab_size())}), Error);
    EXPECT_THROW(tokenizer->bytes_of(-1), Error);
    EXPECT_EQ(tokenizer->bytes_of(tokenizer->eos()), "");
  }
}

TEST_F(JsonTokenizer, ASpaceInFrontIsNotPartOfTheText) {
  marks(R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const auto tokenizer = load(characters());
  EXPECT_EQ(ids(characters(), "ab ab"), (Ids{7, 7}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 7, 7, 2}), "ab ab");
  EXPECT_EQ(tokenizer->bytes_of(7), " ab");
  EXPECT_EQ(tokenizer->bytes_of(8 + 0xE4), "\xE4");
}

TEST_F(JsonTokenizer, AddedTokensTakeWhatTheySay) {
  Json json = byte_level();
  const auto add = [&](int id, const char* content, const char* option) {
    json["added_tokens"].push_back({{"id", id}, {"content", content}, {"normalized", false}, {option, true}});
  };
  add(261, "<l>", "lstrip");
  add(262, "<r>", "rstrip");
  add(263, "word", "single_word");
  add(264, "<r>x", "special");
  EXPECT_EQ(ids(json, "a \n<l> b"), (Ids{'a', 261, ' ', 'b'}));
  EXPECT_EQ(ids(json, "a <r> \xE3\x80\x80 b"), (Ids{'a', ' ', 262, 'b'}));
  EXPECT_EQ(ids(json, "<r>x<r>"), (Ids{264, 262}));  // of those that fit the longest
  EXPECT_EQ(ids(json, "word-word"), (Ids{263, '-', 263}));
  EXPECT_EQ(ids(json, "words").size(), 5u);
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  EXPECT_EQ(tokenizer->decode(Ids{263, 264}), "word");
}

TEST_F(JsonTokenizer, MarksComeFromTheFilesBesideIt) {
  std::filesystem::remove(folder_ / "tokenizer_config.json");
  expect_error([&] { load(byte_level()); }, {"eos_token", "config.json", "none"});
  write_text(folder_ / "config.json", R"({"bos_token_id": 257, "eos_token_id": null})");
  expect_error([&] { load(byte_level()); }, {"eos_token"});
  write_text(folder_ / "generation_config.json", R"({"bos_token_id": 1, "eos_token_id": [260, 257]})");
  EXPECT_EQ(load(byte_level())->bos(), 257);
  EXPECT_EQ(load(byte_level())->eos(), 260);
  Json json = byte_level();
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", Json::array({{{"SpecialToken", {{"id", "in"}, {"type_id", 0}}}},
                                                    {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})}};
  EXPECT_EQ(load(json)->bos(), 256);
  marks(R"({"bos_token": "ing"})");
  EXPECT_EQ(load(json)->bos(), 257);
  marks(R"({"bos_token": "nowhere"})");
  expect_error([&] { load(json); }, {"bos_token", "nowhere"});
}

// As in fine-tunes of Qwen. Documents of a dataset need a mark all the same.
TEST_F(JsonTokenizer, WithoutABeginMarkTheEndMarkStandsForIt) {
  marks(R"({"bos_token": null, "eos_token": "<|end|>", "add_bos_token": true})");
  write_text(folder_ / "config.json", R"({"bos_token_id": -1})");
  const auto tokenizer = load(byte_level());
  EXPECT_EQ(tokenizer->bos(), 260);
  EXPECT_EQ(tokenizer->eos(), 260);
  EXPECT_EQ(tokenizer->beginning(), Ids{});
  const TemporaryFolder other;
  tokenizer->save(other.path());
  const auto again = load_tokenizer(other.path());
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(again->beginning(), Ids{});
}

TEST_F(JsonTokenizer, ATextBeginsAsTheTokenizerSays) {
  marks(R"({"bos_token": "ing", "eos_token": "<|end|>"})");
  const auto begins = [&](const Json& json) { return prompt_ids(*load(json), "a"); };
  EXPECT_EQ(begins(byte_level()), (Ids{'a'}));
  EXPECT_EQ(prompt_ids(*load(byte_level()), ""), (Ids{257}));  // a model goes on from something
  Json json = byte_level();
  const auto special = [](const char* token) {
    return Json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  const Json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array({special("in"), text})}};
  EXPECT_EQ(begins(json), (Ids{256, 'a'}));  // that of the post-processor, as transformers has it
  json["post_processor"]["single"] = Json::array({special("in"), special("ing"), text, special("<|end|>")});
  EXPECT_EQ(begins(json), (Ids{256, 257, 'a'}));
  json["post_processor"]["single"] = Json::array({text, special("<|end|>")});
  EXPECT_EQ(begins(json), (Ids{'a'}));
  json["post_processor"]["single"] = Json::array({special("nowhere"), text});
  expect_error([&] { begins(json); }, {"post_processor", "nowhere"});
  marks(R"({"bos_token": "ing", "eos_token": "<|end|>", "add_bos_token": true})");
  EXPECT_EQ(begins(byte_level()), (Ids{257, 'a'}));
  marks(R"({"bos_token": "ing", "eos_token": "<|end|>", "add_bos_token": "yes"})");
  expect_error([&] { begins(byte_level()); }, {"tokenizer_config.json", "add_bos_token", "true or false"});
  EXPECT_EQ(prompt_ids(*byte_tokenizer(), "a"), (Ids{256, 'a'}));
}

// Added tokens of fine-tunes stand in tokenizer.json only.
TEST_F(JsonTokenizer, SpecialTokensInPlainTextAreText) {
  Json json = byte_level();
  json["added_tokens"].push_back(
      {{"id", 261}, {"content", "<tool>"}, {"special", false}, {"normalized", false}});
  json["model"]["vocab"]["<tool>"] = 261;
  const std::string text = "in<|end|> <tool>";
  const auto ids_of = [&](const Tokenizer& tokenizer, bool plain) {
    std::vector<std::int32_t> ids;
    plain ? tokenizer.encode_plain(text, ids) : tokenizer.encode(text, ids);
    return ids;
  };
  const auto tokenizer = load(json);
  EXPECT_EQ(ids_of(*tokenizer, false), (std::vector<std::int32_t>{256, 260, ' ', 261}));
  const std::vector<std::int32_t> plain = {256, '<', '|', 'e', 'n', 'd', '|', '>', ' ', 261};
  EXPECT_EQ(ids_of(*tokenizer, true), plain);
  EXPECT_EQ(tokenizer->decode(plain), text);
  // A vocabulary that takes whole words as they are, and has the mark among them.
  json["pre_tokenizer"]["use_regex"] = false;
  json["model"]["ignore_merges"] = true;
  const auto words = load(json);
  std::vector<std::int32_t> ids;
  words->encode_plain("<|end|>", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{'<', '|', 'e', 'n', 'd', '|', '>'}));
}

TEST_F(JsonTokenizer, PlainTextInTheMiddleGetsNoSpace) {
  Json json = characters();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  write_text(folder_ / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const auto tokenizer = load(json);
  std::vector<std::int32_t> start, middle;
  tokenizer->encode_plain("ab", start);
  tokenizer->encode_plain("ab", middle, /*at_start=*/false);
  EXPECT_EQ(start, (std::vector<std::int32_t>{7}));
  EXPECT_EQ(middle, (std::vector<std::int32_t>{6}));
}

TEST_F(JsonTokenizer, IsReadBeforeATokenizerModel) {
  write_text(folder_ / "tokenizer.model", "not a model");
  EXPECT_EQ(load(byte_level())->kind(), "tokenizer.json");
  Json json = byte_level();
  json["model"]["type"] = "Unigram";
  expect_error([&] { load(json); }, {"Unigram", "tokenizer.model is read where there is no tokenizer.json"});
}

TEST_F(JsonTokenizer, IsKeptInAFolder) {
  std::filesystem::remove(folder_ / "tokenizer_config.json");
  write_text(folder_ / "config.json", R"({"bos_token_id": 257, "eos_token_id": 260})");
  const auto tokenizer = load(byte_level());
  const TemporaryFolder other;
  tokenizer->save(other.path());
  const auto again = load_tokenizer(other.path()), file = load_tokenizer(other / "tokenizer.json");
  EXPECT_TRUE(has_tokenizer(other.path()));
  EXPECT_EQ(again->kind(), "tokenizer.json");
  EXPECT_EQ(again->bos(), 257);
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(file->fingerprint(), tokenizer->fingerprint());
  write_text(folder_ / "config.json", R"({"bos_token_id": 256, "eos_token_id": 260})");
  EXPECT_NE(load(byte_level())->fingerprint(), tokenizer->fingerprint());  // other marks, other ids
}

TEST_F(JsonTokenizer, ADatasetOfAnotherTokenizerIsRefused) {
  const auto own = load(byte_level())->fingerprint();
  const auto check = [&](std::uint32_t fingerprint) {
    check_same_tokenizer(folder_.path(), "data", fingerprint, "--ignore-tokenizer");
  };
  check(own);
  expect_error([&] { check(own + 1); }, {"another tokenizer", "--ignore-tokenizer"});
  write_text(folder_ / "tokenizer.json", "{}");
  expect_error([&] { check(own); }, {"cannot be compared", "tokenizer.json", "--ignore-tokenizer"});
}

TEST_F(JsonTokenizer, WhatIsNotKnownIsRefusedByName) {
  const auto changed = [&](const char* pointer, const Json& value) {
    Json json = byte_level();
    json[Json::json_pointer(pointer)] = value;
    return json;
  };
  const auto refused = [&](const char* pointer, const Json& value, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(pointer);
    expect_error([&] { load(changed(pointer, value)); }, parts);
  };
  refused("/model/type", "WordPiece", {"BPE", "model.type", "WordPiece"});
  refused("/model/dropout", 0.5, {"model.dropout", "0.5"});
  refused("/model/continuing_subword_prefix", "##", {"continuing_subword_prefix", "##"});
  refused("/model/merges/0", "i n g", {"model.merges[0]", "i n g"});
  refused("/model/merges/0", "g g", {"merges of tokens into tokens", "merge 0"});
  refused("/model/merges/0", 3, {"model.merges[0]"});
  refused("/model/vocab/in", -1, {"id in 0 ..", "in", "-1"});
  refused("/model/vocab/in", 4294967296, {"id in 0 ..", "4294967296"});
  refused("/model/vocab/in", 7, {"one token for each id"});
  refused("/model/unk_token", "<nothing>", {"unk_token", "<nothing>"});
  refused("/model/vocab", Json{{"a", 0}}, {"tokens for 1 of 256 bytes"});
  refused("/model/other", 1, {"known members of model", "other"});
  refused("/normalizer", Json{{"type", "NFKC"}}, {"normalizer.type", "NFKC"});
  refused("/normalizer", "NFC", {"object for normalizer"});
  refused("/pre_tokenizer/type", "Whitespace", {"pre_tokenizer.type", "Whitespace"});
  refused("/pre_tokenizer/add_prefix_space", "no", {"add_prefix_space", "true or false"});
  refused("/pre_tokenizer", nullptr, {"ByteLevel both"});
  refused("/decoder", nullptr, {"a decoder", "none"});
  refused("/decoder/type", "CTC", {"decoder.type", "CTC"});
  refused("/post_processor", Json{{"type", "BertProcessing"}}, {"post_processor.type"});
  refused("/added_tokens/0/id", 3, {"added_tokens[0].id", "260"});
  refused("/added_tokens/0/content", "", {"added_tokens[0].content"});
  refused("/version", "2.0", {"version", "2.0"});
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  refused("/decoder", Json{{"type", "Sequence"}, {"decoders", Json::array({strip})}},
          {"Fuse before decoder.decoders[0]"});
  const Json fuse = {{"type", "Fuse"}}, fallback = {{"type", "ByteFallback"}};
  refused("/decoder", Json{{"type", "Sequence"}, {"decoders", Json::array({fuse, fallback})}},
          {"in the order"});
}

TEST_F(JsonTokenizer, DamagedFilesAreErrors) {
  const std::string whole = byte_level().dump();
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    EXPECT_THROW(json_tokenizer(whole.substr(0, size), folder_.path(), "cut"), Error) << size;
  }
  for (const char* text :
       {"", "null", "[]", "{}", "{\"model\": []}", "\xFF", "{\"model\": {\"type\": \"BPE\"}}"}) {
    EXPECT_THROW(json_tokenizer(text, folder_.path(), "bad"), Error) << text;
  }
}

TEST(TokenizerRegex, SaysWhatItCannotTakeOver) {
  const auto pattern = [](const char* text) { return pcre2_pattern(text, "file"); };
  EXPECT_EQ(pattern(R"(\s+(?!\S)|\p{N}{1,3})"), R"(\p{White_Space}+(?!\P{White_Space})|\p{N}{1,3})");
  EXPECT_EQ(pattern(R"([^\s\p{L}]\u4E00\p{Han}\.)"), R"([^\p{White_Space}\p{L}]\x{4E00}\p{sc:Han}\.)");
  for (const char* text : {"\\h", "\\b", "\\1", "[a[b]]", "[a&&b]", "[]", "a{1,2}+", "a{,2}", "(?m:a)",
                           "(?<n>a)", "(*FAIL)", "\\p{Greek}", "\\p", "\\u12", "a\\", "[a", "((?i)a)"}) {
    EXPECT_THROW(pattern(text), Error) << text;
  }
  // x(?i:a|b) to Oniguruma, (?:x(?i)a)|(?i:b) to PCRE2.
  expect_error([&] { pattern("x(?i)a|b"); }, {"'(?i)' in the middle", "x(?i)a|b"});
  expect_error([&] { pattern("x(?-i)a|b"); }, {"'(?-i)' in the middle"});
  for (const char* text : {"(?i)a|b", "(?-i)a", "x(?i:a|b)"}) EXPECT_EQ(pattern(text), text);
  EXPECT_THROW(Regex("(a", "file"), Error);
  RegexScratch scratch;
  Regex::Match match;
  // PCRE2's own \s takes U+180E for white space; Unicode and Oniguruma do not.
  EXPECT_FALSE(Regex("\\s", "file").find("\xE1\xA0\x8E", 0, scratch, match));
  ASSERT_TRUE(Regex("\\s", "file").find("a\xC2\x85", 0, scratch, match));
  EXPECT_EQ(match.begin, 1u);
  EXPECT_EQ(match.end, 3u);
}

TEST(TextSteps, SplitsAsItsBehaviorSays) {
  const auto words = [](SplitBehavior behavior, bool invert) {
    Words under_way{.text = "a--b-", .spans = {{0, 5}}};
    RegexScratch scratch;
    split_pre_tokenizer(Regex("-", "file"), behavior, invert)->apply(under_way, scratch);
    std::vector<std::string> result;
    for (const Words::Span span : under_way.spans) result.emplace_back(under_way.at(span));
    return result;
  };
  using Strings = std::vector<std::string>;
  EXPECT_EQ(words(SplitBehavior::isolated, false), (Strings{"a", "-", "-", "b", "-"}));
  EXPECT_EQ(words(SplitBehavior::removed, false), (Strings{"a", "b"}));
  EXPECT_EQ(words(SplitBehavior::removed, true), (Strings{"-", "-", "-"}));
  EXPECT_EQ(words(SplitBehavior::contiguous, false), (Strings{"a", "--", "b", "-"}));
  EXPECT_EQ(words(SplitBehavior::merged_with_previous, false), (Strings{"a-", "-", "b-"}));
  EXPECT_EQ(words(SplitBehavior::merged_with_next, false), (Strings{"a", "-", "-b", "-"}));
}

TEST(TextSteps, ComposesCharacters) {
  const auto composed = [](std::string text) {
    nfc_normalizer()->apply(text, false);
    return text;
  };
  EXPECT_EQ(composed("e\xCC\x81"), "é");
  EXPECT_EQ(composed("か\xE3\x82\x99"), "が");
  EXPECT_EQ(composed("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "한");
  EXPECT_EQ(composed("\xE2\x84\xAB"), "Å");  // the sign for ångström
  EXPECT_EQ(composed(std::string("a\0b 漢字 ﬁ", 14)), std::string("a\0b 漢字 ﬁ", 14));
}

}  // namespace
}  // namespace gsa::data
