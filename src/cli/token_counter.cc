#include "cli/token_counter.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include "core/json.h"
#include "gsa/error.h"

namespace gsa::cli {

TokenCounter::TokenCounter(std::string command) : command_(std::move(command)) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(concat("--counter: cannot start it: ", std::strerror(errno)));
  }
  child_ = ::fork();
  if (child_ == 0) {
    // Ctrl-C is ours to handle: the program ends when its input does.
    ::signal(SIGINT, SIG_IGN);
    ::dup2(ends[1], STDIN_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-c", command_.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  socket_ = ends[0];
  if (child_ < 0) {
    ::close(socket_);
    throw Error(concat("--counter: cannot start it: ", std::strerror(errno)));
  }
}

TokenCounter::~TokenCounter() {
  ::close(socket_);
  ::waitpid(child_, nullptr, 0);
}

void TokenCounter::ended() const {
  throw Error(concat("--counter: expected a number of tokens from `", command_, "`, got its end"));
}

std::string TokenCounter::read_line() {
  for (;;) {
    if (const std::size_t end = rest_.find('\n'); end != std::string::npos) {
      std::string line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return line;
    }
    char part[256];
    const ssize_t got = ::recv(socket_, part, sizeof part, 0);
    if (got > 0) {
      rest_.append(part, static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      ended();
    }
  }
}

std::int64_t TokenCounter::count(const std::string& text) {
  const std::string line = Json(text).dump() + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t now = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (now > 0) {
      sent += static_cast<std::size_t>(now);
    } else if (errno != EINTR) {
      ended();
    }
  }
  const std::string answer = read_line();
  std::int64_t tokens = 0;
  const char* const end = answer.data() + answer.size();
  const auto [stop, error] = std::from_chars(answer.data(), end, tokens);
  if (error != std::errc() || stop != end || tokens < 0) {
    throw Error(concat("--counter: expected a number of tokens from `", command_, "`, got '",
                       answer.substr(0, 80), "'"));
  }
  return tokens;
}

}  // namespace gsa::cli
