#include "model/weight_checks.h"

#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "core/file.h"
#include "gsa/error.h"
#include "model/cost.h"

namespace gsa::nn {
namespace {

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
    bad_file(head->second.file_name, "tensor 'lm_head.weight' to be the embedding's, as embeddings are tied",
             "another");
  }
}

// A configuration that is far beyond its file must not make us allocate what it says before the tensors are
// looked at; a lesser disagreement is reported by the name of a tensor.
void refuse_absurd_sizes(const ModelConfig& config, const WeightFiles& weights, const std::string& folder) {
  double elements = 0;
  for (const auto& [name, source] : weights.tensors()) {
    elements +=
        static_cast<double>(source.bytes().size()) / static_cast<double>(size_of(source.tensor->type));
  }
  const double parameters = static_cast<double>(count_model(config).base());
  if (parameters > 4 * elements + 1e6) {
    bad_file(folder, concat("weights for the ", parameters, " parameters of config.json"),
             concat(elements, " elements"));
  }
}

[[noreturn]] void bad_tensor(const WeightSource& source, const std::string& expected,
                             const std::string& got) {
  bad_file(source.file_name, concat("tensor '", source.tensor->name, "' to be ", expected), got);
}

// Tables of angles that old programs stored beside the weights; they follow from the configuration.
bool is_rope_table(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

// The layer that a tensor belongs to; absent: none.
std::optional<std::int64_t> layer_of(const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  std::int64_t layer = 0;
  const char* const begin = name.data() + kLayers.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
  return error == std::errc() && end != begin ? std::optional(layer) : std::nullopt;
}

// Whether a model has the part that a tensor belongs to; what is neither gate nor indexer is in each.
bool has_part_of(const ModelConfig& model, const std::string& name) {
  const AttentionConfig& attention = model.attention;
  const auto in = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (in(".self_attn.value_gate.")) return attention.value_gate != GateKind::none;
  if (in(".self_attn.output_gate.")) return attention.output_gate != GateKind::none;
  const IndexerConfig& indexer = attention.indexer;
  if (!in(".self_attn.indexer.")) return true;
  if (const auto layer = layer_of(name); layer && !model.has_indexer(*layer)) return false;
  if (in(".indexer.log_temperature")) return attention.sparse && indexer.temperature.learned;
  if (in(".indexer.bias")) return attention.sparse && indexer.form == ScoreForm::sigmoid;
  return attention.sparse;
}

std::string shown_shape(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += concat(text.empty() ? "" : ", ", size);
  return concat("[", text, "]");
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 4; ++i) text += concat(i > 0 ? ", '" : "'", names[i], "'");
  return names.size() > 4 ? concat(text, " and ", names.size() - 4, " more") : text;
}

}  // namespace

bool is_mean_variance(const std::string& name) { return name.ends_with(".indexer.mean_variance"); }

DType common_type(const WeightFiles& weights) {
  std::optional<DType> common;
  std::string first;
  for (const auto& [name, source] : weights.tensors()) {
    if (is_mean_variance(name) || is_rope_table(name)) continue;
    const auto type = dtype_of(source.tensor->type);
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

void check_before_reading(const WeightFiles& weights, const ModelConfig& config, const std::string& folder) {
  refuse_absurd_sizes(config, weights, folder);
  if (config.tie_embeddings) check_tied_head(weights.tensors());
}

std::vector<std::string> check_tensors(const WeightFiles& weights, const TensorShapes& model,
                                       const ModelConfig& stored, bool may_be_new,
                                       const std::string& folder) {
  std::set<std::string> known;
  std::vector<std::string> lacking, missing;
  for (const auto& [name, shape] : model) {
    const bool is_new = !has_part_of(stored, name);
    if (!is_new) known.insert(name);
    const auto found = weights.tensors().find(name);
    if (found == weights.tensors().end()) {
      (is_new && may_be_new ? lacking : missing).push_back(name);
      continue;
    }
    const WeightSource& source = found->second;
    if (source.tensor->shape != shape) {
      bad_tensor(source, concat("of shape ", shown_shape(shape)), shown_shape(source.tensor->shape));
    }
    if (is_mean_variance(name) && source.tensor->type != StoredType::f64) {
      bad_tensor(source, "F64", name_of(source.tensor->type));
    }
  }
  if (!missing.empty()) {
    bad_file(folder, "a tensor for each parameter of the model", concat("none for ", listed(missing)));
  }
  for (const auto& [name, source] : weights.tensors()) {
    const bool tied_head = stored.tie_embeddings && name == "lm_head.weight";
    if (!known.contains(name) && !tied_head && !is_rope_table(name)) {
      bad_file(source.file_name, "tensors that the model has", concat("'", name, "'"));
    }
  }
  return lacking;
}

bool meets_new_gate(const std::string& name, const AttentionConfig& stored, const AttentionConfig& wanted) {
  const auto is_new = [](GateKind before, GateKind after) {
    return before == GateKind::none && after != GateKind::none;
  };
  if (name.ends_with(".self_attn.v_proj.weight") || name.ends_with(".self_attn.v_proj.bias")) {
    return is_new(stored.value_gate, wanted.value_gate);
  }
  return name.ends_with(".self_attn.o_proj.weight") && is_new(stored.output_gate, wanted.output_gate);
}

}  // namespace gsa::nn
