// A run's folder stands for the newest model in it, wherever a model's folder is asked for.
#pragma once

#include <filesystem>

namespace gsa::nn {

// <folder>/latest where the folder is a run's, else the folder itself.
inline std::filesystem::path newest_model(const std::filesystem::path& folder) {
  std::error_code unknown;
  const bool of_a_run = !std::filesystem::exists(folder / "config.json", unknown) &&
                        std::filesystem::exists(folder / "latest" / "config.json", unknown);
  return of_a_run ? folder / "latest" : folder;
}

}  // namespace gsa::nn
