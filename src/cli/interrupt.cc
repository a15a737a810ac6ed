#include "cli/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace gsa::cli {
namespace {

volatile std::sig_atomic_t noted = 0;

void note(int) { noted = 1; }

void watch(int signal, int flags) {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = flags;  // no SA_RESTART: who waits for standard input shall wake up
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void watch_interrupts() {
  // The handler is gone after its first call.
  for (const int signal : {SIGINT, SIGTERM}) watch(signal, static_cast<int>(SA_RESETHAND));
  // These come several times for one cause: a terminal's end is told by the shell and by the system, SIGXCPU
  // every second. A second one must not cut off what the first has begun.
  for (const int signal : {SIGHUP, SIGXCPU, SIGUSR1}) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) watch(signal, 0);
  }
}

bool interrupted() { return noted != 0; }

}  // namespace gsa::cli
