// How much memory this process may still take, asked before work that would need more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace gsa {

struct MemoryRoom {
  std::int64_t bytes = 0;
  std::string bound;  // what sets it, for messages: "the machine", "the control group '/user/job'"
};

// The least of what the machine has available, of what the process's control group and every group above it
// have left (version 2 and version 1; page cache that can go counts as free), and of what `ulimit -v` leaves.
// Absent where the system says none of it. root: where /proc stands, and what mount points begin at.
std::optional<MemoryRoom> memory_room(const std::filesystem::path& root = "/");

std::string format_bytes(std::int64_t bytes);  // 512 bytes, 1.50 GiB

}  // namespace gsa
