#include "core/dangling_link.h"

#include <system_error>

#include "gsa/error.h"

namespace gsa {

std::string dangling_link(const std::filesystem::path& path) {
  std::filesystem::path way;
  std::error_code error;
  for (const std::filesystem::path& part : path) {
    way /= part;
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(way, error))) continue;
    if (std::filesystem::exists(way, error)) continue;
    const std::filesystem::path target = std::filesystem::read_symlink(way, error);
    return concat(" ('", way.string(), "' is a link to '", target.string(), "', which is not there)");
  }
  return "";
}

}  // namespace gsa
