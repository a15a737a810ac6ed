#include "infer/core/text_stream.h"

#include <algorithm>
#include <utility>

#include "core/utf8.h"
#include "gsa/error.h"

namespace gsa::infer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

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

StopMatcher::StopMatcher(std::string stop) : stop_(std::move(stop)), shorter_(stop_.size() + 1, 0) {
  for (std::size_t end = 1, length = 0; end < stop_.size(); ++end) {
    while (length > 0 && stop_[end] != stop_[length]) length = shorter_[length];
    if (stop_[end] == stop_[length]) ++length;
    shorter_[end + 1] = length;
  }
}

bool StopMatcher::push(char byte) {
  if (matched_ == stop_.size()) matched_ = shorter_[matched_];
  while (matched_ > 0 && stop_[matched_] != byte) matched_ = shorter_[matched_];
  if (stop_[matched_] == byte) ++matched_;
  return matched_ == stop_.size();
}

TextStream::TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops, bool at_start)
    : tokenizer_(tokenizer), at_start_(at_start) {
  // Of those that end at the same place the longest is found first.
  std::stable_sort(stops.begin(), stops.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  for (std::string& stop : stops) {
    if (stop.empty()) bad_argument("generate", "stop", "a text", "an empty one");
    stops_.emplace_back(std::move(stop));
  }
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
  held_ += text;
  std::size_t kept = 0;  // of the bytes so far, their end with which a stop string begins
  for (std::size_t at = held_.size() - text.size(); at < held_.size(); ++at) {
    kept = 0;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      if (stops_[i].push(held_[at])) {
        stop_ = i;
        held_.resize(at + 1 - stops_[i].text().size());
        return std::exchange(held_, {});
      }
      kept = std::max(kept, stops_[i].matched());
    }
  }
  if (text.empty()) return "";
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

}  // namespace gsa::infer
