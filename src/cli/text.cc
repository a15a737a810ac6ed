#include "cli/text.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace gsa::cli {
namespace {

// Columns that a terminal shows for UTF-8 text: bytes that start a character.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

bool shows_utf8() {
  static const bool shows = [] {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
      const char* const value = std::getenv(name);
      if (value == nullptr || *value == '\0') continue;
      std::string locale = value;
      std::transform(locale.begin(), locale.end(), locale.begin(),
                     [](unsigned char c) { return std::tolower(c); });
      return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
    }
    return false;
  }();
  return shows;
}

bool is_terminal(int descriptor) {
  const char* const term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && term != nullptr && std::string_view(term) != "dumb" && *term != '\0';
}

std::string scaled(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "K", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  while (std::abs(value) >= 999.5 && prefix + 1 < std::size(kPrefixes)) {
    value /= 1000;
    ++prefix;
  }
  const double size = std::abs(value);
  const bool whole = prefix == 0 && value == std::floor(value);
  const int decimals = whole ? 0 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  std::string text = fixed(value, decimals);
  const std::string suffix = std::string(kPrefixes[prefix]) + unit;
  return suffix.empty() ? text : text + " " + suffix;
}

std::string scaled_bytes(double value) { return scaled(value, "B"); }

std::string percent(double share) { return fixed(100 * share, 1) + " %"; }

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths;
  for (const auto& cells : rows_) {
    widths.resize(std::max(widths.size(), cells.size()));
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], width_of(cells[i]));
  }
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width + 3;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const auto& cells = rows_[r];
    if (cells.empty()) {
      out << "  ";
      for (std::size_t i = 0; i + 3 < total; ++i) out << symbol("─", "-");
      out << '\n';
      continue;
    }
    std::string text = "  ";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - width_of(cells[i]), ' ');
      text += i == 0 ? cells[i] + padding : "   " + padding + cells[i];
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << '\n';
  }
}

}  // namespace gsa::cli
