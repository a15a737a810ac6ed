#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "cli/text.h"
#include "gsa/error.h"

namespace gsa::cli {

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e12) + 0.5);
  char text[64];
  if (whole < 60) {
    std::snprintf(text, sizeof text, "%d s", static_cast<int>(whole));
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%d min %02d s", static_cast<int>(whole / 60),
                  static_cast<int>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%lld h %02d min", static_cast<long long>(whole / 3600),
                  static_cast<int>(whole % 3600 / 60));
  }
  return text;
}

Progress::Progress(std::string title, std::int64_t total)
    : title_(std::move(title)), total_(total), terminal_(is_terminal(STDERR_FILENO)) {}

Progress::~Progress() {
  if (terminal_ && drawn_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::line(const std::string& text) {
  if (terminal_ && drawn_) std::cerr << "\r\033[K" << std::flush;
  std::cout << text << std::endl;
}

void Progress::update(std::int64_t done, const std::string& detail) {
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000))) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::string text = title_ + "  ";
  if (total_ > 0) {
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
    if (terminal_) {
      constexpr int kWidth = 24;
      const int filled = static_cast<int>(share * kWidth);
      for (int i = 0; i < kWidth; ++i) text += i < filled ? symbol("█", "#") : symbol("░", ".");
      text += "  ";
    }
    text += concat(percent(share), "  ", detail);
    if (share > 0) text += concat("  ", duration(seconds * (1 - share) / share), " left");
  } else {
    text += detail;
  }
  drawn_ = true;
  std::cerr << (terminal_ ? "\r\033[K" : "") << text << (terminal_ ? "" : "\n") << std::flush;
}

}  // namespace gsa::cli
