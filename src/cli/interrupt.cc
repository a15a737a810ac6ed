#include "cli/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace gsa::cli {
namespace {

volatile std::sig_atomic_t noted = 0;
volatile std::sig_atomic_t asked_to_end = 0;  // by SIGINT or SIGTERM

// A second SIGINT or SIGTERM ends the program, whichever of them was the first.
void note(int signal) {
  noted = 1;
  if (signal != SIGINT && signal != SIGTERM) return;
  if (asked_to_end != 0) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // takes effect when this returns
  }
  asked_to_end = 1;
}

void watch(int signal, int flags) {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = flags;  // no SA_RESTART: who waits for standard input shall wake up
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void watch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM}) watch(signal, 0);
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
