// Text from many prompts that may begin alike: what several begin with is read once and its pages are shared.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "infer/generate.h"

namespace gsa::infer {

// How many sequences of so many tokens the cache has room for beside what it holds, at most as many as a step takes; 0
// where there is none.
std::int64_t fitting_sequences(Engine& engine, std::int64_t tokens);

// Both may be empty.
struct SharedEvents {
  // Tokens of prompts, common ones counted once.
  std::function<void(std::int64_t read, std::int64_t total)> progress;
  std::function<bool()> cancelled;  // asked between passes; true ends every text where it is
};

// As generate() for fresh sequences with one sample each. prompts: their tokens, at least one each; all of them are
// in the cache at once, so fitting_sequences() should allow for them.
GenerateResult generate_shared(Engine& engine, const data::Tokenizer& tokenizer,
                               std::span<const std::vector<std::int64_t>> prompts,
                               const GenerateOptions& options, const SharedEvents& events = {});

}  // namespace gsa::infer
