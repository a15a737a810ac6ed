#include "ruler/draft.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <unordered_set>

#include "gsa/error.h"
#include "ruler/words.h"

namespace gsa::ruler {
namespace {

constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
constexpr std::string_view kCapitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", kSmalls = "abcdefghijklmnopqrstuvwxyz";

// Streams of a sample's draws. What does not depend on the amount of haystack is drawn apart from what does.
enum : std::uint64_t { kAsked, kPlaces, kFilling, kOrder, kExample };

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? between : "") + parts[i];
  return text;
}

// "1. red 2. blue".
std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i > 0 ? " " : "") + std::to_string(i + 1) + ". " + words[i];
  }
  return text;
}

// Keys of needles and words of lists where single ones do not suffice: "brave-lamp".
std::string word_pair(Random& random) {
  std::string text(random.pick(adjectives()));
  text += '-';
  return text += random.pick(nouns());
}

// ---- needles

std::string uuid(Random& random) {  // version 4
  constexpr std::string_view kDigits = "0123456789abcdef", kVariant = "89ab";
  std::string text;
  for (int i = 0; i < 36; ++i) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      text += '-';
    } else {
      text += i == 14 ? '4' : i == 19 ? random.pick(kVariant) : random.pick(kDigits);
    }
  }
  return text;
}

std::string drawn(Content content, Random& random) {
  switch (content) {
    case Content::words:
      return word_pair(random);
    case Content::numbers:
      return std::to_string(1'000'000 + random.below(9'000'000));
    case Content::uuids:
      return uuid(random);
  }
  bad_argument("ruler", "content", "words, numbers or uuids", concat(static_cast<int>(content)));
}

// No key comes twice, in the haystack neither: a question has one answer.
std::string new_key(Content content, Random& random, std::unordered_set<std::string>& keys) {
  for (;;) {
    const auto [key, is_new] = keys.insert(drawn(content, random));
    if (is_new) return *key;
  }
}

// The kind of value as the prompt names it.
std::string plural(Content content) {
  return content == Content::words ? "words" : content == Content::numbers ? "numbers" : "uuids";
}

std::string needle(Content values, const std::string& key, const std::string& value) {
  return "One of the special magic " + plural(values) + " for " + key + " is: " + value + ".";
}

std::string needle_prompt(const Task& task, const std::string& context, const std::string& query) {
  const bool one = task.queries * task.values_of_key == 1;
  std::string kind = plural(task.values);
  if (one) kind.pop_back();
  const std::string asked = "special magic " + kind + " for " + query + " mentioned in the provided text";
  return std::string(one ? "A" : "Some") + " special magic " + kind + (one ? " is" : " are") +
         " hidden within the following text. Make sure to memorize it. I will quiz you about the " + kind +
         " afterwards.\n" + context + "\nWhat " + (one ? "is" : "are all") + " the " + asked + "? The " +
         asked + (one ? " is" : " are");
}

// Forty depths from 0 to 100 per cent.
std::vector<std::int64_t> depths(std::size_t count, Random& random) {
  std::vector<std::int64_t> chosen;
  for (const std::size_t i : random.choose(40, count)) {
    chosen.push_back(std::llround(100.0 * static_cast<double>(i) / 39));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// ---- variable tracking

constexpr int kHops = 4;

struct Chain {
  std::vector<std::string> names;  // each has the value of the one before it
  std::string value;
};

Chain draw_chain(int letters, Random& random) {
  Chain chain;
  std::set<std::string> taken = {"VAR"};  // the word that marks an assignment is no name
  while (chain.names.size() < kHops + 1) {
    const std::string name = random.letters(letters, kCapitals);
    if (taken.insert(name).second) chain.names.push_back(name);
  }
  chain.value = std::to_string(10'000 + random.below(90'000));
  return chain;
}

std::string chain_prompt(const Chain& chain, std::int64_t lines, Random places) {
  std::vector<std::size_t> at = places.choose(static_cast<std::size_t>(lines), chain.names.size());
  std::sort(at.begin(), at.end());
  std::string context;
  std::size_t next = 0;
  for (std::size_t line = 0; line < static_cast<std::size_t>(lines); ++line) {
    if (next < at.size() && at[next] == line) {
      const std::string from = next == 0 ? chain.value : "VAR " + chain.names[next - 1] + " ";
      context += "VAR " + chain.names[next] + " = " + from + "\n";
      ++next;
    }
    context += kNoise;
    context += '\n';
  }
  return "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n" +
         context + "Question: Find all variables that are assigned the value " + chain.value +
         " in the text above. Answer: According to the chain(s) of variable assignment in the text above, " +
         std::to_string(chain.names.size()) + " variables are assigned the value " + chain.value +
         ", they are: ";
}

// ---- words

struct WordList {
  std::vector<std::string> common;
  std::string text;
};

constexpr std::size_t kCommonWords = 10;

// Different words, the common ones first and often, numbered in random order. All are pairs where single ones do not
// suffice: "lamp" would be found in an answer "brave-lamp".
WordList word_list(std::size_t count, std::size_t common_repeats, std::size_t other_repeats, Random& random) {
  std::vector<std::string> words;
  for (const auto* list : {&nouns(), &adjectives(), &verbs()})
    words.insert(words.end(), list->begin(), list->end());
  random.shuffle(words);
  if (words.size() < count) {
    std::unordered_set<std::string> known;
    words.clear();
    while (words.size() < count) words.push_back(new_key(Content::words, random, known));
  }
  words.resize(count);
  WordList list;
  list.common.assign(words.begin(), words.begin() + kCommonWords);
  std::vector<std::string> entries;
  for (std::size_t i = 0; i < count; ++i) {
    entries.insert(entries.end(), i < kCommonWords ? common_repeats : other_repeats, words[i]);
  }
  random.shuffle(entries);
  list.text = numbered(entries);
  return list;
}

std::string common_words_prompt(const std::string& context) {
  return "Below is a numbered list of words. In these words, some appear more often than others. Memorize "
         "the ones "
         "that appear most often.\n" +
         context +
         "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words that "
         "appear most "
         "often in the list are:";
}

// How often the word of a rank appears among about `words`: a zeta distribution with exponent 2.
std::int64_t count_of_rank(std::int64_t words, std::int64_t rank) {
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;
  return static_cast<std::int64_t>(static_cast<double>(words) / static_cast<double>(rank * rank) / kZeta2);
}

}  // namespace

Draft needle_draft(const Task& task, const Essays* essays, const Random& random) {
  struct Asked {
    std::vector<std::string> needles, answers;
    std::string query;
    std::unordered_set<std::string> keys;
    std::vector<std::int64_t> depths;
  } asked;
  Random draw = random.stream(kAsked);
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;
  for (std::size_t i = 0; i < task.key_count; ++i) {
    keys.push_back(new_key(task.keys, draw, asked.keys));
    values.emplace_back();
    for (std::size_t j = 0; j < task.values_of_key; ++j) {
      values[i].push_back(drawn(task.values, draw));
      asked.needles.push_back(needle(task.values, keys[i], values[i][j]));
    }
  }
  draw.shuffle(asked.needles);
  const std::vector<std::size_t> chosen = draw.choose(task.key_count, task.queries);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    asked.query += (i == 0 ? "" : i + 1 < chosen.size() ? ", " : ", and ") + keys[chosen[i]];
    const auto& answers = values[chosen[i]];
    asked.answers.insert(asked.answers.end(), answers.begin(), answers.end());
  }
  if (task.filler == Filler::essays) asked.depths = depths(asked.needles.size(), draw);

  return {static_cast<std::int64_t>(asked.needles.size()), [=, &task](std::int64_t units) -> Prompt {
            if (task.filler == Filler::essays) {
              const std::string context = essays->with_needles(units, asked.needles, asked.depths);
              return {needle_prompt(task, context, asked.query), asked.answers};
            }
            const auto count = static_cast<std::size_t>(units);
            std::vector<std::size_t> places = random.stream(kPlaces).choose(count, asked.needles.size());
            std::sort(places.begin(), places.end());
            Random filling = random.stream(kFilling);
            std::unordered_set<std::string> known = asked.keys;
            std::vector<std::string> lines;
            for (std::size_t line = 0, next = 0; line < count; ++line) {
              if (next < places.size() && places[next] == line) lines.push_back(asked.needles[next++]);
              if (task.filler == Filler::noise) {
                lines.emplace_back(kNoise);
              } else {
                const std::string key = new_key(task.keys, filling, known);
                lines.push_back(needle(task.values, key, drawn(task.values, filling)));
              }
            }
            return {needle_prompt(task, joined(lines, "\n"), asked.query), asked.answers};
          }};
}

Prompt variable_tracking_example(std::int64_t lines, const Random& layout, const Random& random) {
  Random draw = random.stream(kExample);
  const Chain chain = draw_chain(/*letters=*/3, draw);
  return {chain_prompt(chain, lines, layout), chain.names};
}

Draft variable_tracking_draft(std::int64_t example_lines, const Random& layout, const Random& random) {
  Random draw = random.stream(kAsked);
  const Chain chain = draw_chain(/*letters=*/5, draw);
  const Prompt shown = variable_tracking_example(example_lines, layout, random);
  const std::string example = shown.text + " " + joined(shown.answers, " ") + "\n\n";
  return {kMinNoiseLines, [=](std::int64_t units) -> Prompt {
            return {example + chain_prompt(chain, units, random.stream(kPlaces)), chain.names};
          }};
}

Draft common_words_draft(std::int64_t length, const Random& random) {
  const bool is_short = length < 4096;
  Random draw = random.stream(kExample);
  const WordList shown = is_short ? word_list(20, 3, 1, draw) : word_list(40, 10, 3, draw);
  const std::string example = common_words_prompt(shown.text) + " " + numbered(shown.common) + "\n";
  return {kCommonWords + 1, [=](std::int64_t units) -> Prompt {
            Random words = random.stream(kFilling);
            const auto count = static_cast<std::size_t>(units);
            const WordList list = is_short ? word_list(count, 6, 1, words) : word_list(count, 30, 3, words);
            return {example + common_words_prompt(list.text), list.common};
          }};
}

Draft frequent_words_draft(std::int64_t length, const Random& random) {
  constexpr std::size_t kMinVocabulary = 5;
  // From here on the fourth most frequent word, the last of the answers, comes oftener than the fifth.
  constexpr std::int64_t kMinWords = 53;
  const auto size =
      std::max(kMinVocabulary, static_cast<std::size_t>(std::max<std::int64_t>(0, length - 50) / 50));
  Random draw = random.stream(kAsked);
  std::vector<std::string> vocabulary = {"..."};  // the most frequent one is noise
  std::unordered_set<std::string> known;
  while (vocabulary.size() < size) {
    const std::string word = draw.letters(6, kSmalls);
    if (known.insert(word).second) vocabulary.push_back(word);
  }
  return {
      kMinWords, [=](std::int64_t units) -> Prompt {
        std::vector<std::string> words;
        for (std::size_t i = 0; i < vocabulary.size(); ++i) {
          const std::int64_t count = count_of_rank(units, static_cast<std::int64_t>(i) + 1);
          words.insert(words.end(), static_cast<std::size_t>(count), vocabulary[i]);
        }
        Random order = random.stream(kOrder);
        order.shuffle(words);
        return {
            "Read the following coded text and track the frequency of each coded word. Find the three most "
            "frequently appeared coded words. " +
                joined(words, " ") +
                "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
                "three most frequently appeared words in the above coded text? Answer: According to the "
                "coded text above, the three most frequently appeared words are:",
            {vocabulary.begin() + 1, vocabulary.begin() + 4}};
      }};
}

Draft question_draft(const QuestionSet& set, const Question& question, const Random& random) {
  // The documents in the order in which they come in: its own, those of the same article, all others.
  std::vector<std::size_t> more = question.more, others;
  Random draw = random.stream(kFilling);
  draw.shuffle(more);
  std::vector<bool> taken(set.documents.size(), false);
  for (const std::size_t i : question.own) taken[i] = true;
  for (const std::size_t i : more) taken[i] = true;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i]) others.push_back(i);
  }
  draw.shuffle(others);
  std::vector<std::size_t> order = question.own;
  order.insert(order.end(), more.begin(), more.end());
  order.insert(order.end(), others.begin(), others.end());

  return {
      static_cast<std::int64_t>(question.own.size()), [=, &set, &question](std::int64_t units) -> Prompt {
        std::vector<std::size_t> shown;  // beyond all of them they are repeated
        for (std::size_t i = 0; i < static_cast<std::size_t>(units); ++i)
          shown.push_back(order[i % order.size()]);
        Random shuffled = random.stream(kOrder);
        shuffled.shuffle(shown);
        std::string context;
        for (std::size_t i = 0; i < shown.size(); ++i) {
          context += (i > 0 ? "\n\n" : "");
          context += "Document " + std::to_string(i + 1) + ":\n" + set.documents[shown[i]];
        }
        constexpr const char* kTask =
            "Answer the question based on the given documents. Only give me the answer and do not output any "
            "other words.\n\n";
        return {std::string(kTask) + "The following are given documents.\n\n" + context + "\n\n" + kTask +
                    "Question: " + question.text + " Answer:",
                question.answers};
      }};
}

}  // namespace gsa::ruler
