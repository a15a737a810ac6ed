// The regular expressions of tokenizer.json, by PCRE2. They are written for Oniguruma: what means the same to
// both goes through, what PCRE2 writes otherwise is rewritten, and what is neither is refused by name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;
struct pcre2_real_jit_stack_8;

namespace gsa::data {

// As PCRE2 writes it. file: for messages.
std::string pcre2_pattern(std::string_view pattern, const std::string& file);

// The pattern that matches this text and no other.
std::string escaped_pattern(std::string_view text);

// What matching writes to; one for each thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_data_8* data_ = nullptr;
  pcre2_real_match_context_8* context_ = nullptr;
  pcre2_real_jit_stack_8* stack_ = nullptr;
};

class Regex {
 public:
  // pattern: Oniguruma's; file: for messages.
  Regex(std::string_view pattern, const std::string& file);

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  // The first match at `from` or behind it; false: none. text is valid UTF-8.
  bool find(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace gsa::data
