#include "plot/markup.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>

#include "core/number_text.h"

namespace gsa::eval {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Character {
  std::size_t bytes = 1;
  bool allowed = false;  // in XML 1.0
};

// The character of UTF-8 that a non-empty text starts with. Overlong forms, surrogates and the like are one
// byte that is not allowed.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {1, (lead >= 0x20 && lead != 0x7F) || lead == '\t' || lead == '\n'};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0xFF >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::uint32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kMin[bytes] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {bytes, code >= 0xA0 && code != 0xFFFE && code != 0xFFFF};
}

std::string trimmed(double value, int decimals) {
  std::string text = fixed(value, decimals);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

// Decimals that leave `digits` significant ones.
int decimals_for(double value, int digits) {
  const double size = std::abs(value);
  if (size == 0) return 0;
  // A hair is added so that 999.96 counts as the 1000 that it is written as.
  const int magnitude = static_cast<int>(std::floor(std::log10(size * (1 + 0.5 * std::pow(10, -digits)))));
  return std::max(0, digits - 1 - magnitude);
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    if (!character.allowed) {
      out += kReplacement;
    } else if (text[0] == '&') {
      out += "&amp;";
    } else if (text[0] == '<') {
      out += "&lt;";
    } else if (text[0] == '>') {
      out += "&gt;";
    } else if (text[0] == '"') {
      out += "&quot;";
    } else {
      out += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  return out;
}

std::string short_number(double value, int digits) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e15)) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, value);
    return buffer;
  }
  constexpr const char* kPrefixes[] = {"", "K", "M", "G", "T"};
  std::size_t prefix = 0;
  if (size >= 9999.5) {
    for (; std::abs(value) >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  }
  return trimmed(value, decimals_for(value, digits)) + kPrefixes[prefix];
}

std::string short_percent(double share) { return trimmed(100 * share, 1) + " %"; }

}  // namespace gsa::eval
