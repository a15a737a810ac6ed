// What the program settles with the system before anything else.
#pragma once

namespace gsa::cli {

// - Closed standard streams (`>&-`) lead to /dev/null: a file opened later must not get their numbers, and
//   with them what is meant for people.
// - A file beyond the limit of its size (`ulimit -f`) fails as one on a full disk does, instead of SIGXFSZ.
// - A mapped file that another process cuts short ends the program with status 1 and an error that names the
//   file, instead of SIGBUS.
void prepare_process();

}  // namespace gsa::cli
