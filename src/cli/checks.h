// Checks of option values that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/usage_error.h"

namespace gsa::cli {

// For an option's check(): a whole number of at least 1.
CLI::Validator positive_whole();
// A whole number in minimum .. maximum.
CLI::Validator whole_in(std::uint64_t minimum, std::uint64_t maximum);

// A number in minimum .. maximum, never NaN.
CLI::Validator number_in(double minimum, double maximum);

// "gsa::sample: argument 'top_k': expected ..." as its user knows it: "--top-k: expected ...". option: the
// one that was typed, else it follows from the argument's name. Other messages stay as they are.
std::string naming_option(const std::string& message, const std::string& option = "");

// What work() returns, which looks at nothing but what the user asked for: errors are of usage, and name the
// option.
template <typename Work>
auto checking_option(const std::string& option, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const Error& error) {
    throw UsageError(naming_option(error.what(), option));
  }
}

// "note: ..." on standard error; nothing for an empty text.
void tell_note(const std::string& note);

// Throws where the value is none of the choices, with the one that may have been meant.
void check_choice(const char* option, const std::string& value, const std::vector<std::string>& choices);

// Refuses a folder in which no file could be made, before work whose results go there. Makes nothing: it need
// not be there yet.
void check_writable_folder(const std::string& folder);

}  // namespace gsa::cli
