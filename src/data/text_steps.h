// What happens to a text before byte-pair encoding, as tokenizer.json lists it: normalizers change the text,
// pre-tokenizers cut it into words. Text is valid UTF-8 throughout.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/regex.h"

namespace gsa::data {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // continues: the text goes on behind bytes that are no UTF-8; nothing is put in front of it.
  virtual void apply(std::string& text, bool continues) const = 0;
};

std::unique_ptr<Normalizer> nfc_normalizer();
std::unique_ptr<Normalizer> prepend_normalizer(std::string prefix);  // not to an empty text
std::unique_ptr<Normalizer> replace_normalizer(std::string from, std::string to);

// text with every `from` (not empty) replaced, from the left.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

struct Words {
  struct Span {
    std::size_t begin, end;
  };
  std::string text;
  std::vector<Span> spans;  // ascending, none empty
  bool at_start = false;    // the first word begins the whole text
  bool continues = false;   // it goes on behind bytes that are no UTF-8; nothing is put in front of it

  std::string_view at(Span span) const {
    return std::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Words& words, RegexScratch& scratch) const = 0;
};

// What becomes of the places that a pattern matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// invert: what lies between the matches counts as matched.
std::unique_ptr<PreTokenizer> split_pre_tokenizer(Regex pattern, SplitBehavior behavior, bool invert);

// A space before each word that has none (ByteLevel's add_prefix_space).
std::unique_ptr<PreTokenizer> prefix_space_pre_tokenizer();

enum class PrependScheme { always, first, never };
// Spaces become `replacement`, which may also be put in front; each begins a word where `split`.
std::unique_ptr<PreTokenizer> metaspace_pre_tokenizer(std::string replacement, PrependScheme scheme,
                                                      bool split);

}  // namespace gsa::data
