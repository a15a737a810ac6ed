#include "nn/model_io.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/file.h"
#include "core/safetensors.h"
#include "gsa/error.h"
#include "model/config_json.h"
#include "model/cost.h"
#include "model/weight_files.h"
#include "torch/tensor_checks.h"

namespace gsa::nn {
namespace {

using at::Tensor;
namespace fs = std::filesystem;

constexpr const char* kOp = "nn::load_model";
constexpr const char* kConfig = "config.json";
constexpr std::int64_t kMaxConfigBytes = 16 << 20;

// ---- Checks

[[noreturn]] void bad_tensor(const WeightSource& source, const std::string& expected,
                             const std::string& got) {
  bad_file(source.file_name, concat("tensor '", source.tensor->name, "' to be ", expected), got);
}

bool is_mean_variance(const std::string& name) { return name.ends_with(".indexer.mean_variance"); }

// Tables of angles that old programs stored beside the weights; they follow from the configuration.
bool is_rope_table(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

bool same_bytes(const WeightSource& a, const WeightSource& b) {
  const auto x = a.bytes(), y = b.bytes();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0;
}

// Tied weights are one tensor; a file that has it twice must have it equal.
void check_tied_head(const std::map<std::string, WeightSource>& tensors) {
  const auto head = tensors.find("lm_head.weight"), embedding = tensors.find("model.embed_tokens.weight");
  if (head == tensors.end() || embedding == tensors.end()) return;
  if (head->second.tensor->type != embedding->second.tensor->type ||
      !same_bytes(head->second, embedding->second)) {
    bad_tensor(head->second, "the embedding's, as embeddings are tied", "another");
  }
}

// The one type of all weights.
DType common_type(const std::map<std::string, WeightSource>& tensors) {
  std::optional<DType> common;
  std::string first;
  for (const auto& [name, source] : tensors) {
    if (is_mean_variance(name) || is_rope_table(name)) continue;
    const auto type = gsa::dtype_of(source.tensor->type);
    if (!type) bad_tensor(source, "F32, BF16, F16 or F64", name_of(source.tensor->type));
    if (!common) {
      common = type;
      first = name;
    } else if (*type != *common) {
      bad_tensor(source, concat(name_of(stored_type_of(*common)), " like '", first, "'"),
                 name_of(source.tensor->type));
    }
  }
  return common.value_or(DType::f32);
}

void require_same_sizes(const ModelConfig& wanted, const ModelConfig& stored) {
  const auto same = [](const char* field, auto a, auto b) {
    if (a != b) bad_argument(kOp, "config", concat("the folder's ", field, " (", b, ")"), concat(a));
  };
  same("vocab_size", wanted.vocab_size, stored.vocab_size);
  same("layers", wanted.layers, stored.layers);
  same("intermediate", wanted.intermediate, stored.intermediate);
  same("tie_embeddings", wanted.tie_embeddings, stored.tie_embeddings);
  same("d_model", wanted.attention.d_model, stored.attention.d_model);
  same("heads", wanted.attention.heads, stored.attention.heads);
  same("kv_heads", wanted.attention.kv_heads, stored.attention.kv_heads);
  same("head_size", wanted.attention.head_size, stored.attention.head_size);
}

// A configuration that is far beyond its file must not make us allocate what it says before the tensors are
// looked at; a lesser disagreement is reported by the name of a tensor.
void refuse_absurd_sizes(const ModelConfig& config, const WeightFiles& weights, const fs::path& folder) {
  double elements = 0;
  for (const auto& [name, source] : weights.tensors()) {
    elements +=
        static_cast<double>(source.bytes().size()) / static_cast<double>(size_of(source.tensor->type));
  }
  const double parameters = static_cast<double>(count_model(config).base());
  if (parameters > 4 * elements + 1e6) {
    bad_file(folder.string(), concat("weights for the ", parameters, " parameters of ", kConfig),
             concat(elements, " elements"));
  }
}

// ---- Parameters and buffers of a model, by the names they have in a file

std::vector<std::pair<std::string, Tensor>> state_of(const ModelImpl& model) {
  std::vector<std::pair<std::string, Tensor>> state;
  for (const auto& item : model.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) state.emplace_back(item.key(), item.value());
  return state;
}

void copy_into(Tensor& target, const WeightSource& source) {
  const StoredTensor& stored = *source.tensor;
  const bool mean_variance = is_mean_variance(stored.name);
  if (at::IntArrayRef(stored.shape) != target.sizes()) {
    bad_tensor(source, concat("of shape ", target.sizes()), concat(at::IntArrayRef(stored.shape)));
  }
  if (mean_variance && stored.type != StoredType::f64) bad_tensor(source, "F64", name_of(stored.type));
  const at::ScalarType type =
      mean_variance ? at::kDouble : binding::scalar_type(gsa::dtype_of(stored.type).value());
  Tensor staged = torch::empty(target.sizes(), type);  // bytes in a file may be unaligned
  const auto bytes = source.bytes();
  if (!bytes.empty()) std::memcpy(staged.data_ptr(), bytes.data(), bytes.size());
  target.copy_(staged);
}

// Doubles the weights next to gates that are new and start at one half.
void fold_new_gates(ModelImpl& model, const std::set<std::string>& made) {
  for (std::size_t n = 0; n < model.model->layers.size(); ++n) {
    auto& attention = *model.model->layers[n]->self_attn;
    const std::string prefix = concat("model.layers.", n, ".self_attn.");
    if (made.contains(prefix + "value_gate.weight")) attention.v_proj->weight.mul_(2);
    if (made.contains(prefix + "output_gate.weight")) attention.o_proj->weight.mul_(2);
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 4; ++i) text += concat(i > 0 ? ", '" : "'", names[i], "'");
  return names.size() > 4 ? concat(text, " and ", names.size() - 4, " more") : text;
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
  return config_from_json(read_file(folder / kConfig, kMaxConfigBytes), (folder / kConfig).string()).config;
}

DType stored_dtype(const fs::path& folder) { return common_type(WeightFiles(folder).tensors()); }

LoadedModel load_model(const fs::path& folder, const LoadOptions& options) {
  torch::NoGradGuard no_grad;
  const ModelConfig stored = load_config(folder);
  const ModelConfig config = options.config.value_or(stored);
  if (options.config) require_same_sizes(config, stored);
  const WeightFiles weights(folder);
  const DType stored_type = common_type(weights.tensors());
  const DType type = options.dtype.value_or(stored_type);
  refuse_absurd_sizes(config, weights, folder);
  if (config.tie_embeddings) check_tied_head(weights.tensors());

  LoadedModel result;
  result.model = Model(config);
  result.model->to(options.device, binding::scalar_type(type));
  std::set<std::string> used;
  std::vector<std::string> missing;
  for (auto& [name, tensor] : state_of(*result.model)) {
    const auto found = weights.tensors().find(name);
    if (found == weights.tensors().end()) {
      const bool may_be_made = kind_of_parameter(name) != ParameterKind::base;
      (may_be_made ? result.initialised : missing).push_back(name);
      continue;
    }
    copy_into(tensor, found->second);
    used.insert(name);
  }
  if (options.missing == MissingParts::refuse) {
    missing.insert(missing.end(), result.initialised.begin(), result.initialised.end());
  }
  if (!missing.empty()) {
    bad_file(folder.string(), concat("a tensor for each parameter of the model"),
             concat("none for ", listed(missing)));
  }
  for (const auto& [name, source] : weights.tensors()) {
    const bool tied_head = config.tie_embeddings && name == "lm_head.weight";
    if (!used.contains(name) && !tied_head && !is_rope_table(name)) {
      bad_file(source.file_name, "tensors that the model has", concat("'", name, "'"));
    }
  }
  if (options.missing == MissingParts::initialise_and_fold) {
    fold_new_gates(*result.model, {result.initialised.begin(), result.initialised.end()});
  }
  return result;
}

}  // namespace gsa::nn
