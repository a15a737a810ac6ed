#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/regex.h"

#include <pcre2.h>

#include <new>

#include "core/file.h"

namespace gsa::data {
namespace {

constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";  // \w of Oniguruma

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& file) : pattern_(pattern), file_(file) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        inside_class(c);
      } else {
        outside_class(c);
      }
    }
    if (in_class_) refuse("a class without its end");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    bad_file(file_,
             "a regular expression that gsa knows (literals, classes, \\s \\S \\d \\D \\w \\p{L}, groups, "
             "lookaround, repetition)",
             concat(what, " in ", pattern_));
  }

  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void inside_class(char c) {
    if (c == '[') refuse("a class within a class");
    if (follows("&&")) refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void outside_class(char c) {
    if (c == '[') {
      copy(follows("[^") ? 2 : 1);
      if (follows("]")) refuse("an empty class");
      in_class_ = true;
    } else if (c == '(') {
      group();
    } else if (follows("{,") || follows("}+")) {  // Oniguruma: from 0; and repeated, not possessive
      refuse(concat("'", pattern_.substr(at_, 2), "'"));
    } else {
      copy(1);
    }
  }

  void group() {
    if (follows("(*")) refuse("'(*'");
    if (!follows("(?")) return copy(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (follows(known)) return copy(known.size());
    }
    for (const std::string_view option : {"(?i)", "(?-i)"}) {
      if (!follows(option)) continue;
      // Behind something else Oniguruma takes the alternatives that follow into it: x(?i)a|b is x(?i:a|b).
      if (at_ > 0) refuse(concat("'", option, "' in the middle"));
      return copy(option.size());
    }
    refuse(concat("'", pattern_.substr(at_, 4), "'"));
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("a backslash at the end");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':  // PCRE2's own \s has U+180E too
      case 'S':
        out_ += c == 's' ? R"(\p{White_Space})" : R"(\P{White_Space})";
        at_ += 2;
        return;
      case 'w':
        out_ += in_class_ ? std::string(kWord) : concat("[", kWord, "]");
        at_ += 2;
        return;
      case 'p':
      case 'P':
        return property();
      case 'u':
        return hexadecimal(2, 4);
      case 'x':
        if (follows("\\x{")) {
          const std::size_t end = pattern_.find('}', at_);
          if (end == std::string_view::npos) refuse("'\\x{' without its end");
          return copy(end + 1 - at_);
        }
        return hexadecimal(2, 2);
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      default:
        if (std::string_view("\\.^$|()[]{}*+?-/'\"#&~ !%,:;<=>@_`").find(c) == std::string_view::npos) {
          refuse(concat("'", pattern_.substr(at_, 2), "'"));
        }
        return copy(2);
    }
  }

  void hexadecimal(std::size_t skip, std::size_t digits) {
    const std::string_view number = pattern_.substr(at_ + skip, digits);
    if (number.size() != digits ||
        number.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse(concat("'", pattern_.substr(at_, skip + digits), "'"));
    }
    out_ += concat("\\x{", number, "}");
    at_ += skip + digits;
  }

  // General categories mean the same to both. Scripts do not: PCRE2 takes Script_Extensions for them.
  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || end == std::string_view::npos) {
      refuse("'\\p' without a name in braces");
    }
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const bool inverse = name.starts_with('^');
    if (inverse) name.remove_prefix(1);
    const bool category =
        !name.empty() && name.size() <= 2 && std::string_view("CLMNPSZ").find(name[0]) != name.npos;
    if (!category && name != "Han") refuse(concat("the property '", name, "'"));
    out_ += concat(pattern_.substr(at_, 2), "{", inverse ? "^" : "", category ? "" : "sc:", name, "}");
    at_ = end + 1;
  }

  std::string_view pattern_;
  const std::string& file_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const std::string& file) {
  return Translation(pattern, file).run();
}

std::string escaped_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\.^$|()[]{}*+?").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

RegexScratch::RegexScratch() {
  constexpr std::size_t kStack = 32 << 10, kMaxStack = 16 << 20;
  data_ = pcre2_match_data_create(1, nullptr);
  context_ = pcre2_match_context_create(nullptr);
  stack_ = pcre2_jit_stack_create(kStack, kMaxStack, nullptr);
  if (data_ == nullptr || context_ == nullptr || stack_ == nullptr) throw std::bad_alloc();
  pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(stack_);
}

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Regex::Regex(std::string_view pattern, const std::string& file) {
  const std::string text = pcre2_pattern(pattern, file);
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // Oniguruma's ^ and $ are those of lines.
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                            context.get()));
  if (!code_) {
    bad_file(file, "a regular expression", concat(message_of(error), " at byte ", at, " of ", text));
  }
  // Where a machine allows no code to be made, PCRE2 interprets the pattern: slower, the same matches.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

bool Regex::find(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const {
  const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, scratch.data_, scratch.context_);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw Error(concat("gsa: tokenizer: a regular expression failed on a text of ", text.size(),
                       " bytes: ", message_of(found)));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data_);
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace gsa::data
