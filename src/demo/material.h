// What the demo learns from and is asked: stories, their tokenizer, and needles in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/tokenizer.h"
#include "demo/results.h"
#include "eval/recall.h"
#include "nn/torch.h"

namespace gsa::demo {

constexpr std::int64_t kLength = 512;  // tokens of a story, marks included: a row of training

std::unique_ptr<data::Tokenizer> make_tokenizer(std::uint64_t seed);

// A dataset of stories of kLength tokens.
void write_stories(const std::filesystem::path& folder, const data::Tokenizer& tokenizer, std::uint64_t seed,
                   std::int64_t count);

// Needles at several depths, as many at each; `asked` says what each is in words.
struct Needles {
  std::vector<double> depths;
  std::int64_t each = 0;
  std::vector<eval::Question> questions;  // depth by depth
  std::vector<AskedQuestion> asked;       // likewise
};
Needles make_needles(const data::Tokenizer& tokenizer, std::uint64_t seed, std::int64_t each);

// Recall at each depth. answers: of eval::ask(), in the order of the needles.
std::vector<Depth> recall_by_depth(const Needles& needles, const std::vector<eval::Answer>& answers);

}  // namespace gsa::demo
