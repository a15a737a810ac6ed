#include "core/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <vector>

#include "gsa/error.h"

namespace gsa {
namespace {

namespace fs = std::filesystem;

// A number in a file of the kernel's; absent where there is none (a group without a limit says "max").
std::optional<std::int64_t> number_in(const fs::path& file) {
  std::int64_t value = 0;
  std::ifstream in(file);
  if (in >> value) return value;
  return std::nullopt;
}

// The number behind a word that begins a line.
std::optional<std::int64_t> number_after(const fs::path& file, const std::string& word) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream parts(line);
    std::string key;
    std::int64_t value = 0;
    if (parts >> key >> value && key == word) return value;
  }
  return std::nullopt;
}

// How a version of control groups names its files.
struct GroupFiles {
  const char *limit, *used, *reclaimable;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

// Where a hierarchy is mounted, and which of its groups stands there.
struct Mount {
  fs::path at, group;
};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// 36 35 98:0 /group /mount/point rw,noatime shared:1 - cgroup2 cgroup rw,memory_recursiveprot
std::optional<Mount> mount_of(const fs::path& mounts, bool version2) {
  std::ifstream in(mounts);
  for (std::string line; std::getline(in, line);) {
    std::istringstream parts(line);
    std::string id, parent, device, group, at, word, type, source, options;
    parts >> id >> parent >> device >> group >> at;
    while (parts >> word && word != "-") {
    }
    parts >> type >> source >> options;
    if (version2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "memory"))
      return Mount{at, group};
  }
  return std::nullopt;
}

// 0::/user.slice/job (version 2) or 7:memory:/job
std::optional<std::string> group_of(const fs::path& groups, bool version2) {
  std::ifstream in(groups);
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? line.starts_with("0:") && controllers.empty() : has_word(controllers, "memory")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

void take_lower(std::optional<MemoryRoom>& least, std::int64_t bytes, const std::string& bound) {
  if (!least || bytes < least->bytes) least = MemoryRoom{std::max<std::int64_t>(bytes, 0), bound};
}

void take_groups(std::optional<MemoryRoom>& least, const fs::path& root, bool version2) {
  const std::optional<Mount> mount = mount_of(root / "proc/self/mountinfo", version2);
  const std::optional<std::string> name = group_of(root / "proc/self/cgroup", version2);
  if (!mount || !name) return;
  // A container may see only its own part of the hierarchy; a group outside of it is not visible at all.
  fs::path inside = fs::path(*name).lexically_relative(mount->group);
  if (inside.empty() || *inside.begin() == "..") inside = ".";
  const fs::path top = root / mount->at.relative_path();
  const GroupFiles& files = version2 ? kVersion2 : kVersion1;
  std::vector<fs::path> steps(inside.begin(), inside.end());
  for (std::size_t depth = 0; depth <= steps.size(); ++depth) {
    fs::path group;
    for (std::size_t i = 0; i < depth; ++i) group /= steps[i];
    const fs::path folder = top / group;
    const auto limit = number_in(folder / files.limit), used = number_in(folder / files.used);
    if (!limit || !used) continue;
    const std::int64_t reclaimable = number_after(folder / "memory.stat", files.reclaimable).value_or(0);
    const std::string shown = group.empty() || group == "." ? "/" : concat("/", group.string());
    take_lower(least, *limit - *used + reclaimable, concat("the control group '", shown, "'"));
  }
}

}  // namespace

std::optional<MemoryRoom> memory_room(const fs::path& root) {
  std::optional<MemoryRoom> least;
  if (const auto kilobytes = number_after(root / "proc/meminfo", "MemAvailable:")) {
    take_lower(least, *kilobytes * 1024, "the machine");
  }
  take_groups(least, root, true);
  take_groups(least, root, false);
  rlimit limit = {};
  const auto pages = number_in(root / "proc/self/statm");
  if (pages && ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    take_lower(least, static_cast<std::int64_t>(limit.rlim_cur) - *pages * ::sysconf(_SC_PAGESIZE),
               "ulimit -v");
  }
  return least;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return concat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(),
                value < 10    ? "%.2f %s"
                : value < 100 ? "%.1f %s"
                              : "%.0f %s",
                value, kUnits[unit]);
  return text.data();
}

}  // namespace gsa
