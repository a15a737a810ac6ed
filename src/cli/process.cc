#include "cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>

namespace gsa::cli {
namespace {

// In a signal's handler: nothing may take memory or a lock, so plain calls and a buffer on the stack.
void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Of a line of /proc/self/maps, "start-end rwxp offset device inode    /path": the path where the range holds
// the address, else nothing.
std::string_view file_at(std::string_view line, std::uintptr_t address) {
  std::uintptr_t start = 0, end = 0;
  const char* const last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), last, start, 16);
  if (first.ec != std::errc() || first.ptr == last) return {};
  std::from_chars(first.ptr + 1, last, end, 16);
  const std::size_t path = line.find('/');
  if (address < start || address >= end || path == std::string_view::npos) return {};
  return line.substr(path);
}

// Calls found(path) for the file that is mapped at the address.
template <typename Found>
void find_mapped(std::uintptr_t address, const Found& found) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return;
  char buffer[8192];  // a path has at most 4096 bytes
  std::size_t filled = 0;
  for (;;) {
    const ssize_t count = ::read(maps, buffer + filled, sizeof buffer - filled);
    if (count <= 0) break;
    filled += static_cast<std::size_t>(count);
    std::string_view text(buffer, filled);
    for (std::size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
      const std::string_view path = file_at(text.substr(0, end), address);
      if (!path.empty()) return found(path);
    }
    filled = text.size();
    std::memmove(buffer, text.data(), filled);
  }
  ::close(maps);
}

void bus_error(int signal, siginfo_t* info, void*) {
  find_mapped(reinterpret_cast<std::uintptr_t>(info->si_addr), [](std::string_view path) {
    say("gsa: file '");
    say(path);
    say("': expected it to stay as it is while it is in use, got one that was cut short or cannot be read\n");
    ::_exit(1);
  });
  ::signal(signal, SIG_DFL);  // another cause: it comes again when this returns, and ends the program
}

}  // namespace

void prepare_process() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is this one's.
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", O_RDWR);
  }
  ::signal(SIGXFSZ, SIG_IGN);
  struct sigaction action = {};
  action.sa_sigaction = bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace gsa::cli
