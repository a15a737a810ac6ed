// gsa_bench_tensors: runs a text through a model and writes what chosen layers' attention worked on, so that
// benchmarks need not make up their inputs. See --help and docs/benchmarks/README.md.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../program.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "core/usage_error.h"
#include "gsa/error.h"
#include "gsa/version.h"
#include "nn/device.h"
#include "nn/evaluation_mode.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "overlap.h"
#include "text_window.h"
#include "torch/tensor_checks.h"

namespace gsa::bench {
namespace {

using at::Tensor;
namespace fs = std::filesystem;

constexpr const char* kLesson = R"(
One file a layer, OUTPUT/layer-NN.safetensors, which bench/gpu.py --tensors reads. Windows of --length tokens lie side by
side in the text (documents joined) from --offset on; each is a sequence of its own. Tensors, B windows of L tokens:
  q [B, L, heads, size], k, v [B, L, kv heads, size]   as attention got them: q and k rotated, v gated
  index_q [B, L, indexer heads, size], index_k [B, L, size], index_w [B, L, indexer heads], index_bias [indexer heads]
                                                       not in --phase dense, where the indexer is frozen
  k_t [B, L]                                           how many keys each query selected; --phase sparse only
  gate [B, 1, heads, size] or [B, 1, heads]            arguments of the output gate at the last token, for decoding
and as metadata what an operator needs beside them: budget, k_base, k_min, k_max, mean_variance, index_scale, form;
what the model is, and where the text came from.

Nothing hinders a --length beyond the one the model was trained at; --extend stretches RoPE as gsa generate --extend does.
--k gives another number of keys to every layer of the pass (k_min and k_max move in proportion).

Examples
  gsa_bench_tensors runs/small/latest --data data/text --length 8192 --rows 8 --layers 0,3,7 --output tensors/small-8k
  gsa_bench_tensors runs/wide/latest --data data/text --length 131072 --k 2048 --output tensors/wide-128k
)";

struct Options {
  std::string model, data, output, device = "auto", dtype = "auto", phase;
  std::vector<std::int64_t> layers;  // empty: all
  std::int64_t length = 8192, rows = 1, offset = 0, k = 0;
  double extend = 0;
};

// What a file holds; tensors on any device.
struct LayerFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

std::string exact(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

StoredType stored_type(const std::string& name, const Tensor& tensor) {
  if (tensor.scalar_type() == at::kInt) return StoredType::i32;
  return stored_type_of(binding::dtype_of("gsa_bench_tensors", name.c_str(), tensor));
}

void write_layer(const fs::path& path, const LayerFile& layer) {
  SafetensorsContent content;
  content.metadata = layer.metadata;
  for (const auto& [name, tensor] : layer.tensors) {
    content.tensors.push_back({.name = name,
                               .type = stored_type(name, tensor),
                               .shape = tensor.sizes().vec(),
                               .begin = 0,
                               .end = 0});
  }
  Tensor staged;  // one at a time, on the CPU
  content.bytes = [&](const StoredTensor& tensor) {
    staged = layer.tensors.at(tensor.name).to(at::kCPU).contiguous();
    return std::span(static_cast<const std::byte*>(staged.data_ptr()), staged.nbytes());
  };
  write_safetensors(path, content);
}

std::vector<std::int64_t> chosen_layers(const Options& options, std::int64_t count) {
  std::vector<std::int64_t> layers = options.layers;
  if (layers.empty()) {
    for (std::int64_t n = 0; n < count; ++n) layers.push_back(n);
  }
  for (const std::int64_t layer : layers) {
    if (layer >= count) {
      throw UsageError(concat("--layers: expected numbers in 0 .. ", count - 1, ", got ", layer));
    }
  }
  return layers;
}

// Another number of keys: k_base, and the bounds in proportion.
void set_k(nn::ModelConfig& config, std::int64_t k) {
  nn::BudgetConfig& budget = config.attention.budget;
  const double ratio = static_cast<double>(k) / static_cast<double>(budget.base);
  const auto scaled = [ratio](std::int64_t value) {
    return std::max<std::int64_t>(1, std::llround(ratio * static_cast<double>(value)));
  };
  budget = {.mode = budget.mode, .base = k, .min = scaled(budget.min), .max = scaled(budget.max)};
}

nn::ModelConfig chosen_config(const Options& options) {
  nn::ModelConfig config = nn::load_config(options.model);
  if (options.k > 0) {
    if (!config.attention.sparse) {
      throw UsageError("--k: expected a model with an indexer, got one without");
    }
    set_k(config, options.k);
  }
  if (options.extend > 0) checking_usage([&] { nn::extend(config, options.extend); });
  return config;
}

DType chosen_dtype(const Options& options, const torch::Device& device) {
  if (device.is_cuda() && options.dtype == "float32") {
    throw UsageError("--dtype: expected bfloat16 or float16 on a GPU, got float32");
  }
  if (options.dtype == "auto") return device.is_cuda() ? DType::bf16 : DType::f32;
  return options.dtype == "float32" ? DType::f32 : options.dtype == "bfloat16" ? DType::bf16 : DType::f16;
}

// The tensors of a layer, windows as a batch.
LayerFile layer_file(const nn::AttentionView& view, std::int64_t rows) {
  LayerFile file;
  const auto add = [&](const char* name, const Tensor& rows_of) {
    const std::int64_t length = rows_of.size(0) / rows;
    file.tensors[name] = rows_of.unflatten(0, {rows, length});
  };
  add("q", view.q);
  add("k", view.k);
  add("v", view.v);
  if (view.indexer) {
    add("index_q", view.indexer->q);
    add("index_k", view.indexer->k);
    add("index_w", view.indexer->w);
    if (view.indexer->bias) file.tensors["index_bias"] = *view.indexer->bias;
    const ops::BudgetOptions& budget = *view.budget;
    file.metadata = {{"index_scale", exact(view.indexer->scale)},
                     {"form", view.indexer->form},
                     {"budget", budget.mode},
                     {"k_base", std::to_string(budget.base)},
                     {"k_min", std::to_string(budget.min)},
                     {"k_max", std::to_string(budget.max)},
                     {"mean_variance", exact(budget.mean_variance->item<double>())}};
  }
  if (view.k_t.defined()) add("k_t", view.k_t.to(at::kInt));
  if (view.output_gate.defined()) {
    const Tensor gate = view.output_gate.unflatten(0, {rows, view.output_gate.size(0) / rows});
    file.tensors["gate"] = gate.narrow(1, gate.size(1) - 1, 1);
  }
  return file;
}

std::string line_of(std::int64_t layer, const LayerFile& file, std::optional<double> overlap,
                    const fs::path& path) {
  std::string keys;
  if (const auto k_t = file.tensors.find("k_t"); k_t != file.tensors.end()) {
    char text[60];
    std::snprintf(text, sizeof text, ", k %.0f in the mean",
                  k_t->second.to(at::kDouble).mean().item<double>());
    keys = text;
  }
  if (overlap) {
    char text[60];
    std::snprintf(text, sizeof text, ", union/k %.2f", *overlap);
    keys += text;
  }
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return concat("layer ", layer, ": ", path.string(), ", ", bytes / 1'000'000, " MB", keys);
}

void run(const Options& options) {
  const nn::ModelConfig config = chosen_config(options);
  const std::vector<std::int64_t> layers = chosen_layers(options, config.layers);
  const nn::Phase usual = config.attention.sparse ? nn::Phase::sparse : nn::Phase::dense;
  const nn::Phase phase =
      options.phase.empty() ? usual : checking_usage([&] { return nn::phase_by_name(options.phase); });
  const torch::Device device = nn::device_by_name(options.device);
  const DType dtype = chosen_dtype(options, device);

  std::vector<std::int64_t> ids = read_text({.data = options.data,
                                             .model = options.model,
                                             .vocab_size = config.vocab_size,
                                             .offset = options.offset,
                                             .count = options.rows * options.length});
  std::error_code failure;
  fs::create_directories(options.output, failure);
  if (failure) {
    throw Error(concat("--output: cannot make the folder ", options.output, ": ", failure.message()));
  }
  check_writable(fs::path(options.output) / "new");

  const std::map<std::string, std::string> common = {
      {"format", "gsa-bench-tensors"},
      {"gsa", GSA_VERSION},
      {"model", options.model},
      {"data", options.data},
      {"phase", nn::name_of(phase)},
      {"layers", std::to_string(config.layers)},
      {"rows", std::to_string(options.rows)},
      {"length", std::to_string(options.length)},
      {"offset", std::to_string(options.offset)},
      {"trained_length", std::to_string(config.trained_length())},
      {"yarn", exact(config.attention.rope.yarn.factor)},
      {"device", device.is_cuda() ? "cuda" : "cpu"}};

  const torch::NoGradGuard no_grad;
  nn::Model model = nn::load_model(options.model, {.config = config, .dtype = dtype, .device = device}).model;
  const nn::EvaluationMode evaluation(model);
  const std::set<std::int64_t> wanted(layers.begin(), layers.end());
  nn::ModelForwardOptions forward{
      .cu_seqlens = torch::arange(0, options.rows * options.length + 1, options.length, torch::kInt64),
      .phase = phase};
  forward.observe_attention = [&](std::int64_t layer, const nn::AttentionView& view) {
    if (!wanted.contains(layer)) return;
    LayerFile file = layer_file(view, options.rows);
    file.metadata.insert(common.begin(), common.end());
    file.metadata["layer"] = std::to_string(layer);
    char name[40];
    std::snprintf(name, sizeof name, "layer-%02lld.safetensors", static_cast<long long>(layer));
    const fs::path path = fs::path(options.output) / name;
    write_layer(path, file);
    const std::optional<double> overlap = view.k_t.defined() ? union_over_k(view) : std::nullopt;
    std::cout << line_of(layer, file, overlap, path) << std::endl;
  };
  const Tensor tokens =
      torch::from_blob(ids.data(), {static_cast<std::int64_t>(ids.size())}, torch::kInt64).to(device);
  model->forward(tokens, forward);
}

}  // namespace
}  // namespace gsa::bench

int main(int argc, char** argv) {
  gsa::bench::Options options;
  CLI::App app("Writes what a trained model's attention works on, as inputs for benchmarks.",
               "gsa_bench_tensors");
  app.footer(gsa::bench::kLesson);
  const auto whole = [](std::int64_t least) { return CLI::Range(least, std::int64_t{1} << 30); };
  app.add_option("model", options.model, "A model's folder, as gsa train writes it")->required();
  app.add_option("--data", options.data, "A dataset of the model's tokenizer (gsa tokenize)")->required();
  app.add_option("--output", options.output, "Folder for the files; made where it is not there")->required();
  app.add_option("--length", options.length, "Tokens of a window")->check(whole(1))->capture_default_str();
  app.add_option("--rows", options.rows, "Windows")->check(whole(1))->capture_default_str();
  app.add_option("--offset", options.offset, "Tokens of the text before the first window")
      ->check(whole(0))
      ->capture_default_str();
  app.add_option("--layers", options.layers, "Numbers from 0 on, separated by commas (default: all)")
      ->delimiter(',')
      ->check(whole(0));
  app.add_option("--phase", options.phase,
                 "dense, warmup or sparse (default: sparse where the model is, else dense)");
  app.add_option("--k", options.k, "Keys a query selects: k_base (default: as the model has it)")
      ->check(whole(1));
  app.add_option("--extend", options.extend, "Stretch RoPE to so many times the trained length")
      ->check(CLI::Range(1.0, 1e6));
  app.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--dtype", options.dtype,
                 "auto (a GPU: bfloat16, a CPU: float32), float32, bfloat16, float16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}));
  return gsa::bench::run_program(app, argc, argv, [&] { gsa::bench::run(options); });
}
