#include "nn/convert.h"

#include <map>
#include <optional>
#include <utility>

#include "core/file.h"
#include "core/philox.h"
#include "core/safetensors.h"
#include "gsa/error.h"
#include "model/config_json.h"
#include "model/weight_checks.h"
#include "model/weight_files.h"
#include "nn/indexer_start.h"
#include "nn/model.h"
#include "nn/model_io.h"
#include "nn/new_layers.h"
#include "nn/stored_tensor.h"
#include "torch/tensor_checks.h"

namespace gsa::nn {
namespace {

using at::Tensor;
namespace fs = std::filesystem;

// A tensor of the model: its layer (-1: none) and its name within that.
struct Part {
  std::int64_t layer = -1;
  std::string name;
  std::vector<std::int64_t> shape;
};

// Every tensor of a model of this configuration, by its name in a file.
std::map<std::string, Part> parts_of(const ModelConfig& config) {
  const std::int64_t d = config.attention.d_model;
  std::map<std::string, Part> parts;
  const auto add = [&](std::int64_t layer, const std::string& name, std::vector<std::int64_t> shape) {
    const std::string file_name = layer < 0 ? name : concat("model.layers.", layer, ".", name);
    parts[file_name] = {layer, name, std::move(shape)};
  };
  add(-1, "model.embed_tokens.weight", {config.vocab_size, d});
  add(-1, "model.norm.weight", {d});
  if (!config.tie_embeddings) add(-1, "lm_head.weight", {config.vocab_size, d});
  const WithoutValues without_values(at::kFloat);  // shapes are all that is wanted
  const Block first(config, 0);
  std::optional<Block> follower;  // of all layers without an indexer
  for (std::int64_t n = 0; n < config.layers; ++n) {
    const bool follows = config.attention_of(n).shares_selection;
    if (follows && !follower) follower.emplace(config, n);
    const Block& block = follows ? *follower : first;
    for (const auto& item : block->named_parameters()) add(n, item.key(), item.value().sizes().vec());
    for (const auto& item : block->named_buffers()) add(n, item.key(), item.value().sizes().vec());
  }
  return parts;
}

class Converter {
 public:
  // stored: the folder's own configuration.
  Converter(const fs::path& from, const ModelConfig& stored, const ConvertOptions& options)
      : options_(options), stored_(stored), weights_(from), type_(common_type(weights_)) {
    check_before_reading(weights_, options.config, from.string());
    // Indexers that the folder has may be left behind, but only whole ones.
    ModelConfig whole = options.config;
    if (stored.attention.sparse) whole.index_layers = stored.index_layers;
    const std::map<std::string, Part> all = parts_of(whole);
    parts_ = parts_of(options.config);
    for (const auto& [name, part] : all) {
      if (!parts_.contains(name) && !is_mean_variance(name) && find(name) != nullptr) {
        dropped_ += c10::multiply_integers(part.shape);
      }
    }
    TensorShapes shapes;
    for (const auto& [name, part] : all) shapes.emplace_back(name, part.shape);
    check_tensors(weights_, shapes, stored, true, from.string());
  }

  Conversion write(const fs::path& to) {
    SafetensorsContent content;
    content.metadata = {{"format", "pt"}};
    std::int64_t total = 0;
    for (const auto& [name, part] : parts_) {
      const StoredType type = is_mean_variance(name) ? StoredType::f64 : stored_type_of(type_);
      content.tensors.push_back({.name = name, .type = type, .shape = part.shape, .begin = 0, .end = 0});
      total += c10::multiply_integers(part.shape) * size_of(type);
    }
    std::int64_t done = 0;
    content.bytes = [&](const StoredTensor& stored) {
      if (options_.progress) options_.progress(done, total);
      staged_ = tensor_of(parts_.at(stored.name), stored.name).contiguous();
      done += static_cast<std::int64_t>(staged_.nbytes());
      return std::span(static_cast<const std::byte*>(staged_.data_ptr()), staged_.nbytes());
    };
    write_safetensors(to / kWeightsFile, content);
    AtomicFile config(to / "config.json");
    config.write(config_to_json({options_.config, type_}));
    config.commit();
    return made();
  }

 private:
  const WeightSource* find(const std::string& name) const {
    const auto found = weights_.tensors().find(name);
    return found == weights_.tensors().end() ? nullptr : &found->second;
  }

  Tensor tensor_of(const Part& part, const std::string& name) {
    const WeightSource* source = find(name);
    if (source == nullptr) return new_tensor(part, name);
    Tensor tensor = read_tensor(*source);
    const AttentionConfig& attention = options_.config.attention;
    if (meets_new_gate(name, stored_.attention, attention)) fold_gate(attention, *source, tensor);
    return tensor;
  }

  Tensor new_tensor(const Part& part, const std::string& name) {
    // Written before all others: no reason to make the layers' indexers for it.
    if (is_mean_variance(name)) return Indexer(options_.config.attention)->mean_variance.detach();
    const at::ScalarType type = binding::scalar_type(type_);
    if (kind_of_parameter(name) == ParameterKind::gate) {
      const bool bias = name.ends_with(".bias");
      return torch::full(part.shape, bias ? gate_init_bias(options_.config.attention) : 0, type);
    }
    const std::string own = part.name.substr(std::string("self_attn.indexer.").size());
    return indexer_of(part.layer)->named_parameters()[own].detach().to(type);
  }

  // The tensors of a layer are written one after the other: the last indexer is kept.
  const Indexer& indexer_of(std::int64_t layer) {
    if (indexer_layer_ == layer) return *indexer_;
    torch::manual_seed(philox_bits(options_.seed, 0, static_cast<std::uint64_t>(layer)));
    const AttentionConfig& attention = options_.config.attention;
    indexer_.emplace(attention);
    indexer_layer_ = layer;
    if (options_.indexer_from_attention) {
      const auto weight = [&](const char* name) {
        return read_tensor(*find(concat("model.layers.", layer, ".self_attn.", name, ".weight")))
            .to(at::kFloat);
      };
      start_from_attention(attention, weight("q_proj"), weight("k_proj"), (*indexer_)->wq->weight,
                           (*indexer_)->wk->weight);
    }
    return *indexer_;
  }

  Conversion made() const {
    Conversion result{.dtype = type_, .dropped_parameters = dropped_};
    for (const auto& [name, part] : parts_) {
      if (find(name) != nullptr || is_mean_variance(name)) continue;
      const bool gate = kind_of_parameter(name) == ParameterKind::gate;
      (gate ? result.gate_parameters : result.indexer_parameters) += c10::multiply_integers(part.shape);
    }
    return result;
  }

  const ConvertOptions& options_;
  const ModelConfig& stored_;
  WeightFiles weights_;
  DType type_;
  std::map<std::string, Part> parts_;
  std::int64_t dropped_ = 0;
  std::optional<Indexer> indexer_;
  std::int64_t indexer_layer_ = -1;
  Tensor staged_;
};

}  // namespace

Conversion convert_model(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  const torch::NoGradGuard no_grad;
  ConvertOptions settled = options;
  // Gates that are new; a folder that has some keeps how they were drawn.
  const ModelConfig stored = load_config(from);
  const AttentionConfig& before = stored.attention;
  if (before.value_gate == GateKind::none && before.output_gate == GateKind::none) {
    settled.config.attention.gate_init_std = 0;
  }
  settled.config.validate();
  for (std::int64_t n = 0; before.sparse && n < stored.layers; ++n) {
    if (settled.config.has_indexer(n) && !stored.has_indexer(n)) {
      bad_argument("nn::convert_model", "config.index_layers", "layers whose indexer the folder has",
                   concat("layer ", n));
    }
  }
  return Converter(from, stored, settled).write(to);
}

}  // namespace gsa::nn
