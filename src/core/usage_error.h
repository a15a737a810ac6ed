// A mistake in how the program was called: an option, a key of a configuration, or how they go together. The
// program ends with another status than where a file, the memory or the data failed.
#pragma once

#include <utility>

#include "gsa/error.h"

namespace gsa {

class UsageError : public Error {
 public:
  using Error::Error;
};

// What work() returns. It looks at nothing but what the user asked for: its errors are errors of usage.
template <typename Work>
auto checking_usage(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace gsa
