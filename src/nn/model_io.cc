#include "nn/model_io.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "gsa/error.h"
#include "model/config_json.h"
#include "model/weight_checks.h"
#include "model/weight_files.h"
#include "nn/new_layers.h"
#include "nn/stored_tensor.h"
#include "torch/tensor_checks.h"

namespace gsa::nn {
namespace {

using at::Tensor;
namespace fs = std::filesystem;

constexpr const char* kLoadOp = "nn::load_model";
constexpr const char* kConfig = "config.json";
constexpr std::int64_t kMaxConfigBytes = 16 << 20;

void require_same_sizes(const ModelConfig& wanted, const ModelConfig& stored) {
  const auto same = [](const char* field, auto a, auto b) {
    if (a != b) bad_argument(kLoadOp, "config", concat("the folder's ", field, " (", b, ")"), concat(a));
  };
  same("vocab_size", wanted.vocab_size, stored.vocab_size);
  same("layers", wanted.layers, stored.layers);
  same("intermediate", wanted.intermediate, stored.intermediate);
  same("tie_embeddings", wanted.tie_embeddings, stored.tie_embeddings);
  same("d_model", wanted.attention.d_model, stored.attention.d_model);
  same("heads", wanted.attention.heads, stored.attention.heads);
  same("kv_heads", wanted.attention.kv_heads, stored.attention.kv_heads);
  same("head_size", wanted.attention.head_size, stored.attention.head_size);
  same("qkv_bias", wanted.attention.qkv_bias, stored.attention.qkv_bias);
  same("qk_norm", wanted.attention.qk_norm, stored.attention.qk_norm);
  if (wanted.attention.sparse && stored.attention.sparse && wanted.index_layers != stored.index_layers) {
    bad_argument(kLoadOp, "config",
                 concat("the folder's index_layers (", shown_index_layers(stored.index_layers),
                        "; gsa convert leaves indexers behind)"),
                 shown_index_layers(wanted.index_layers));
  }
}

// ---- Parameters and buffers of a model, by the names they have in a file

std::vector<std::pair<std::string, Tensor>> state_of(const ModelImpl& model) {
  std::vector<std::pair<std::string, Tensor>> state;
  for (const auto& item : model.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) state.emplace_back(item.key(), item.value());
  return state;
}

// Chat models end a turn with a mark that only generation_config.json names, beside the one of config.json.
void add_generation_ends(const fs::path& path, ModelConfig& config) {
  if (!fs::is_regular_file(path)) return;
  const std::string file = path.string();
  const Json json = parse_json(read_file(path, kMaxConfigBytes), file);
  if (!json.is_object()) bad_file(file, "an object", shown(json));
  const Json value = json.value("eos_token_id", Json());
  if (value.is_null() || value == -1) return;  // -1 stands for "none" in some files
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >= static_cast<std::uint64_t>(config.vocab_size)) {
      bad_file(
          file,
          concat("eos_token_id to be a token's number in 0 .. ", config.vocab_size - 1, " or a list of them"),
          shown(value));
    }
    const auto end = id.get<std::int64_t>();
    auto& ends = config.eos_ids;
    if (std::find(ends.begin(), ends.end(), end) == ends.end()) ends.push_back(end);
  }
}

}  // namespace

DType dtype_of(at::ScalarType type) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    if (binding::scalar_type(dtype) == type) return dtype;
  }
  bad_argument("nn::dtype_of", "type", "float32, bfloat16, float16 or float64", concat(type));
}

void save_model(const Model& model, const fs::path& folder, const SaveOptions& options) {
  torch::NoGradGuard no_grad;
  const DType type = options.dtype.value_or(dtype_of(model->output_weight().scalar_type()));
  if (fs::exists(folder / kWeightsIndex)) {
    bad_file(folder.string(),
             concat("a folder without ", kWeightsIndex, ", whose shards this file would contradict"),
             "one with it");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(concat("file '", folder.string(), "': cannot make the folder: ", error.message()));

  SafetensorsContent content;
  content.metadata = {{"format", "pt"}};  // transformers asks for it
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : state_of(*model)) {
    tensors[name] = tensor;
    content.tensors.push_back({.name = name,
                               .type = is_mean_variance(name) ? StoredType::f64 : stored_type_of(type),
                               .shape = tensor.sizes().vec(),
                               .begin = 0,
                               .end = 0});
  }
  Tensor staged;  // one at a time, in the file's type, on the CPU
  content.bytes = [&](const StoredTensor& tensor) {
    const auto scalar = is_mean_variance(tensor.name) ? at::kDouble : binding::scalar_type(type);
    staged = tensors.at(tensor.name).detach().to(at::kCPU, scalar).contiguous();
    return std::span(static_cast<const std::byte*>(staged.data_ptr()), staged.nbytes());
  };
  write_safetensors(folder / kWeightsFile, content);

  AtomicFile config(folder / kConfig);
  config.write(config_to_json({model->config(), type}));
  config.commit();
}

ModelConfig load_config(const fs::path& folder) {
  ModelConfig config =
      config_from_json(read_file(folder / kConfig, kMaxConfigBytes), (folder / kConfig).string()).config;
  add_generation_ends(folder / "generation_config.json", config);
  return config;
}

DType stored_dtype(const fs::path& folder) { return common_type(WeightFiles(folder)); }

LoadedModel load_model(const fs::path& folder, const LoadOptions& options) {
  torch::NoGradGuard no_grad;
  const ModelConfig stored = load_config(folder);
  const ModelConfig config = options.config.value_or(stored);
  if (options.config) require_same_sizes(config, stored);
  const WeightFiles weights(folder);
  const DType stored_type = common_type(weights);
  const DType type = options.dtype.value_or(stored_type);
  check_before_reading(weights, config, folder.string());

  LoadedModel result;
  const at::ScalarType scalar = binding::scalar_type(type);
  {
    const WithoutValues without_values(scalar);
    result.model = Model(config);
  }
  TensorShapes shapes;
  for (const auto& [name, tensor] : state_of(*result.model)) shapes.emplace_back(name, tensor.sizes().vec());
  result.initialised =
      check_tensors(weights, shapes, stored, options.missing != MissingParts::refuse, folder.string());
  if (!result.initialised.empty()) result.model = Model(config);  // new parts are drawn as in a new model
  result.model->to(options.device, scalar);
  for (auto& [name, tensor] : state_of(*result.model)) {
    const auto found = weights.tensors().find(name);
    if (found == weights.tensors().end()) continue;
    tensor.copy_(read_tensor(found->second));
    if (options.missing == MissingParts::initialise_and_fold &&
        meets_new_gate(name, stored.attention, config.attention)) {
      fold_gate(config.attention, found->second, tensor);
    }
  }
  return result;
}

}  // namespace gsa::nn
