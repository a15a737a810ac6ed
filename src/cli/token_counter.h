// A program that counts tokens for us: tokenizers that cannot be read here, such as those of transformers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gsa::cli {

class TokenCounter {
 public:
  // A command for the shell. It gets a JSON string a line and answers each with a line: a number.
  explicit TokenCounter(std::string command);
  ~TokenCounter();  // the program sees the end of its input and is waited for
  TokenCounter(const TokenCounter&) = delete;
  TokenCounter& operator=(const TokenCounter&) = delete;

  // Throws gsa::Error where it answers something else, or has ended.
  std::int64_t count(const std::string& text);

 private:
  std::string read_line();
  [[noreturn]] void ended() const;

  std::string command_, rest_;
  pid_t child_ = -1;
  int socket_ = -1;
};

}  // namespace gsa::cli
