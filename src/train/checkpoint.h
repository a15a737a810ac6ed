// Checkpoints: folders step-0000001200 under <run>/checkpoints, each complete or not there at all.
//
//   config.json, model.safetensors, tokenizer files   the model, as any model folder
//   optimizer.safetensors                             master weights and moments
//   state.json                                        step, place in the data, random numbers, guards' memory
//   manifest.json                                     size and CRC-32C of every file; written last
//
// A checkpoint is written under another name and renamed when all of it is durable, so a crash at any moment
// leaves the older ones as they were and nothing that looks like a newer one. <run>/latest is a link to the
// newest, which is a model folder too.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/folder_lock.h"
#include "core/json.h"
#include "nn/torch.h"

namespace gsa::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Checkpoints {
 public:
  // Takes the run's folder for itself until the end of this object (core/folder_lock.h). What a killed run
  // left half written is removed.
  Checkpoints(const std::filesystem::path& run_folder, std::int64_t keep_last);

  // Writes one of a step that has none yet: write_model puts the model's files into the folder it is given.
  // Older ones beyond keep_last go away after the new one is in place.
  void save(std::int64_t step, const std::function<void(const std::filesystem::path&)>& write_model,
            const NamedTensors& optimizer, const OrderedJson& state);

  // Steps of those that are there, ascending.
  std::vector<std::int64_t> steps() const;
  std::filesystem::path folder(std::int64_t step) const;

  // What is wrong with a checkpoint, by its manifest and checksums; empty: nothing.
  std::string damage(std::int64_t step) const;

  // The newest one. Where it is damaged this throws, and names the newest sound one that a person may choose.
  std::optional<std::int64_t> newest() const;

  Json state(std::int64_t step) const;
  // Copies what was stored into these tensors, on their devices; every one of them must be there, and no
  // other.
  void read_optimizer(std::int64_t step, const NamedTensors& into) const;

  // Points <run>/latest to the one of this step. save() does it by itself.
  void link_latest(std::int64_t step) const;

 private:
  std::filesystem::path run_, folder_;  // <run>, <run>/checkpoints
  std::int64_t keep_last_;
  FolderLock lock_;
};

}  // namespace gsa::train
