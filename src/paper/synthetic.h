// Text made by rule for `gsa paper`, as ids: stories, code-like lines that refer far back, and tasks of RULER's kind
// in other words. The same for the same key everywhere.
//
// Tasks share neither keys nor templates with RULER's prompts (ruler/draft.h): keys here are verb-noun pairs and
// small letters, there adjective-noun pairs and capitals.
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

// A question of RULER's kind on a text around it, with its answer.
struct Task {
  std::vector<std::string> parts;  // in their order, the question last
  std::string answer;
};
// room: characters that it may have in all, about.
Task make_task(Random random, std::int64_t room);

// What a row consists of.
enum class Content { story, code, tasks };

// Exactly `tokens` ids, without marks: texts of this kind one after the other, the last one cut. Tasks are whole but
// for the last one of a row.
Ids make_row(Content content, Random random, std::int64_t tokens, const data::Tokenizer& tokenizer);

// Lines for a tokenizer to learn from.
std::vector<std::string> tokenizer_lines(std::uint64_t key, int count);

}  // namespace gsa::paper
