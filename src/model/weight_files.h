// The tensors of a model folder: one model.safetensors, or shards that model.safetensors.index.json names. No
// torch header.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "core/safetensors.h"

namespace gsa::nn {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kWeightsIndex = "model.safetensors.index.json";

struct WeightSource {
  const SafetensorsFile* file = nullptr;
  const StoredTensor* tensor = nullptr;
  std::string file_name;

  std::span<const std::byte> bytes() const { return file->bytes(*tensor); }
};

class WeightFiles {
 public:
  // Opens whatever of the two is there; both or neither is an error. The shards must hold exactly what the
  // index places in them.
  explicit WeightFiles(const std::filesystem::path& folder);

  const std::map<std::string, WeightSource>& tensors() const { return tensors_; }

 private:
  const SafetensorsFile& open(const std::string& name);
  void add(const std::string& file_name, const StoredTensor& tensor);
  void read_shards();

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, WeightSource> tensors_;
};

// The index: which tensors each file holds. Files must be plain names, so that an index cannot reach out of
// its folder. file: for messages.
std::map<std::string, std::set<std::string>> parse_weight_index(std::string_view text,
                                                                const std::string& file);

}  // namespace gsa::nn
