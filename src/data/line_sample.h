// An even sample of the lines of a text that is too large to keep: after n lines each of them is in the
// sample with the same probability. The same text and size give the same sample.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace gsa::data {

class LineSample {
 public:
  // A longer line counts as several: a tokenizer's trainer would leave it out.
  static constexpr std::size_t kMaxLine = 8192;

  explicit LineSample(std::size_t size) : size_(size) {}

  void add(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::size_t taken = std::min(end, kMaxLine);
      // Not inside a character of UTF-8, whose later bytes are 10xxxxxx.
      for (int back = 0; back < 3 && taken > 1 && taken < end && (text[taken] & 0xc0) == 0x80; ++back)
        --taken;
      if (taken > 0) offer(text.substr(0, taken));
      text.remove_prefix(std::min(text.size(), taken == end ? end + 1 : taken));
    }
  }

  const std::vector<std::string>& lines() const { return lines_; }
  std::int64_t seen() const { return static_cast<std::int64_t>(seen_); }

 private:
  void offer(std::string_view line) {
    ++seen_;
    if (lines_.size() < size_) {
      lines_.emplace_back(line);
    } else if (const std::uint64_t place = random_() % seen_; place < size_) {
      lines_[place] = line;
    }
  }

  std::size_t size_;
  std::uint64_t seen_ = 0;
  std::mt19937_64 random_{1};
  std::vector<std::string> lines_;
};

}  // namespace gsa::data
