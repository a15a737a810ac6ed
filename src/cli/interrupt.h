// Ctrl-C and SIGTERM as a question that long work asks between its steps.
#pragma once

namespace gsa::cli {

// Exit status of work that was interrupted and put away in order: it can go on (sysexits.h's EX_TEMPFAIL).
constexpr int kInterrupted = 75;

// From here on the first SIGINT or SIGTERM is noted instead of ending the program; a second one ends it at
// once.
void watch_interrupts();

bool interrupted();

}  // namespace gsa::cli
