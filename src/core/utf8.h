// UTF-8: where characters begin and end, and which bytes are none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gsa {

struct Utf8Beginning {
  std::size_t length = 0;                                  // bytes that belong together
  enum { complete, incomplete, broken } state = complete;  // incomplete: more bytes may follow
};

// The first character of a text that is not empty, or the longest beginning of one.
Utf8Beginning first_character(std::string_view bytes);

// How many of the first bytes are whole characters.
std::size_t valid_utf8(std::string_view bytes);

// Bytes of the character that begins here; the text is valid UTF-8 and not empty.
std::size_t character_length(std::string_view text);
// Its number, and back.
std::uint32_t code_point(std::string_view text);
std::string utf8_of(std::uint32_t code_point);

}  // namespace gsa
