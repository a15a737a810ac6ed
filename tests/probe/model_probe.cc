// Lets the Python tests make and run models: a folder in, a file of logits out.
//
//   model_probe make FOLDER [key=value ...]   saves a small standard model with random weights
//   model_probe run FOLDER                    reads FOLDER/tokens.safetensors ("tokens", I64 [B, L]),
//                                             writes FOLDER/logits.safetensors ("logits", F32 [B, L, V], and
//                                             "loss", F32: the mean cross-entropy of each next token);
//                                             F64 both for a model whose weights are
//   model_probe engine FOLDER                 the same, and "stepped", the logits by the inference engine: all
//                                             tokens but the last three in one prefill, those one by one
//   model_probe copy FOLDER OTHER             loads FOLDER and saves it again
//
// Keys of make: layers, heads, kv_heads, head_size, tied (0 or 1), extend (YaRN factor), attention_factor,
// bf16 (0 or 1).
#include <torch/torch.h>

#include <cstring>
#include <iostream>
#include <map>
#include <string>

#include "core/safetensors.h"
#include "gsa/error.h"
#include "infer/engine.h"
#include "nn/model_io.h"

namespace gsa::nn {
namespace {

using Values = std::map<std::string, double>;

Values parse_values(int count, char** words) {
  Values values = {{"layers", 3}, {"heads", 4},  {"kv_heads", 2},         {"head_size", 16},
                   {"tied", 0},   {"extend", 1}, {"attention_factor", 0}, {"bf16", 0}};
  for (int i = 0; i < count; ++i) {
    const std::string word = words[i];
    const std::string key = word.substr(0, word.find('='));
    if (!values.contains(key) || key.size() == word.size()) bad_argument("probe", "key", "key=value", word);
    values[key] = std::stod(word.substr(key.size() + 1));
  }
  return values;
}

void make(const std::string& folder, const Values& values) {
  const auto whole = [&](const char* key) { return static_cast<std::int64_t>(values.at(key)); };
  ModelConfig config;
  config.vocab_size = 131;
  config.layers = whole("layers");
  config.intermediate = 88;
  config.max_positions = 64;
  config.tie_embeddings = values.at("tied") != 0;
  config.attention.d_model = 48;
  config.attention.heads = whole("heads");
  config.attention.kv_heads = whole("kv_heads");
  config.attention.head_size = whole("head_size");
  config.attention.init_std = 0.15;  // large, so that attention has opinions and a wrong rotation shows
  apply(config, System::standard);
  extend(config, values.at("extend"));
  if (values.at("attention_factor") != 0) {
    config.attention.rope.yarn.attention_factor = values.at("attention_factor");
  }
  torch::manual_seed(17);
  Model model(config);
  {
    torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      if (item.key().find("norm") != std::string::npos) item.value().normal_(1, 0.2);
    }
  }
  if (values.at("bf16") != 0) model->to(torch::kBFloat16);
  save_model(model, folder);
}

at::Tensor read_tokens(const std::string& folder) {
  const SafetensorsFile file(folder + "/tokens.safetensors");
  const StoredTensor* stored = file.find("tokens");
  if (stored == nullptr || stored->type != StoredType::i64) bad_file(folder, "I64 'tokens'", "none");
  at::Tensor tokens = torch::empty(stored->shape, torch::kInt64);
  std::memcpy(tokens.data_ptr(), file.bytes(*stored).data(), tokens.nbytes());
  return tokens;
}

// float64 as it is, anything else in float32.
at::Tensor readable(const at::Tensor& tensor) {
  return (tensor.scalar_type() == torch::kFloat64 ? tensor : tensor.to(torch::kFloat32)).contiguous();
}

void write_tensors(const std::string& folder, const std::map<std::string, at::Tensor>& tensors) {
  SafetensorsContent content;
  for (const auto& [name, tensor] : tensors) {
    const bool real = tensor.scalar_type() == torch::kFloat64;
    content.tensors.push_back({name, real ? StoredType::f64 : StoredType::f32, tensor.sizes().vec(), 0, 0});
  }
  content.bytes = [&](const StoredTensor& stored_as) {
    const at::Tensor& tensor = tensors.at(stored_as.name);
    return std::span(static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes());
  };
  write_safetensors(folder + "/logits.safetensors", content);
}

at::Tensor stepped_logits(const Model& model, const at::Tensor& tokens) {
  constexpr std::int64_t kSteps = 3;
  infer::Engine engine(model, {.cache_bytes = 64 << 20});
  std::vector<at::Tensor> rows;
  for (std::int64_t b = 0; b < tokens.size(0); ++b) {
    const std::span<const std::int64_t> row(tokens[b].const_data_ptr<std::int64_t>(),
                                            static_cast<std::size_t>(tokens.size(1)));
    infer::Sequence text = engine.start();
    const infer::Prompt prompt{&text, row.first(row.size() - kSteps)};
    std::vector<at::Tensor> parts = {engine.prefill({prompt}, {.all_logits = true}).logits};
    for (const std::int64_t token : row.last(kSteps))
      parts.push_back(engine.decode({{&text, token}}).clone());
    rows.push_back(torch::cat(parts));
  }
  return torch::stack(rows);
}

void run(const std::string& folder, bool with_engine) {
  torch::NoGradGuard no_grad;
  const at::Tensor tokens = read_tokens(folder);
  Model model = load_model(folder).model;
  model->eval();
  const at::Tensor logits = readable(model->logits(model->forward(tokens).hidden));
  const std::int64_t predicted = tokens.size(1) - 1;
  const ModelLoss sums =
      model->loss(tokens.narrow(1, 0, predicted).contiguous(), tokens.narrow(1, 1, predicted).contiguous());
  std::map<std::string, at::Tensor> results = {{"logits", logits}, {"loss", readable(sums.sum / sums.count)}};
  if (with_engine) results["stepped"] = readable(stepped_logits(model, tokens));
  write_tensors(folder, results);
}

int main_checked(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "make") {
    make(argv[2], parse_values(argc - 3, argv + 3));
  } else if ((verb == "run" || verb == "engine") && argc == 3) {
    run(argv[2], verb == "engine");
  } else if (verb == "copy" && argc == 4) {
    save_model(load_model(argv[2]).model, argv[3]);
  } else {
    std::cerr << "usage: model_probe make FOLDER [key=value ...] | run FOLDER | engine FOLDER | copy FOLDER "
                 "OTHER\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace gsa::nn

int main(int argc, char** argv) {
  try {
    return gsa::nn::main_checked(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
