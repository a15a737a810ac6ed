// Expecting a gsa::Error that says certain things.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "gsa/error.h"

namespace gsa::testing {

template <typename Call>
void expect_error(const Call& call, std::initializer_list<std::string> parts) {
  try {
    call();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in: " << text;
    }
  }
}

}  // namespace gsa::testing
