#include "cli/interrupt.h"

#include <csignal>

namespace gsa::cli {
namespace {

volatile std::sig_atomic_t noted = 0;

void note(int) { noted = 1; }

}  // namespace

void watch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note;
  // The handler is gone after its first call. No SA_RESTART: who waits for standard input shall wake up.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return noted != 0; }

}  // namespace gsa::cli
