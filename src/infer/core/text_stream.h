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
  const std::string& stop() const { return stops_[stop_.value()]; }  // the one that was found

 private:
  std::string release(const std::string& text);

  const data::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  bool at_start_;
  Utf8Stream characters_;
  std::string held_;  // the beginning of a stop string, perhaps
  std::optional<std::size_t> stop_;
};

}  // namespace gsa::infer
