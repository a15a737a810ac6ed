// Files for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "model/temporary_folder.h"

namespace gsa::testing {

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace gsa::testing
