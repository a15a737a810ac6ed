// What gsa generate writes: text as it comes, or JSON lines; and what it cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "infer/generate.h"

namespace gsa::cli {

// Texts on standard output in the order of their prompts. The first one that has not ended is shown as it
// comes; those behind it wait, and appear as far as they are when it has.
class TextOutput {
 public:
  // titles: one a text, shown above it where there are several. openings: what is shown before each (an
  // echoed prompt, or nothing).
  TextOutput(std::vector<std::string> titles, std::vector<std::string> openings);

  void text(std::size_t index, const std::string& more);
  void finished(std::size_t index);
  // Ends a line that has been begun.
  void close();

 private:
  void begin();  // the text whose turn it is
  void write(const std::string& text);

  std::vector<std::string> titles_, openings_, waiting_;
  std::vector<bool> done_;
  std::size_t turn_ = 0;
  bool begun_ = false, in_line_ = false;
};

// One line for a text, in the order of ending. tokenizer: for the texts of log-probabilities.
std::string json_line(const infer::GeneratedText& text, std::int64_t prompt_tokens,
                      const data::Tokenizer& tokenizer);

struct GenerateCosts {
  infer::GenerateTimes times;
  infer::CacheUse cache;
  double keys_per_query = 0;  // 0: nothing was computed
  std::int64_t weight_bytes = 0;
  std::vector<infer::GenerateTimes> passes = {};  // that `times` are medians of; none: of one, the first
};

// Of passes that did the same work, at least one.
infer::GenerateTimes median_of(const std::vector<infer::GenerateTimes>& passes);

std::string describe(const GenerateCosts& costs);   // a few lines for people
std::string json_line(const GenerateCosts& costs);  // {"stats": ...}

}  // namespace gsa::cli
