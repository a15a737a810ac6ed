// Prompts: for fixed seeds the very text, and for every task what the public definition says of it.
// GCC 12 sees uninitialised members inside <regex> where the sanitizers instrument it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "ruler/draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "ruler/words.h"

namespace gsa::ruler {
namespace {

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Essays small_essays() {
  return Essays("essays", "One tree stands.  Two birds (they sing.) Mr. Fox runs!\nIt is late", 12);
}

TEST(RulerWords, are_many_and_different) {
  std::set<std::string_view> all;
  std::size_t count = 0;
  for (const auto* list : {&adjectives(), &nouns(), &verbs()}) {
    all.insert(list->begin(), list->end());
    count += list->size();
    for (const std::string_view word : *list) {
      EXPECT_TRUE(std::all_of(word.begin(), word.end(), [](char c) { return 'a' <= c && c <= 'z'; })) << word;
      EXPECT_FALSE(word.empty());
    }
  }
  EXPECT_EQ(all.size(), count);
  EXPECT_GT(count, 2000u);
  EXPECT_GT(adjectives().size() * nouns().size(), 500'000u);
}

TEST(RulerRandom, draws_are_even_and_apart) {
  Random random(7);
  std::map<std::uint64_t, int> counts;
  for (int i = 0; i < 3000; ++i) ++counts[random.below(3)];
  for (const auto& [value, count] : counts) EXPECT_NEAR(count, 1000, 120) << value;
  const auto chosen = random.choose(50, 20);
  EXPECT_EQ(std::set<std::size_t>(chosen.begin(), chosen.end()).size(), 20u);
  EXPECT_NE(Random(7).stream(1).bits(), Random(7).stream(2).bits());
  EXPECT_EQ(Random(7).stream(1).bits(), Random(7).stream(1).bits());
}

TEST(RulerEssays, needles_stand_between_sentences) {
  // Sentences: "One tree stands." "Two birds (they sing.)" "Mr. Fox runs!" "It is late", repeated.
  const Essays essays = small_essays();
  EXPECT_EQ(essays.own_words(), 13);
  EXPECT_EQ(essays.with_needles(13, {"N."}, {0}),
            " N. One tree stands. Two birds (they sing.) Mr. Fox runs! It is late");
  EXPECT_EQ(essays.with_needles(13, {"N."}, {50}),
            "One tree stands. Two birds (they sing.) N. Mr. Fox runs! It is late");
  EXPECT_EQ(essays.with_needles(13, {"N.", "M."}, {26, 100}),
            "One tree stands. N. Two birds (they sing.) Mr. Fox runs! It is late M. ");
  EXPECT_EQ(essays.with_needles(5, {"N."}, {100}), "One tree stands. Two birds N. ");
  const Essays repeated("essays", "A b. C", 7);
  EXPECT_EQ(repeated.with_needles(7, {"N."}, {100}), "A b. C A b. C A N. ");
}

// The whole prompt, word for word.
TEST(RulerNeedles, single_in_noise_for_a_fixed_seed) {
  const Draft draft = needle_draft(task_by_name("niah_single_1"), nullptr, Random(1));
  const Prompt prompt = draft.build(2);
  ASSERT_EQ(prompt.answers.size(), 1u);
  const std::string noise =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  std::smatch found;
  ASSERT_TRUE(std::regex_search(prompt.text, found, std::regex("for ([a-z]+-[a-z]+) is: ([0-9]{7})\\.")));
  const std::string key = found[1], value = found[2];
  EXPECT_EQ(key, "potent-ticket");
  EXPECT_EQ(value, "4321652");
  EXPECT_EQ(prompt.answers[0], value);
  EXPECT_EQ(prompt.text, std::string("A special magic number is hidden within the following text. Make sure "
                                     "to memorize it. I will quiz you "
                                     "about the number afterwards.\n") +
                             "One of the special magic numbers for " + key + " is: " + value + ".\n" + noise +
                             "\n" + noise + "\nWhat is the special magic number for " + key +
                             " mentioned in the provided text? The special magic number for " + key +
                             " mentioned in the provided text is");
  EXPECT_EQ(draft.build(2).text, prompt.text);
  // More haystack asks the same.
  EXPECT_EQ(draft.build(9).answers, prompt.answers);
  EXPECT_EQ(occurrences(draft.build(9).text, noise), 9u);
}

TEST(RulerNeedles, every_task_hides_what_it_asks_for) {
  const Essays essays("essays", "The lamp burns. A boat comes home. Nobody waits for it. Then it is night.",
                      400);
  for (const Task& task : all_tasks()) {
    if (task.kind != Kind::needles) continue;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Prompt prompt = needle_draft(task, &essays, Random(seed)).build(60);
      SCOPED_TRACE(std::string(task.name) + " " + prompt.text);
      EXPECT_EQ(prompt.answers.size(), task.queries * task.values_of_key);
      for (const std::string& answer : prompt.answers) EXPECT_EQ(occurrences(prompt.text, answer + "."), 1u);
      const std::size_t needles = occurrences(prompt.text, "One of the special magic ");
      EXPECT_EQ(needles, task.filler == Filler::needles ? 61 : task.key_count * task.values_of_key);
      const bool one = prompt.answers.size() == 1;
      EXPECT_TRUE(prompt.text.starts_with(one ? "A special magic " : "Some special magic "));
      EXPECT_EQ(occurrences(prompt.text, one ? "What is the special" : "What are all the special"), 1u);
      EXPECT_TRUE(prompt.text.ends_with(one ? "provided text is" : "provided text are"));
      EXPECT_EQ(occurrences(prompt.text, "uuid") > 0, task.values == Content::uuids);
    }
  }
}

TEST(RulerNeedles, keys_come_once_and_queries_are_listed) {
  const Prompt many = needle_draft(task_by_name("niah_multikey_3"), nullptr, Random(3)).build(500);
  std::set<std::string> keys;
  const std::regex form(
      "uuids for ([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}) is: "
      "([-0-9a-f]{36})\\.");
  for (std::sregex_iterator it(many.text.begin(), many.text.end(), form), end; it != end; ++it)
    keys.insert((*it)[1]);
  EXPECT_EQ(keys.size(), 501u);

  const Essays essays = small_essays();
  const Prompt queries = needle_draft(task_by_name("niah_multiquery"), &essays, Random(3)).build(13);
  const std::string word = "[a-z]+-[a-z]+";
  EXPECT_TRUE(
      std::regex_search(queries.text, std::regex("numbers for " + word + ", " + word + ", " + word +
                                                 ", and " + word + " mentioned in the provided text\\?")));
}

// Where needles stand is drawn: every place comes up, the first and the last included.
TEST(RulerNeedles, stand_anywhere) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "Word. ";
  const Essays essays("essays", text, 100);  // a sentence for each per cent
  std::set<std::size_t> depths, lines, line_of_needles, assignments;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const std::string in_essays =
        needle_draft(task_by_name("niah_single_2"), &essays, Random(seed)).build(100).text;
    depths.insert(occurrences(in_essays.substr(0, in_essays.find("One of")), "Word."));
    const auto line_of = [&](const std::string& prompt, const std::string& part) {
      return occurrences(prompt.substr(0, prompt.find(part)), "\n");
    };
    const std::string in_noise =
        needle_draft(task_by_name("niah_single_1"), nullptr, Random(seed)).build(40).text;
    lines.insert(line_of(in_noise, "One of the"));
    const Prompt among_needles =
        needle_draft(task_by_name("niah_multikey_2"), nullptr, Random(seed)).build(40);
    line_of_needles.insert(line_of(among_needles.text, among_needles.answers[0]));
    const Prompt chain = variable_tracking_draft(5, Random(9), Random(seed)).build(40);
    const std::string asked = chain.text.substr(chain.text.rfind("Memorize and track"));
    for (const std::string& name : chain.answers) assignments.insert(line_of(asked, "VAR " + name + " ="));
  }
  EXPECT_EQ(depths.size(), 40u);
  EXPECT_EQ(*depths.begin(), 0u);
  EXPECT_EQ(*depths.rbegin(), 100u);
  for (const auto* found : {&lines, &line_of_needles}) {
    EXPECT_EQ(found->size(), 40u);
    EXPECT_EQ(*found->begin(), 1u) << "behind the line that says what to do";
    EXPECT_EQ(*found->rbegin(), 40u);
  }
  EXPECT_EQ(assignments.size(), 44u);  // 40 lines of noise and up to four assignments before one
}

TEST(RulerVariables, the_chain_leads_to_every_answer) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Prompt prompt = variable_tracking_draft(6, Random(9), Random(seed)).build(11);
    SCOPED_TRACE(prompt.text);
    // The worked example, then the question; both in the same words.
    const std::string opening =
        "Memorize and track the chain(s) of variable assignment hidden in the following text.";
    ASSERT_EQ(occurrences(prompt.text, opening + "\n\n"), 2u);
    const std::size_t begin = prompt.text.rfind(opening);
    const std::string example = prompt.text.substr(0, begin), asked = prompt.text.substr(begin);
    EXPECT_EQ(occurrences(example, "The grass is green."), 6u);
    EXPECT_EQ(occurrences(asked, "The grass is green."), 11u);

    std::map<std::string, std::string> values;
    for (const std::string& line : lines_of(asked)) {
      std::smatch found;
      if (std::regex_match(line, found, std::regex("VAR ([A-Z]{5}) = ([0-9]{5})")))
        values[found[1]] = found[2];
      if (std::regex_match(line, found, std::regex("VAR ([A-Z]{5}) = VAR ([A-Z]{5}) "))) {
        ASSERT_TRUE(values.contains(found[2])) << "assigned before it has a value";
        values[found[1]] = values[found[2]];
      }
    }
    ASSERT_EQ(values.size(), 5u);
    const std::string value = values.begin()->second;
    for (const std::string& name : prompt.answers) EXPECT_EQ(values[name], value);
    EXPECT_EQ(prompt.answers.size(), 5u);
    EXPECT_TRUE(
        asked.ends_with("Question: Find all variables that are assigned the value " + value +
                        " in the text above. Answer: According to the chain(s) of variable assignment in the "
                        "text above, 5 variables are assigned the value " +
                        value + ", they are: "));
    // The example is answered: five names of three letters.
    EXPECT_TRUE(std::regex_search(example, std::regex("they are:  ([A-Z]{3} ){4}[A-Z]{3}\n\n$")));
  }
  // Its assignments stand where the layout says, whatever the names are.
  const auto blank = [](const std::string& text) {
    return std::regex_replace(text, std::regex("[0-9]{5}|\\b[A-Z]{3}\\b"), "#");
  };
  EXPECT_EQ(blank(variable_tracking_example(8, Random(9), Random(1)).text),
            blank(variable_tracking_example(8, Random(9), Random(2)).text));
}

std::map<std::string, std::size_t> entries_of(const std::string& text) {
  std::map<std::string, std::size_t> counts;
  const std::regex entry("([0-9]+)\\. ([-a-z]+)");
  std::size_t number = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), entry), end; it != end; ++it) {
    EXPECT_EQ((*it)[1], std::to_string(++number));
    ++counts[(*it)[2]];
  }
  return counts;
}

TEST(RulerCommonWords, the_answers_are_the_ten_most_common) {
  struct Case {
    std::int64_t length, units;
    std::size_t common, others, example_words, example_common, example_others;
  };
  for (const Case& c : {Case{2048, 30, 6, 1, 20, 3, 1}, Case{4096, 30, 30, 3, 40, 10, 3},
                        Case{131072, 3000, 30, 3, 40, 10, 3}}) {
    const Prompt prompt = common_words_draft(c.length, Random(5)).build(c.units);
    const std::size_t begin = prompt.text.rfind("Below is a numbered list");
    const std::string example = prompt.text.substr(0, begin), asked = prompt.text.substr(begin);
    const auto counts = entries_of(asked.substr(0, asked.find("Question:")));
    EXPECT_EQ(counts.size(), static_cast<std::size_t>(c.units));
    for (const auto& [word, count] : counts) {
      EXPECT_EQ(occurrences(word, "-"), c.units > 2406 ? 1u : 0u)
          << word << ": single words or pairs, never both";
      const bool answer =
          std::find(prompt.answers.begin(), prompt.answers.end(), word) != prompt.answers.end();
      EXPECT_EQ(count, answer ? c.common : c.others) << word;
    }
    EXPECT_EQ(prompt.answers.size(), 10u);
    EXPECT_TRUE(
        asked.ends_with("\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 "
                        "words that appear most often in the list are:"));
    const auto shown = entries_of(example.substr(0, example.find("Question:")));
    EXPECT_EQ(shown.size(), c.example_words);
    const auto answered = entries_of(example.substr(example.find("list are:")));
    EXPECT_EQ(answered.size(), 10u);
    for (const auto& [word, count] : shown) {
      EXPECT_EQ(count, answered.contains(word) ? c.example_common : c.example_others) << word;
    }
  }
}

TEST(RulerFrequentWords, the_answers_come_second_to_fourth) {
  for (const std::int64_t units : {53, 79, 200, 5000}) {
    const Prompt prompt = frequent_words_draft(4096, Random(2)).build(units);
    const std::size_t begin = prompt.text.find("coded words. ") + 13;
    std::map<std::string, std::size_t> counts;
    std::istringstream words(prompt.text.substr(begin, prompt.text.find('\n') - begin));
    for (std::string word; words >> word;) ++counts[word];
    std::vector<std::pair<std::size_t, std::string>> order;
    for (const auto& [word, count] : counts) order.emplace_back(count, word);
    std::sort(order.rbegin(), order.rend());
    EXPECT_EQ(order[0].second, "...");
    // n / rank^2 / zeta(2): 0.6079, 0.1520, 0.0675, 0.0380 of n.
    EXPECT_EQ(order[0].first, static_cast<std::size_t>(0.607927 * static_cast<double>(units)));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(order[i + 1].second, prompt.answers[i]);
    EXPECT_GT(order[3].first, order[4].first) << units << ": the third answer would be a guess";
    // Ranks whose share is a word or more: of 5,000 the 55th comes once, the 56th no more.
    EXPECT_EQ(order.size(), static_cast<std::size_t>(std::sqrt(0.607927 * static_cast<double>(units))));
  }
  // The vocabulary has (4096 - 50) / 50 words.
  const Prompt many = frequent_words_draft(4096, Random(2)).build(20'000);
  const std::size_t begin = many.text.find("coded words. ") + 13;
  std::istringstream words(many.text.substr(begin, many.text.find('\n') - begin));
  const std::set<std::string> different{std::istream_iterator<std::string>(words), {}};
  EXPECT_EQ(different.size(), 80u);
}

TEST(RulerQuestions, documents_come_in_by_nearness) {
  QuestionSet set;
  for (const char* text : {"alpha", "beta", "gamma", "delta", "epsilon"}) set.documents.emplace_back(text);
  const Question question{.text = "Which one?", .answers = {"beta", "the second"}, .own = {1}, .more = {3}};
  const Draft draft = question_draft(set, question, Random(4));
  EXPECT_EQ(draft.min_units, 1);
  EXPECT_EQ(
      draft.build(1).text,
      "Answer the question based on the given documents. Only give me the answer and do not output any other "
      "words.\n\nThe following are given documents.\n\nDocument 1:\nbeta\n\nAnswer the question based on the "
      "given documents. Only give me the answer and do not output any other words.\n\nQuestion: Which one? "
      "Answer:");
  const std::string two = draft.build(2).text;
  EXPECT_EQ(occurrences(two, "\nbeta\n"), 1u);
  EXPECT_EQ(occurrences(two, "\ndelta\n"), 1u);
  EXPECT_EQ(occurrences(two, "Document "), 2u);
  const std::string five = draft.build(5).text;
  for (const std::string& document : set.documents) EXPECT_EQ(occurrences(five, "\n" + document + "\n"), 1u);
  EXPECT_EQ(occurrences(draft.build(7).text, "Document "), 7u);
  EXPECT_EQ(draft.build(7).answers, question.answers);
}

}  // namespace
}  // namespace gsa::ruler
