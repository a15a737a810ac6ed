#include "model/weight_files.h"

#include "core/file.h"
#include "core/json.h"
#include "gsa/error.h"

namespace gsa::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxIndexBytes = 256 << 20;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

std::map<std::string, std::set<std::string>> parse_weight_index(std::string_view text,
                                                                const std::string& file) {
  const Json json = parse_json(text, file);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    bad_file(file, "an object with an object 'weight_map'", shown(json));
  }
  for (const auto& [key, value] : json.items()) {
    if (key != "weight_map" && key != "metadata") {
      bad_file(file, "the keys weight_map and metadata", shown(Json(key)));
    }
  }
  std::map<std::string, std::set<std::string>> names_of_file;
  for (const auto& [name, value] : json["weight_map"].items()) {
    if (!value.is_string() || !is_plain_name(value.get_ref<const std::string&>())) {
      bad_file(file, concat("a plain file name for ", shown(Json(name))), shown(value));
    }
    names_of_file[value.get<std::string>()].insert(name);
  }
  return names_of_file;
}

WeightFiles::WeightFiles(const fs::path& folder) : folder_(folder) {
  const bool single = fs::exists(folder / kWeightsFile), sharded = fs::exists(folder / kWeightsIndex);
  if (single && sharded) {
    bad_file(folder.string(), concat("one of ", kWeightsFile, " and ", kWeightsIndex), "both");
  }
  if (!single && !sharded) {
    bad_file(folder.string(), concat(kWeightsFile, " or ", kWeightsIndex), "neither");
  }
  if (single) {
    for (const StoredTensor& tensor : open(kWeightsFile).header().tensors) add(kWeightsFile, tensor);
  } else {
    read_shards();
  }
}

const SafetensorsFile& WeightFiles::open(const std::string& name) {
  auto& file = files_[name];
  if (!file) file = std::make_unique<SafetensorsFile>(folder_ / name);
  return *file;
}

void WeightFiles::add(const std::string& file_name, const StoredTensor& tensor) {
  tensors_[tensor.name] = {files_[file_name].get(), &tensor, (folder_ / file_name).string()};
}

void WeightFiles::read_shards() {
  auto names_of_file = parse_weight_index(read_file(folder_ / kWeightsIndex, kMaxIndexBytes),
                                          (folder_ / kWeightsIndex).string());
  for (auto& [file_name, names] : names_of_file) {
    for (const StoredTensor& tensor : open(file_name).header().tensors) {
      if (names.erase(tensor.name) == 0) {
        bad_file((folder_ / file_name).string(), concat("the tensors that ", kWeightsIndex, " places there"),
                 concat("also ", shown(Json(tensor.name))));
      }
      add(file_name, tensor);
    }
    if (!names.empty()) {
      bad_file((folder_ / file_name).string(),
               concat("tensor ", shown(Json(*names.begin())), ", by ", kWeightsIndex), "none");
    }
  }
}

}  // namespace gsa::nn
