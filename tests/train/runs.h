// Small runs for tests: a dataset of a few documents and a configuration that trains on it in milliseconds.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "data/dataset.h"
#include "model/temporary_folder.h"
#include "torch/ops.h"
#include "train/trainer.h"

namespace gsa::train::testing {

using gsa::testing::TemporaryFolder;

// Documents of different lengths, some longer than a row.
inline void write_dataset(const std::filesystem::path& folder, int documents = 40) {
  const auto tokenizer = data::byte_tokenizer();
  data::DatasetWriter writer(folder, *tokenizer);
  for (int i = 0; i < documents; ++i) {
    std::string text;
    for (int word = 0; word < i * 7 % 31 + 3; ++word) {
      text += (word * i) % 3 == 0 ? "lamp " : (word + i) % 2 == 0 ? "keeper " : std::to_string(word) + " ";
    }
    writer.add_document(text);
  }
  writer.finish();
}

// Six steps, two of each phase; k below the length, so that selection matters.
inline TrainConfig small_run(const TemporaryFolder& folder, const std::string& name = "run") {
  if (!std::filesystem::exists(folder / "data")) write_dataset(folder / "data");
  TrainConfig config;
  config.model.preset = "tiny";
  config.model.k_base = 12;
  config.model.k_min = 4;
  config.model.k_max = 24;
  config.data.train = (folder / "data").string();
  config.data.length = 48;
  config.phases.dense = config.phases.warmup = config.phases.sparse = 2;
  config.batch.tokens = 96;
  config.batch.rows = 2;
  config.kl_share = 1;  // a step of two rows has too few queries to draw from
  config.optimizer.lr = 3e-3;
  config.output.folder = (folder / name).string();
  config.output.save_every = 0;
  config.device = "cpu";
  return config;
}

// Parameters and buffers by name, as copies.
inline std::map<std::string, at::Tensor> weights_of(Trainer& trainer) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : trainer.model()->named_parameters())
    weights[item.key()] = item.value().detach().clone();
  for (const auto& item : trainer.model()->named_buffers())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

// Why a device cannot be tested here; empty: it can.
inline std::string missing_for(const std::string& device) {
  if (device == "cpu") return "";
  if (!ops::built_with_cuda()) return "libgsa.so is built without the CUDA operators";
  return torch::cuda::is_available() ? "" : "no CUDA device";
}

// Names whose bits differ.
inline std::vector<std::string> differences(const std::map<std::string, at::Tensor>& a,
                                            const std::map<std::string, at::Tensor>& b) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : a) {
    if (!tensor.equal(b.at(name))) names.push_back(name);
  }
  return names;
}

// Runs until `steps` steps are done in all.
inline void run_until(Trainer& trainer, std::int64_t steps) {
  trainer.run([&] { return trainer.step() >= steps; });
}

}  // namespace gsa::train::testing
