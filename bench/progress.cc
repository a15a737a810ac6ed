#include "progress.h"

#include <unistd.h>

#include <cstdio>

namespace gsa::bench {

namespace {

constexpr char kClearLine[] = "\r\033[K";

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {
  if (terminal_) thread_ = std::thread([this] { tick(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    std::fputs(kClearLine, stderr);
  }
  wake_.notify_one();
  thread_.join();
}

void Progress::start(const std::string& what) {
  const std::lock_guard lock(mutex_);
  case_ = what;
  step_.clear();
  part_ = {};
  if (!terminal_) std::fprintf(stderr, "%5.0f s  %s\n", run_.seconds(), what.c_str());
}

void Progress::step(const std::string& what) {
  const std::lock_guard lock(mutex_);
  step_ = what;
  part_ = {};
  if (terminal_) draw();
}

void Progress::say(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (terminal_) {
    std::fputs(kClearLine, stderr);
    std::fflush(stderr);
  }
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// Once a second: seldom enough to leave timings alone.
void Progress::tick() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::seconds(1), [this] { return stop_; })) draw();
}

void Progress::draw() {
  std::fprintf(stderr, "%s%.0f s  %s: %s, %.0f s", kClearLine, run_.seconds(), case_.c_str(), step_.c_str(),
               part_.seconds());
  std::fflush(stderr);
}

}  // namespace gsa::bench
