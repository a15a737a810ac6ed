#include "cli/checks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <string_view>
#include <system_error>

#include "core/file.h"
#include "core/suggest.h"
#include "core/usage_error.h"

namespace gsa::cli {

CLI::Validator positive_whole() {
  return {[](std::string& text) -> std::string {
            std::int64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end && value > 0) return "";
            return concat("expected a whole number of at least 1, got '", text, "'");
          },
          "POSITIVE"};
}

CLI::Validator whole_in(std::uint64_t minimum, std::uint64_t maximum) {
  return {[minimum, maximum](std::string& text) -> std::string {
            std::uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end && minimum <= value && value <= maximum) return "";
            return concat("expected a whole number in ", minimum, " .. ", maximum, ", got '", text, "'");
          },
          concat("in [", minimum, " - ", maximum, "]")};
}

CLI::Validator number_in(double minimum, double maximum) {
  return {[minimum, maximum](std::string& text) -> std::string {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            // The comparison is false for NaN.
            if (error == std::errc() && stop == end && minimum <= value && value <= maximum) return "";
            return concat("expected a number in ", minimum, " .. ", maximum, ", got '", text, "'");
          },
          concat("in [", minimum, " - ", maximum, "]")};
}

std::string naming_option(const std::string& message, const std::string& option) {
  constexpr std::string_view kArgument = ": argument '", kEnd = "': ";
  const std::size_t begin = message.find(kArgument);
  const std::size_t end = begin == std::string::npos ? begin : message.find(kEnd, begin + kArgument.size());
  if (!message.starts_with("gsa::") || end == std::string::npos) return message;
  std::string name = option;
  if (name.empty()) {
    std::string argument = message.substr(begin + kArgument.size(), end - begin - kArgument.size());
    // Where the option's name does not follow from the argument's.
    static const std::map<std::string, std::string> kOthers = {{"indexer.heads", "index-heads"},
                                                               {"indexer.head_size", "index-head-dim"},
                                                               {"max_positions", "extend"}};
    if (const auto other = kOthers.find(argument); other != kOthers.end()) argument = other->second;
    if (argument.find('.') != std::string::npos) return message;  // not an option's
    std::replace(argument.begin(), argument.end(), '_', '-');
    name = "--" + argument;
  }
  return concat(name, ": ", message.substr(end + kEnd.size()));
}

void tell_note(const std::string& note) {
  if (!note.empty()) std::cerr << "note: " << note << '\n';
}

void check_choice(const char* option, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  throw UsageError(
      concat(option, ": expected ", alternatives(choices), ", got ", with_suggestion(value, choices)));
}

void check_writable_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (there.has_relative_path() && !std::filesystem::exists(there, error)) there = there.parent_path();
  if (!std::filesystem::is_directory(there, error)) {
    bad_file(folder, "a folder that can be made", concat("a file '", there.string(), "' in its way"));
  }
  std::string trial = (there / ".gsa-XXXXXX").string();
  const int descriptor = ::mkstemp(trial.data());
  if (descriptor < 0) {
    bad_file(folder, "a folder that can be written to",
             concat("none: in '", there.string(), "' no file can be made (", std::strerror(errno), ")"));
  }
  ::close(descriptor);
  ::unlink(trial.c_str());
}

}  // namespace gsa::cli
