// Ids of a dataset's text for benchmarks on trained models: its documents concatenated, from a place on. No
// torch header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace gsa::bench {

struct TextWindow {
  std::filesystem::path data;   // a folder that `gsa tokenize` made
  std::filesystem::path model;  // its tokenizer, where it has one, must be the dataset's
  std::int64_t vocab_size = 0;  // the model's
  std::int64_t offset = 0;      // ids to leave out
  std::int64_t count = 0;
};

// Throws where the dataset is another tokenizer's, or ends before the window does.
std::vector<std::int64_t> read_text(const TextWindow& window);

}  // namespace gsa::bench
