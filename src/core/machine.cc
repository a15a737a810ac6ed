#include "core/machine.h"

#include <fstream>
#include <map>
#include <thread>

#include "gsa/error.h"

namespace gsa {

std::string field_of(const std::filesystem::path& file, const std::string& key) {
  constexpr const char* kBlanks = " \t";
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find_first_not_of(kBlanks, key.size());
    if (colon == std::string::npos || line[colon] != ':') continue;
    const std::size_t begin = line.find_first_not_of(kBlanks, colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(kBlanks) - begin + 1);
  }
  return "";
}

std::string processor_name(const std::filesystem::path& root) {
  const std::string name = field_of(root / "proc/cpuinfo", "model name");
  return name.empty() ? "unknown processor" : name;
}

std::string machine_name(const std::filesystem::path& root) {
  std::map<std::string, int> gpus;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root / "proc/driver/nvidia/gpus", none)) {
    const std::string model = field_of(entry.path() / "information", "Model");
    if (!model.empty()) ++gpus[model];
  }
  std::string text;
  for (const auto& [model, count] : gpus) text += concat(count > 1 ? concat(count, " × ") : "", model, ", ");
  const unsigned cores = std::thread::hardware_concurrency();
  return text + concat(cores, cores == 1 ? " core of " : " cores of ", processor_name(root));
}

}  // namespace gsa
