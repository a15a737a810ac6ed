#include "core/utf8.h"

#include <cstring>

namespace gsa {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) { return static_cast<std::uint8_t>(text[i]); }

// How many bytes a character has that begins with this one; 0: none begins so.
std::size_t length_from(std::uint8_t first) {
  return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// May `second` follow `first`? Overlong forms, surrogates and numbers beyond U+10FFFF show there.
bool second_fits(std::uint8_t first, std::uint8_t second) {
  const std::uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

}  // namespace

Utf8Beginning first_character(std::string_view bytes) {
  const std::size_t wanted = length_from(byte_at(bytes, 0));
  if (wanted == 0) return {1, Utf8Beginning::broken};
  for (std::size_t i = 1; i < wanted; ++i) {
    if (i == bytes.size()) return {i, Utf8Beginning::incomplete};
    const std::uint8_t byte = byte_at(bytes, i);
    const bool fits = i == 1 ? second_fits(byte_at(bytes, 0), byte) : (byte & 0xC0) == 0x80;
    if (!fits) return {i, Utf8Beginning::broken};
  }
  return {wanted, Utf8Beginning::complete};
}

std::size_t valid_utf8(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::uint64_t eight = 0;
    while (at + sizeof(eight) <= bytes.size()) {  // most text is mostly ASCII
      std::memcpy(&eight, bytes.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) != 0) break;
      at += sizeof(eight);
    }
    if (at == bytes.size()) break;
    const Utf8Beginning beginning = first_character(bytes.substr(at));
    if (beginning.state != Utf8Beginning::complete) break;
    at += beginning.length;
  }
  return at;
}

std::size_t character_length(std::string_view text) { return length_from(byte_at(text, 0)); }

std::uint32_t code_point(std::string_view text) {
  const std::size_t length = character_length(text);
  if (length == 1) return byte_at(text, 0);
  std::uint32_t value = byte_at(text, 0) & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte_at(text, i) & 0x3Fu);
  return value;
}

std::string utf8_of(std::uint32_t code_point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace gsa
