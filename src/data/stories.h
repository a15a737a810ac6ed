// Stories made up by rule, for the demo: as much text as wanted, the same for the same seed everywhere, with
// something in it that only the context can tell.
//
// A story has a hero and one thing of each kind: one drink, one animal, one city, ... Once Nora drank tea,
// she drinks tea to the story's end; another story chooses anew. So the word after "Nora drank" cannot be
// known where it comes up first, and can always be known later by who looks back.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace gsa::data {

// A story that tells of one kind of thing once, at a chosen depth, and ends in the middle of a sentence that
// asks for it.
struct Needle {
  std::string prompt;       // "... Nora drank tea. ... Soon Nora drank"
  std::string answer;       // " tea"
  std::string needle;       // "Nora drank tea."
  std::string question;     // "Soon Nora drank"
  std::int64_t tokens = 0;  // of the prompt, without marks
  // Tokens from the answer's place in the needle to the place where it is asked for.
  std::int64_t distance = 0;
};

class Stories {
 public:
  explicit Stories(std::uint64_t seed) : random_(seed) {}

  // Exactly `tokens` tokens of this tokenizer, without marks: sentences as long as they fit, then line ends.
  std::string story(std::int64_t tokens, const Tokenizer& tokenizer);
  // The same by the number of sentences, on one line.
  std::string story(int sentences);

  // At most `tokens` tokens with the answer, and only a sentence less. depth: 0 puts the needle at the
  // story's beginning, 1 right before the question.
  Needle needle(double depth, std::int64_t tokens, const Tokenizer& tokenizer);

  // Things of one kind; a guess among them is right once in so many times.
  static constexpr std::size_t kChoices = 16;
  // Kinds of things: what is done with them ("drank"), and the words.
  struct Kind {
    const char* deed;
    const char* things[kChoices];
  };
  static std::span<const Kind> kinds();

 private:
  struct Cast {  // of one story
    const char* hero = "";
    std::vector<const char*> things;   // one a kind
    std::vector<std::size_t> weights;  // how often a kind comes up
  };

  std::size_t below(std::size_t count) { return random_() % count; }
  const char* one_of(std::span<const char* const> words) { return words[below(words.size())]; }
  Cast cast();
  std::size_t some_kind(const Cast& cast);
  std::string sentence(const Cast& cast);

  std::mt19937_64 random_;
};

}  // namespace gsa::data
