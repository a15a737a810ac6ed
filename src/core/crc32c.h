// CRC-32C (Castagnoli): the checksum of token shards, checkpoints and TensorBoard's records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gsa {

// Continues from the checksum of what came before; 0 at the start.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace gsa
