#include "data/text_steps.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "core/utf8.h"
#include "gsa/error.h"

namespace gsa::data {
namespace {

using Span = Words::Span;

// Characters that are no combining marks, and that normalization leaves as they are whatever stands beside
// them, unless a character outside of these ranges does. Most text has no others.
constexpr std::pair<std::uint32_t, std::uint32_t> kStable[] = {
    {0x0000, 0x02FF}, {0x0390, 0x03FF}, {0x0400, 0x0482},   {0x048A, 0x052F}, {0x05D0, 0x05EA},
    {0x0621, 0x064A}, {0x2010, 0x2027}, {0x2030, 0x205E},   {0x2190, 0x21FF}, {0x2200, 0x22FF},
    {0x2500, 0x27BF}, {0x3001, 0x3029}, {0x3041, 0x3096},   {0x30A0, 0x30FF}, {0x4E00, 0x9FFF},
    {0xAC00, 0xD7A3}, {0xFF01, 0xFFEF}, {0x1F300, 0x1FAFF},
};

bool is_stable(std::uint32_t character) {
  const auto* range =
      std::upper_bound(std::begin(kStable), std::end(kStable), character,
                       [](std::uint32_t value, const auto& entry) { return value < entry.first; });
  return range != std::begin(kStable) && character <= (range - 1)->second;
}

bool all_stable(std::string_view text) {
  while (!text.empty()) {
    // Lead bytes below 0xCC begin characters below U+0300.
    if (static_cast<unsigned char>(text[0]) >= 0xCC && !is_stable(code_point(text))) return false;
    text.remove_prefix(character_length(text));
  }
  return true;
}

class Nfc final : public Normalizer {
 public:
  void apply(std::string& text, bool) const override {
    if (all_stable(text)) return;
    utf8proc_uint8_t* result = nullptr;
    const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
    if (size < 0) throw Error(concat("gsa: tokenizer: normalization failed: ", utf8proc_errmsg(size)));
    text.assign(reinterpret_cast<const char*>(result), static_cast<std::size_t>(size));
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, bool continues) const override {
    if (!text.empty() && !continues) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void apply(std::string& text, bool) const override { text = replaced(text, from_, to_); }

 private:
  std::string from_, to_;
};

class SplitByPattern final : public PreTokenizer {
 public:
  SplitByPattern(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(Words& words, RegexScratch& scratch) const override {
    std::vector<Span> spans;
    spans.reserve(words.text.size() / 4 + 1);
    std::vector<Part> parts;
    for (const Span span : words.spans) {
      parts.clear();
      cut(words.at(span), span.begin, scratch, parts);
      gather(parts, spans);
    }
    words.spans = std::move(spans);
  }

 private:
  struct Part {
    Span span;
    bool matched;
  };

  // The matches and what lies between them. A match may be empty: then it only cuts.
  void cut(std::string_view text, std::size_t offset, RegexScratch& scratch, std::vector<Part>& parts) const {
    std::size_t end = 0;  // of what is in parts
    std::size_t from = 0;
    bool any = false;
    Regex::Match match;
    while (from <= text.size() && pattern_.find(text, from, scratch, match)) {
      const bool empty = match.begin == match.end;
      if (!empty || !any || match.end != end) {
        if (match.begin > end) parts.push_back({{offset + end, offset + match.begin}, invert_});
        parts.push_back({{offset + match.begin, offset + match.end}, !invert_});
        end = match.end;
        any = true;
      }
      from = match.end;
      if (empty) from += from < text.size() ? character_length(text.substr(from)) : 1;
    }
    if (end < text.size()) parts.push_back({{offset + end, offset + text.size()}, invert_});
  }

  void gather(std::vector<Part>& parts, std::vector<Span>& spans) const {
    const std::size_t first = spans.size();
    switch (behavior_) {
      case SplitBehavior::isolated:
        for (const Part& part : parts) spans.push_back(part.span);
        break;
      case SplitBehavior::removed:
        for (const Part& part : parts) {
          if (!part.matched) spans.push_back(part.span);
        }
        break;
      case SplitBehavior::contiguous:
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && parts[i].matched == parts[i - 1].matched) {
            spans.back().end = parts[i].span.end;
          } else {
            spans.push_back(parts[i].span);
          }
        }
        break;
      case SplitBehavior::merged_with_previous:
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && parts[i].matched && !parts[i - 1].matched) {
            spans.back().end = parts[i].span.end;
          } else {
            spans.push_back(parts[i].span);
          }
        }
        break;
      case SplitBehavior::merged_with_next:
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && parts[i - 1].matched && !parts[i].matched) {
            spans.back().end = parts[i].span.end;
          } else {
            spans.push_back(parts[i].span);
          }
        }
        break;
    }
    const auto is_empty = [](Span span) { return span.begin == span.end; };
    spans.erase(std::remove_if(spans.begin() + static_cast<std::ptrdiff_t>(first), spans.end(), is_empty),
                spans.end());
  }

  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class PrefixSpace final : public PreTokenizer {
 public:
  void apply(Words& words, RegexScratch&) const override {
    std::string text;
    std::vector<Span> spans;
    for (const Span span : words.spans) {
      const std::size_t begin = text.size();
      if (words.text[span.begin] != ' ' && (begin > 0 || !words.continues)) text += ' ';
      text += words.at(span);
      spans.push_back({begin, text.size()});
    }
    words.text = std::move(text);
    words.spans = std::move(spans);
  }
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  void apply(Words& words, RegexScratch&) const override {
    std::string text;
    std::vector<Span> spans;
    for (std::size_t i = 0; i < words.spans.size(); ++i) {
      const std::string_view word = words.at(words.spans[i]);
      std::size_t begin = text.size();
      const bool wanted = (scheme_ == PrependScheme::always && (i > 0 || !words.continues)) ||
                          (scheme_ == PrependScheme::first && i == 0 && words.at_start);
      if (wanted && word[0] != ' ' && !word.starts_with(replacement_)) text += replacement_;
      for (std::size_t at = 0; at < word.size(); ++at) {
        const bool space = word[at] == ' ';
        if (split_ && text.size() > begin && (space || word.substr(at).starts_with(replacement_))) {
          spans.push_back({begin, text.size()});
          begin = text.size();
        }
        if (space) {
          text += replacement_;
        } else {
          text += word[at];
        }
      }
      if (text.size() > begin) spans.push_back({begin, text.size()});
    }
    words.text = std::move(text);
    words.spans = std::move(spans);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

}  // namespace

std::unique_ptr<Normalizer> nfc_normalizer() { return std::make_unique<Nfc>(); }

std::unique_ptr<Normalizer> prepend_normalizer(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}

std::unique_ptr<Normalizer> replace_normalizer(std::string from, std::string to) {
  return std::make_unique<Replace>(std::move(from), std::move(to));
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t next = text.find(from, at);
    result += text.substr(at, next - at);
    if (next == std::string_view::npos) return result;
    result += to;
    at = next + from.size();
  }
}

std::unique_ptr<PreTokenizer> split_pre_tokenizer(Regex pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<SplitByPattern>(std::move(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizer> prefix_space_pre_tokenizer() { return std::make_unique<PrefixSpace>(); }

std::unique_ptr<PreTokenizer> metaspace_pre_tokenizer(std::string replacement, PrependScheme scheme,
                                                      bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}

}  // namespace gsa::data
