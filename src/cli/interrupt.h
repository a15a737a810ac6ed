// Signals that ask to end, as a question that long work asks between its steps.
#pragma once

namespace gsa::cli {

// Exit status of work that was interrupted and put away in order: it can go on (sysexits.h's EX_TEMPFAIL).
constexpr int kInterrupted = 75;

// From here on SIGINT (Ctrl-C), SIGTERM, SIGHUP (a closed terminal), SIGXCPU (a limit of CPU time) and
// SIGUSR1 (the warning of a scheduler) are noted instead of ending the program. A second SIGINT or SIGTERM
// ends it at once. SIGHUP, SIGXCPU and SIGUSR1 stay ignored where the caller ignores them (nohup).
void watch_interrupts();

bool interrupted();

}  // namespace gsa::cli
