// How many threads a user's wish gives torch.
#pragma once

#include <cstdint>
#include <string>

namespace gsa::binding {

constexpr std::int64_t kMaxThreads = 4096;  // that anyone may ask for

// Gives torch so many threads, at most one for each core that the process may run on: more only take turns,
// and results do not depend on them. 0: as it is. Returns a note for the user where there are fewer than
// wanted, else nothing.
std::string use_threads(std::int64_t wanted);

}  // namespace gsa::binding
