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

// Below, a whole prompt of every kind, word for word, compared by hand with the templates of RULER's constants.py and
// with how its scripts put them together: what is drawn and counted is said above each.

// Four needles of one key before the first of four sentences, behind the first, behind the second and at 100 per cent.
// At both ends pieces are empty, which RULER joins with spaces too.
TEST(RulerGolden, multivalue_in_essays) {
  const Essays essays = small_essays();
  const Prompt prompt = needle_draft(task_by_name("niah_multivalue"), &essays, Random(1)).build(13);
  EXPECT_EQ(prompt.text,
            "Some special magic numbers are hidden within the following text. Make sure to "
            "memorize it. I will quiz you about the numbers afterwards.\n"
            " One of the special magic numbers for potent-ticket is: 5746678. One tree stands. One "
            "of the special magic numbers for potent-ticket is: 7371966. Two birds (they sing.) "
            "One of the special magic numbers for potent-ticket is: 4321652. Mr. Fox runs! It is "
            "late One of the special magic numbers for potent-ticket is: 5484444. \n"
            "What are all the special magic numbers for potent-ticket mentioned in the provided "
            "text? The special magic numbers for potent-ticket mentioned in the provided text are");
  EXPECT_EQ(prompt.answers, (std::vector<std::string>{"4321652", "5746678", "7371966", "5484444"}));
}

// Two lines of haystack, which are needles themselves, and the one that is asked for; one answer: "is", "number".
TEST(RulerGolden, among_needles_of_words_and_numbers) {
  const Prompt prompt = needle_draft(task_by_name("niah_multikey_2"), nullptr, Random(1)).build(2);
  EXPECT_EQ(prompt.text,
            "A special magic number is hidden within the following text. Make sure to memorize it. "
            "I will quiz you about the number afterwards.\n"
            "One of the special magic numbers for potent-ticket is: 4321652.\n"
            "One of the special magic numbers for posh-ring is: 3389581.\n"
            "One of the special magic numbers for faint-beech is: 6483775.\n"
            "What is the special magic number for potent-ticket mentioned in the provided text? "
            "The special magic number for potent-ticket mentioned in the provided text is");
  EXPECT_EQ(prompt.answers, (std::vector<std::string>{"4321652"}));
}

// Keys and values are UUIDs of version 4.
TEST(RulerGolden, among_needles_of_uuids) {
  const Prompt prompt = needle_draft(task_by_name("niah_multikey_3"), nullptr, Random(1)).build(2);
  EXPECT_EQ(prompt.text,
            "A special magic uuid is hidden within the following text. Make sure to memorize it. I "
            "will quiz you about the uuid afterwards.\n"
            "One of the special magic uuids for 4846ecf2-2ef9-476e-aa7f-862c7dcab650 is: "
            "e6b8b53c-1db6-489d-acbb-a6c74dae944b.\n"
            "One of the special magic uuids for f2d52fe8-471e-459b-9126-517288c1a57b is: "
            "9bb54475-1b14-4eb5-a622-5706e887034d.\n"
            "One of the special magic uuids for 4a61e915-2911-469f-9337-c4b63d72c8b1 is: "
            "7f059434-a11c-4296-bd53-72abd3f78928.\n"
            "What is the special magic uuid for 4846ecf2-2ef9-476e-aa7f-862c7dcab650 mentioned in "
            "the provided text? The special magic uuid for 4846ecf2-2ef9-476e-aa7f-862c7dcab650 "
            "mentioned in the provided text is");
  EXPECT_EQ(prompt.answers, (std::vector<std::string>{"e6b8b53c-1db6-489d-acbb-a6c74dae944b"}));
}

// Five lines of noise with a worked example, three letters a name; then six with the question, five letters. Each name
// is assigned the one before it, with a space behind it, and the answers stand behind two spaces, as in RULER.
TEST(RulerGolden, variables) {
  const Prompt prompt = variable_tracking_draft(5, Random(9), Random(1)).build(6);
  EXPECT_EQ(prompt.text,
            "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
            "\n"
            "VAR SVJ = 15508\n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR YML = VAR SVJ \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR ZWA = VAR YML \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR BCY = VAR ZWA \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR YWJ = VAR BCY \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "Question: Find all variables that are assigned the value 15508 in the text above. "
            "Answer: According to the chain(s) of variable assignment in the text above, 5 "
            "variables are assigned the value 15508, they are:  SVJ YML ZWA BCY YWJ\n"
            "\n"
            "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
            "\n"
            "VAR SMEUO = 14220\n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR SNQSI = VAR SMEUO \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR HXVUC = VAR SNQSI \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR QGTPE = VAR HXVUC \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "VAR GQYNH = VAR QGTPE \n"
            "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
            "again.\n"
            "Question: Find all variables that are assigned the value 14220 in the text above. "
            "Answer: According to the chain(s) of variable assignment in the text above, 5 "
            "variables are assigned the value 14220, they are: ");
  EXPECT_EQ(prompt.answers, (std::vector<std::string>{"SMEUO", "SNQSI", "HXVUC", "QGTPE", "GQYNH"}));
}

// Below 4,096 tokens: an example of 20 words, ten of them three times and ten once; then eleven words, ten of them six
// times and one, "finch", once.
TEST(RulerGolden, common_words) {
  const Prompt prompt = common_words_draft(2048, Random(1)).build(11);
  EXPECT_EQ(prompt.text,
            "Below is a numbered list of words. In these words, some appear more often than "
            "others. Memorize the ones that appear most often.\n"
            "1. clear 2. common 3. irritate 4. belfry 5. imagine 6. mild 7. endless 8. election 9. "
            "imagine 10. election 11. suitcase 12. belfry 13. herring 14. oaken 15. clear 16. mild "
            "17. swan 18. mild 19. belfry 20. endless 21. real 22. decide 23. imagine 24. suitcase "
            "25. vault 26. pocket 27. museum 28. oaken 29. common 30. eerie 31. common 32. endless "
            "33. clear 34. election 35. factory 36. vault 37. vault 38. oaken 39. bright 40. "
            "suitcase\n"
            "Question: What are the 10 most common words in the above list? Answer: The top 10 "
            "words that appear most often in the list are: 1. vault 2. clear 3. belfry 4. election "
            "5. imagine 6. endless 7. mild 8. common 9. suitcase 10. oaken\n"
            "Below is a numbered list of words. In these words, some appear more often than "
            "others. Memorize the ones that appear most often.\n"
            "1. complex 2. dove 3. fine 4. peanut 5. banker 6. blame 7. finch 8. condor 9. peanut "
            "10. blame 11. peanut 12. fine 13. cereal 14. fine 15. dove 16. tedious 17. banker 18. "
            "blame 19. banker 20. tedious 21. banker 22. condor 23. peanut 24. blame 25. tedious "
            "26. dove 27. cereal 28. freight 29. cereal 30. blame 31. condor 32. freight 33. fine "
            "34. freight 35. freight 36. complex 37. fine 38. condor 39. freight 40. tedious 41. "
            "dove 42. peanut 43. cereal 44. cereal 45. complex 46. condor 47. blame 48. complex "
            "49. complex 50. tedious 51. cereal 52. condor 53. banker 54. tedious 55. freight 56. "
            "complex 57. banker 58. peanut 59. dove 60. fine 61. dove\n"
            "Question: What are the 10 most common words in the above list? Answer: The top 10 "
            "words that appear most often in the list are:");
  EXPECT_EQ(prompt.answers, (std::vector<std::string>{"complex", "peanut", "cereal", "tedious", "freight",
                                                      "condor", "dove", "fine", "banker", "blame"}));
}

// 53 / rank^2 / zeta(2), rounded down: 32 dots, 8 smeuos, 3 nqsihx, 2 vucqgt, 1 pegqyn; 46 words.
TEST(RulerGolden, frequent_words) {
  const Prompt prompt = frequent_words_draft(300, Random(1)).build(53);
  EXPECT_EQ(prompt.text,
            "Read the following coded text and track the frequency of each coded word. Find the "
            "three most frequently appeared coded words. ... ... smeuos ... ... smeuos ... ... ... "
            "... ... pegqyn ... ... ... ... smeuos ... ... ... ... ... ... vucqgt ... vucqgt "
            "nqsihx smeuos ... ... smeuos ... ... ... ... nqsihx ... nqsihx ... smeuos ... ... ... "
            "... smeuos smeuos\n"
            "Question: Do not provide any explanation. Please ignore the dots '....'. What are the "
            "three most frequently appeared words in the above coded text? Answer: According to "
            "the coded text above, the three most frequently appeared words are:");
  EXPECT_EQ(prompt.answers, (std::vector<std::string>{"smeuos", "nqsihx", "vucqgt"}));
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
