// Tokens to text as they come, fit for a terminal: never half a character, never the beginning of a stop
// string. No torch.
//
//   TextStream stream(tokenizer, {"\n\n"});
//   for (...) { show(stream.push(id)); if (stream.stopped()) break; }
//   show(stream.finish());
//
// What is shown in all depends on the tokens alone, not on how they were cut from the text: bytes that are no
// UTF-8 become U+FFFD, one for each longest beginning of a character; the text ends before the stop string
// that is complete first (of several that are complete at once, before the longest).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace gsa::infer {

// Bytes to UTF-8: complete characters at once, the beginning of one when the rest has come.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  // What is left is no character any more: U+FFFD, or nothing.
  std::string finish();

 private:
  std::string pending_;  // the beginning of a character
};

// Whether tokens give no text, so that what is written behind them is a text's beginning.
bool is_empty_text(const data::Tokenizer& tokenizer, std::span<const std::int64_t> ids);

// Looks for a text among bytes as they come, each in constant time on average, however long it is and whatever it
// repeats (Knuth, Morris and Pratt).
class StopMatcher {
 public:
  explicit StopMatcher(std::string stop);

  bool push(char byte);                             // true: the bytes end with it
  std::size_t matched() const { return matched_; }  // so much of its beginning the bytes end with, at most
  const std::string& text() const { return stop_; }

 private:
  std::string stop_;
  // By a length of its beginning: that of the longest shorter beginning with which that one ends.
  std::vector<std::size_t> shorter_;
  std::size_t matched_ = 0;
};

class TextStream {
 public:
  // The tokenizer must outlive the stream. at_start: the first token begins a text (no prompt before it);
  // some tokenizers put a space there that is not part of it.
  TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops, bool at_start = false);

  // The text that the token makes certain; may be empty. Nothing after a stop string.
  std::string push(std::int32_t id);
  // What was held back, once no token follows.
  std::string finish();

  bool stopped() const { return stop_.has_value(); }
  const std::string& stop() const { return stops_[stop_.value()].text(); }  // the one that was found

 private:
  std::string release(const std::string& text);

  const data::Tokenizer& tokenizer_;
  std::vector<StopMatcher> stops_;  // the longest first
  bool at_start_;
  Utf8Stream characters_;
  std::string held_;  // the beginning of a stop string, perhaps
  std::optional<std::size_t> stop_;
};

}  // namespace gsa::infer
