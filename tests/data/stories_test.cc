// Stories: the same everywhere, as long as asked for, and with needles that have one answer.
#include "data/stories.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/crc32c.h"
#include "gsa/error.h"

namespace gsa::data {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    if (word.back() == '.' || word.back() == ',') word.pop_back();
    words.push_back(word);
  }
  return words;
}

// The kind of each thing.
const std::map<std::string, std::size_t>& kind_of_thing() {
  static const std::map<std::string, std::size_t> kinds = [] {
    std::map<std::string, std::size_t> result;
    for (std::size_t i = 0; i < Stories::kinds().size(); ++i) {
      for (const char* thing : Stories::kinds()[i].things) {
        EXPECT_TRUE(result.emplace(thing, i).second) << thing << " is of two kinds";
      }
    }
    return result;
  }();
  return kinds;
}

std::int64_t tokens_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return static_cast<std::int64_t>(ids.size());
}

// A small SentencePiece model of the stories themselves, as the demo trains it.
const Tokenizer& story_tokenizer() {
  static const auto tokenizer = [] {
    Stories stories(3);
    SentencePieceTraining training{.lines = {}, .vocab_size = 1024, .threads = 1};
    for (int i = 0; i < 300; ++i) training.lines.push_back(stories.story(30));
    return sentencepiece_tokenizer(train_sentencepiece(training), "stories");
  }();
  return *tokenizer;
}

TEST(Stories, a_seed_gives_the_same_text_everywhere) {
  std::string text, repeated;
  Stories stories(7), again(7), other(8);
  for (int i = 0; i < 50; ++i) text += stories.story(20);
  for (int i = 0; i < 50; ++i) repeated += again.story(20);
  EXPECT_EQ(text, repeated);
  EXPECT_FALSE(text.starts_with(other.story(20)));
  // Of this very text: another compiler or machine must not change it.
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text))), 1522101838u);
}

TEST(Stories, a_story_has_one_thing_of_each_kind) {
  Stories stories(11);
  std::set<std::map<std::size_t, std::string>> casts;
  int again = 0;
  for (int i = 0; i < 100; ++i) {
    std::map<std::size_t, std::string> thing_of;
    for (const std::string& word : words_of(stories.story(40))) {
      const auto kind = kind_of_thing().find(word);
      if (kind == kind_of_thing().end()) continue;
      const auto [entry, is_new] = thing_of.emplace(kind->second, word);
      EXPECT_EQ(entry->second, word) << "story " << i;
      again += !is_new;
    }
    casts.insert(thing_of);
  }
  EXPECT_GT(again, 2000) << "there must be something to remember";
  EXPECT_EQ(casts.size(), 100u) << "another story chooses anew";
}

TEST(Stories, fill_a_number_of_tokens_exactly) {
  const auto bytes = byte_tokenizer();
  Stories stories(5);
  for (const std::int64_t tokens : {1, 64, 255, 510}) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(tokens_of(*bytes, stories.story(tokens, *bytes)), tokens);
      EXPECT_EQ(tokens_of(story_tokenizer(), stories.story(tokens, story_tokenizer())), tokens);
    }
  }
}

TEST(Stories, needles_have_one_answer) {
  const Tokenizer& tokenizer = story_tokenizer();
  Stories stories(21);
  for (int i = 0; i < 200; ++i) {
    const double depth = i % 5 / 4.0;
    const std::int64_t limit = 100 + 100 * (i % 4);
    const Needle needle = stories.needle(depth, limit, tokenizer);
    SCOPED_TRACE(needle.prompt);
    const std::string thing = needle.answer.substr(1);
    ASSERT_TRUE(kind_of_thing().contains(thing));
    const std::size_t kind = kind_of_thing().at(thing);
    const std::vector<std::string> words = words_of(needle.prompt);
    const auto of_kind = [&](const std::string& word) {
      const auto entry = kind_of_thing().find(word);
      return entry != kind_of_thing().end() && entry->second == kind;
    };
    EXPECT_EQ(std::count_if(words.begin(), words.end(), of_kind), 1) << "the needle alone tells of its kind";
    EXPECT_NE(needle.prompt.find(needle.needle), std::string::npos);
    EXPECT_NE(needle.needle.find(needle.answer + '.'), std::string::npos);
    EXPECT_TRUE(needle.prompt.ends_with(' ' + needle.question));
    EXPECT_NE(needle.question.find(Stories::kinds()[kind].deed), std::string::npos)
        << "the question asks for this kind";

    EXPECT_EQ(needle.tokens, tokens_of(tokenizer, needle.prompt));
    const std::int64_t size = tokens_of(tokenizer, needle.prompt + needle.answer);
    EXPECT_LE(size, limit);
    EXPECT_GT(size, limit - 30) << "only a sentence less";
    // The answer continues the prompt: tokens of both together are those of each.
    EXPECT_EQ(size, needle.tokens + tokens_of(tokenizer, needle.answer));
    // The token at that distance before the end is the answer's.
    std::vector<std::int32_t> ids, answer;
    tokenizer.encode(needle.prompt, ids);
    tokenizer.encode(needle.answer, answer);
    EXPECT_EQ(ids[static_cast<std::size_t>(needle.tokens - needle.distance)], answer[0]);
    const double from_end = static_cast<double>(needle.distance) / static_cast<double>(needle.tokens);
    EXPECT_NEAR(from_end, 1 - depth, 0.2);
  }
}

TEST(Stories, a_word_is_a_token_of_the_demos_tokenizer) {
  for (const Stories::Kind& kind : Stories::kinds()) {
    for (const char* thing : kind.things) {
      EXPECT_EQ(tokens_of(story_tokenizer(), concat(' ', thing)), 1) << thing;
    }
  }
}

TEST(Stories, wrong_needles_are_refused) {
  const auto tokenizer = byte_tokenizer();
  Stories stories(1);
  EXPECT_THROW(stories.needle(-0.1, 500, *tokenizer), Error);
  EXPECT_THROW(stories.needle(0.5, 10, *tokenizer), Error);
}

}  // namespace
}  // namespace gsa::data
