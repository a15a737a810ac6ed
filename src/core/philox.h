// Random numbers without state: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC'11), a bijection of a 128-bit counter under a 64-bit key. A draw is a function of where it stands, so
// its value does not depend on what else was drawn, in which order or by whom.
#pragma once

#include <array>
#include <cstdint>

namespace gsa {

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ low, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ high, static_cast<std::uint32_t>(a)};
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

// 64 bits, the draw of `key` at (stream, step): a key for what is drawn from there on.
constexpr std::uint64_t philox_bits(std::uint64_t key, std::uint64_t stream, std::uint64_t step) {
  const auto word = philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
                            static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                           key);
  return std::uint64_t{word[0]} << 32 | word[1];
}

// In [0, 1), a multiple of 2^-53: the draw of `key` at (stream, step).
constexpr double philox_uniform(std::uint64_t key, std::uint64_t stream, std::uint64_t step) {
  return static_cast<double>(philox_bits(key, stream, step) >> 11) * 0x1p-53;
}

}  // namespace gsa
