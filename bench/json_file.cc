#include "json_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "gsa/error.h"

namespace gsa::bench {

void write_json_file(const std::string& path, const nlohmann::ordered_json& document) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code failure;
  if (!folder.empty()) std::filesystem::create_directories(folder, failure);
  if (failure)
    throw Error(concat("--json: cannot make the folder ", folder.string(), ": ", failure.message()));
  errno = 0;
  std::ofstream file(path);
  file << document.dump(2) << "\n" << std::flush;
  if (!file) throw Error(concat("--json: cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace gsa::bench
