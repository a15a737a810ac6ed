#include "core/machine.h"

#include <fstream>
#include <map>
#include <thread>

#include "gsa/error.h"

namespace gsa {
namespace {

// What stands behind the first "key: value" of a file, without blanks around it.
std::string value_of(const std::filesystem::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1), end = line.find_last_not_of(" \t");
    if (begin != std::string::npos) return line.substr(begin, end - begin + 1);
  }
  return "";
}

}  // namespace

std::string processor_name(const std::filesystem::path& root) {
  const std::string name = value_of(root / "proc/cpuinfo", "model name");
  return name.empty() ? "unknown processor" : name;
}

std::string machine_name(const std::filesystem::path& root) {
  std::map<std::string, int> gpus;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root / "proc/driver/nvidia/gpus", none)) {
    const std::string model = value_of(entry.path() / "information", "Model");
    if (!model.empty()) ++gpus[model];
  }
  std::string text;
  for (const auto& [model, count] : gpus) text += concat(count > 1 ? concat(count, " × ") : "", model, ", ");
  const unsigned cores = std::thread::hardware_concurrency();
  return text + concat(cores, cores == 1 ? " core of " : " cores of ", processor_name(root));
}

}  // namespace gsa
