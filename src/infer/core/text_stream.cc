#include "infer/core/text_stream.h"

#include <algorithm>

#include "core/utf8.h"
#include "gsa/error.h"

namespace gsa::infer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The longest end of `text` with which one of the stop strings begins.
std::size_t held_length(std::string_view text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(text.size(), stop.size() - 1); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Beginning beginning = first_character(rest);
    if (beginning.state == Utf8Beginning::incomplete) break;
    text += beginning.state == Utf8Beginning::complete ? rest.substr(0, beginning.length) : kReplacement;
    rest.remove_prefix(beginning.length);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return incomplete ? std::string(kReplacement) : std::string();
}

bool is_empty_text(const data::Tokenizer& tokenizer, std::span<const std::int64_t> ids) {
  return std::none_of(ids.begin(), ids.end(), [&](std::int64_t id) {
    return id < tokenizer.vocab_size() && !tokenizer.bytes_of(static_cast<std::int32_t>(id)).empty();
  });
}

TextStream::TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops, bool at_start)
    : tokenizer_(tokenizer), stops_(std::move(stops)), at_start_(at_start) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) bad_argument("generate", "stop", "a text", "an empty one");
  }
  // Of those that end at the same place the longest is found first.
  std::stable_sort(stops_.begin(), stops_.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string TextStream::push(std::int32_t id) {
  std::string bytes = tokenizer_.bytes_of(id);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (bytes.front() == ' ' && !tokenizer_.decode({&id, 1}).starts_with(' ')) bytes.erase(0, 1);
  }
  return release(characters_.push(bytes));
}

std::string TextStream::finish() {
  std::string text = release(characters_.finish());
  if (!stopped()) text += held_;
  held_.clear();
  return text;
}

std::string TextStream::release(const std::string& text) {
  if (stopped()) return "";
  for (const char c : text) {
    held_ += c;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      if (!held_.ends_with(stops_[i])) continue;
      stop_ = i;
      const std::string shown = held_.substr(0, held_.size() - stops_[i].size());
      held_.clear();
      return shown;
    }
  }
  const std::size_t kept = held_length(held_, stops_);
  const std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

}  // namespace gsa::infer
