#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/safetensors.h"

namespace gsa::train {
namespace {

constexpr std::int64_t kMaxJsonBytes = 64 << 20;
constexpr char kPrefix[] = "step-";

std::string name_of_step(std::int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "%s%010lld", kPrefix, static_cast<long long>(step));
  return name;
}

std::optional<std::int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + sizeof(kPrefix) - 1, end, step);
  if (error != std::errc() || stop != end || name != name_of_step(step)) return std::nullopt;
  return step;
}

// What is in a folder; nothing where it has not been made yet.
std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  if (!std::filesystem::exists(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path());
  return found;
}

void write_json(const std::filesystem::path& path, const OrderedJson& json) {
  write_file(path, json.dump(2) + "\n");
}

StoredType stored_type(const at::Tensor& tensor, const std::string& name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return StoredType::f32;
    case at::kDouble:
      return StoredType::f64;
    case at::kLong:
      return StoredType::i64;
    default:
      throw Error(concat("checkpoint: tensor '", name, "': expected float32, float64 or int64, got ",
                         c10::toString(tensor.scalar_type())));
  }
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  SafetensorsContent content;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : tensors) {
    content.tensors.push_back({name, stored_type(tensor, name), tensor.sizes().vec()});
    by_name[name] = tensor;
  }
  at::Tensor current;  // one tensor at a time leaves its device
  content.bytes = [&](const StoredTensor& tensor) {
    current = by_name.at(tensor.name).detach().to(torch::kCPU).contiguous();
    return bytes_of(current);
  };
  write_safetensors(path, content);
}

}  // namespace

Checkpoints::Checkpoints(const std::filesystem::path& run_folder, std::int64_t keep_last)
    : run_(run_folder),
      folder_(run_folder / "checkpoints"),
      keep_last_(keep_last),
      lock_(run_folder, "one that is training") {
  for (const auto& path : entries(folder_)) {
    if (path.filename().string().starts_with(concat(".", kPrefix))) std::filesystem::remove_all(path);
  }
}

std::filesystem::path Checkpoints::folder(std::int64_t step) const { return folder_ / name_of_step(step); }

std::vector<std::int64_t> Checkpoints::steps() const {
  std::vector<std::int64_t> found;
  for (const auto& path : entries(folder_)) {
    if (const auto step = step_of_name(path.filename().string())) found.push_back(*step);
  }
  std::ranges::sort(found);
  return found;
}

void Checkpoints::save(std::int64_t step,
                       const std::function<void(const std::filesystem::path&)>& write_model,
                       const NamedTensors& optimizer, const OrderedJson& state) {
  const std::filesystem::path partial = folder_ / concat(".", name_of_step(step), ".partial"),
                              place = folder(step);
  if (std::filesystem::exists(place)) {
    bad_argument("train::Checkpoints", "step", "one without a checkpoint", place.string());
  }
  try {
    std::filesystem::remove_all(partial);
    std::filesystem::create_directories(partial);
    write_model(partial);
    write_tensors(partial / "optimizer.safetensors", optimizer);
    write_json(partial / "state.json", state);
    OrderedJson files = OrderedJson::object();
    std::map<std::string, std::filesystem::path> sorted;
    for (const auto& path : entries(partial)) sorted[path.filename().string()] = path;
    for (const auto& [name, path] : sorted) {
      const MappedFile file(path);
      files[name] = {{"bytes", file.bytes().size()}, {"crc32c", crc32c(file.bytes())}};
    }
    write_json(partial / "manifest.json",
               {{"format", "gsa-checkpoint"}, {"version", 1}, {"step", step}, {"files", files}});
    sync_folder(partial);
    std::filesystem::rename(partial, place);
    sync_folder(folder_);
    link_latest(step);
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove_all(partial, ignored);
    const auto left = steps();
    throw Error(concat("checkpoint of step ", step, " failed: ", error.what(),
                       left.empty() ? std::string("; there is no earlier one")
                                    : concat("; the newest complete one is ", folder(left.back()).string())));
  }
  std::vector<std::int64_t> all = steps();
  while (static_cast<std::int64_t>(all.size()) > keep_last_) {
    // Renamed first: a removal that is cut off must not leave a checkpoint with holes.
    const std::filesystem::path old = folder_ / concat(".", name_of_step(all.front()), ".old");
    std::filesystem::rename(folder(all.front()), old);
    std::filesystem::remove_all(old);
    all.erase(all.begin());
  }
}

// A link is replaced by renaming another over it: at any moment it points to something complete.
void Checkpoints::link_latest(std::int64_t step) const {
  const std::filesystem::path fresh = run_ / ".latest";
  std::filesystem::remove(fresh);
  std::filesystem::create_directory_symlink(std::filesystem::path("checkpoints") / name_of_step(step), fresh);
  std::filesystem::rename(fresh, run_ / "latest");
}

std::string Checkpoints::damage(std::int64_t step) const {
  try {
    const std::filesystem::path path = folder(step) / "manifest.json";
    const Json manifest = parse_json(read_file(path, kMaxJsonBytes), path.string());
    if (!manifest.is_object() || manifest.value("format", "") != "gsa-checkpoint" ||
        manifest.value("version", 0) != 1 || manifest.value("step", std::int64_t(-1)) != step ||
        !manifest.contains("files") || !manifest["files"].is_object()) {
      return concat("'", path.string(), "' is no manifest of step ", step);
    }
    for (const char* needed : {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"}) {
      if (!manifest["files"].contains(needed)) return concat("the manifest does not name ", needed);
    }
    for (const auto& [name, facts] : manifest["files"].items()) {
      const MappedFile file(folder(step) / name);
      if (file.bytes().size() != facts.at("bytes").get<std::uint64_t>()) {
        return concat("'", name, "' has ", file.bytes().size(), " bytes instead of ",
                      facts.at("bytes").get<std::uint64_t>());
      }
      if (crc32c(file.bytes()) != facts.at("crc32c").get<std::uint32_t>())
        return concat("'", name, "' has a wrong checksum");
    }
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::optional<std::int64_t> Checkpoints::newest() const {
  const std::vector<std::int64_t> all = steps();
  if (all.empty()) return std::nullopt;
  const std::string wrong = damage(all.back());
  if (wrong.empty()) return all.back();
  std::string advice = "; no earlier one is sound";
  for (auto step = all.rbegin() + 1; step != all.rend(); ++step) {
    if (damage(*step).empty()) {
      advice = concat("; to go on from the one before, remove that folder and --resume, which points ",
                      (run_ / "latest").string(), " to it: ", folder(*step).string(), " is sound");
      break;
    }
  }
  throw Error(concat("checkpoint '", folder(all.back()).string(), "' is damaged: ", wrong, advice));
}

Json Checkpoints::state(std::int64_t step) const {
  const std::filesystem::path path = folder(step) / "state.json";
  return parse_json(read_file(path, kMaxJsonBytes), path.string());
}

void Checkpoints::read_optimizer(std::int64_t step, const NamedTensors& into) const {
  const torch::NoGradGuard no_grad;
  const std::filesystem::path path = folder(step) / "optimizer.safetensors";
  const SafetensorsFile file(path);
  if (file.header().tensors.size() != into.size()) {
    bad_file(path.string(), concat(into.size(), " tensors, as this model's optimiser has"),
             concat(file.header().tensors.size()));
  }
  for (const auto& [name, tensor] : into) {
    const StoredTensor* const stored = file.find(name);
    if (stored == nullptr) bad_file(path.string(), concat("a tensor '", name, "'"), "none");
    if (stored->type != stored_type(tensor, name) || stored->shape != tensor.sizes().vec()) {
      bad_file(path.string(), concat("'", name, "' of the type and shape that this model has"), "another");
    }
    at::Tensor copy = torch::empty(tensor.sizes(), tensor.options().device(torch::kCPU));
    const auto bytes = file.bytes(*stored);
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.mutable_data_ptr()));
    tensor.copy_(copy);
  }
}

}  // namespace gsa::train
