// Text made by rule for `gsa paper`, as ids: stories, code-like lines that refer far back, and tasks of RULER's kind
// in other words. The same for the same key everywhere.
//
// Tasks share neither keys nor templates with RULER's prompts (ruler/draft.h): keys here are verb-noun pairs and four
// small letters, there adjective-noun pairs and five capitals. Nouns are the same, as halves of keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "ruler/random.h"

namespace gsa::paper {

using ruler::Random;
using Ids = std::vector<std::int32_t>;

std::string story_text(Random random, int sentences);
std::string code_text(Random random, int lines);

struct Question {
  std::string text, answer;
};
// A text and questions of RULER's kind on it, one or several.
struct Task {
  std::vector<std::string> parts;  // of the text, in their order
  std::vector<Question> questions;
};
// room: characters that it may have in all, about.
Task make_task(Random random, std::int64_t room);

// What a row consists of.
enum class Content { story, code, tasks };

// Exactly `tokens` ids, without marks: texts of this kind one after the other, the last one cut. Tasks are whole: most
// rows have many of 200 to 1,000 tokens, some have long ones.
Ids make_row(Content content, Random random, std::int64_t tokens, const data::Tokenizer& tokenizer);

// Lines for a tokenizer to learn from.
std::vector<std::string> tokenizer_lines(std::uint64_t key, int count);

}  // namespace gsa::paper
