// gsa inspect: what a model has and costs, without running it.
#include <iostream>
#include <memory>
#include <string>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/text.h"
#include "core/json.h"
#include "core/usage_error.h"
#include "model/config_json.h"
#include "model/cost.h"
#include "model/weight_files.h"

namespace gsa::cli {
namespace {

using namespace gsa::nn;

struct InspectCommand {
  ModelOptions model;
  std::optional<std::int64_t> length;
  std::string dtype = "bfloat16", phase;
  bool json = false;
};

constexpr const char* kInspectLesson = R"(
The second column of costs is the standard model of the same sizes: dense attention, no gates. Counted are matrix
products, attention and the indexer's scores, two operations for a multiplication with its addition; a sparse query is
taken to read k keys. Training is one sequence, forward and backward, without what is computed twice.

Examples
  gsa inspect --preset paper-1.7b --length 131072
  gsa inspect --preset llama-7b-class --output-gate headwise --k 1024
  gsa inspect --preset small --phase warmup --json
)";

DType dtype_by_name(const std::string& name) {
  check_choice("--dtype", name, {"bfloat16", "float16", "float32"});
  return name == "bfloat16" ? DType::bf16 : name == "float16" ? DType::f16 : DType::f32;
}

struct Report {
  ModelConfig config;
  std::string title;
  std::string weights;  // of a folder: what its files hold
  CostOptions options;
  ParameterCount layer, model;
  Cost cost, standard;
};

std::string stored_weights(const std::string& folder) {
  const WeightFiles files(folder);
  double bytes = 0;
  std::string type;
  for (const auto& [name, source] : files.tensors()) {
    bytes += static_cast<double>(source.bytes().size());
    if (source.tensor->shape.size() == 2) type = name_of(source.tensor->type);
  }
  return concat(files.tensors().size(), " tensors, ", type, ", ", scaled_bytes(bytes));
}

Report make_report(const InspectCommand& options) {
  Report report;
  report.config = chosen_config(options.model);
  const std::string folder = options.model.folder.empty() ? "" : model_folder(options.model.folder);
  const ModelConfig& config = report.config;
  const auto system = system_of(config.attention);
  report.title =
      concat(folder.empty() ? options.model.preset : folder, ", ", system ? name_of(*system) : "an ablation");
  if (!folder.empty()) report.weights = stored_weights(folder);
  report.options.length = options.length.value_or(config.max_positions);
  report.options.dtype = dtype_by_name(options.dtype);
  const Phase usual = config.attention.sparse ? Phase::sparse : Phase::dense;
  report.options.phase = options.phase.empty()
                             ? usual
                             : checking_option("--phase", [&] { return phase_by_name(options.phase); });
  report.layer = count_layer(config);
  report.model = count_model(config);
  report.cost = checking_option("", [&] { return estimate_cost(config, report.options); });
  ModelConfig standard = config;
  apply(standard, System::standard);
  CostOptions dense = report.options;
  dense.phase = Phase::dense;
  report.standard = estimate_cost(standard, dense);
  return report;
}

// ---- for people

void print_parameters(const Report& report) {
  const ParameterCount &layer = report.layer, &model = report.model;
  Table table({"parameters", "a layer", "the model", "of the model"});
  table.line();
  const auto row = [&](const char* name, std::int64_t in_layer, std::int64_t in_model) {
    if (in_model == 0) return;
    const double share = static_cast<double>(in_model) / static_cast<double>(model.total());
    table.row({name, in_layer == 0 ? "" : grouped(in_layer), grouped(in_model), percent(share)});
  };
  row("embedding", 0, model.embedding);
  row("output projection", 0, model.output);
  row("attention: q, k, v, o", layer.attention, model.attention);
  row("SwiGLU", layer.mlp, model.mlp);
  row("norms", layer.norms, model.norms);
  row("value gate (G2)", layer.value_gate, model.value_gate);
  row("output gate (G1)", layer.output_gate, model.output_gate);
  row("indexer", layer.indexer, model.indexer);
  table.line();
  row("all", layer.total(), model.total());
  if (model.added() > 0) {
    const auto over_base = [](const ParameterCount& c) {
      return "+" + percent(static_cast<double>(c.added()) / static_cast<double>(c.base()));
    };
    table.row({"gates and indexer add", over_base(layer), over_base(model)});
  }
  table.print(std::cout);
  if (model.indexer > 0 && report.config.indexers() < report.config.layers) {
    std::cout << "  A layer: one with an indexer, which " << report.config.indexers() << " of "
              << report.config.layers << " have.\n";
  }
  if (report.config.tie_embeddings) std::cout << "  The output projection is the embedding (tied).\n";
}

void print_costs(const Report& report) {
  const Cost &cost = report.cost, &standard = report.standard;
  Table table({concat("cost at ", grouped(report.options.length), " tokens, ", name_of(report.options.dtype)),
               "this model", "standard", "ratio"});
  const auto row = [&](const std::string& name, double ours, double theirs, const char* unit) {
    if (ours == 0 && theirs == 0) return;
    const std::string ratio = theirs > 0 ? fixed(ours / theirs, ours / theirs < 0.0995 ? 3 : 2) : "";
    table.row({name, scaled(ours, unit), theirs > 0 ? scaled(theirs, unit) : "", ratio});
  };
  const auto operations = [&](const char* name, const Operations& ours, const Operations& theirs) {
    table.line();
    row(name, ours.total(), theirs.total(), "FLOP");
    row("  projections, SwiGLU", ours.projections, theirs.projections, "FLOP");
    row("  attention", ours.attention, theirs.attention, "FLOP");
    row("  indexer", ours.indexer, theirs.indexer, "FLOP");
    row("  output projection", ours.output, theirs.output, "FLOP");
  };
  table.line();
  row("keys a query reads, mean", cost.keys_per_query, standard.keys_per_query, "");
  operations("prefill of one sequence", cost.prefill, standard.prefill);
  row("  sigmoids of scores", cost.sigmoids, standard.sigmoids, "");
  operations("decoding one token", cost.decode.operations, standard.decode.operations);
  row("  weights read", cost.decode.weight_bytes, standard.decode.weight_bytes, "B");
  row("  cache read", cost.decode.read.total(), standard.decode.read.total(), "B");
  table.line();
  row("cache of one sequence", cost.cache.total(), standard.cache.total(), "B");
  row("  keys", cost.cache.keys, standard.cache.keys, "B");
  row(report.config.attention.value_gate == GateKind::none ? "  values" : "  values, gated",
      cost.cache.values, standard.cache.values, "B");
  row("  indexer keys", cost.cache.index_keys, standard.cache.index_keys, "B");
  operations(concat("training on one sequence, ", name_of(report.options.phase)).c_str(), cost.training,
             standard.training);
  table.line();
  row("weights", cost.weight_bytes, standard.weight_bytes, "B");
  row("weights, gradients, AdamW", cost.training_bytes, standard.training_bytes, "B");
  table.print(std::cout);
}

void print_inspection(const Report& report) {
  std::cout << report.title << "\n\n" << report.config.describe();
  const std::int64_t longest = report.config.max_positions;
  if (report.options.length > longest) {
    std::cout << "note       " << grouped(report.options.length) << " tokens are beyond the "
              << grouped(longest) << " the model is meant for; --extend "
              << (report.options.length + longest - 1) / longest << " would stretch its positions\n";
  }
  if (report.config.attention.sparse && report.options.length < report.config.attention.dense_below) {
    std::cout << "note       " << grouped(report.options.length)
              << " tokens are below dense_below: the costs are those of dense attention; --dense-below 0 "
                 "shows sparse ones\n";
  }
  if (!report.weights.empty()) std::cout << "weights    " << report.weights << '\n';
  std::cout << '\n';
  print_parameters(report);
  std::cout << '\n';
  print_costs(report);
}

// ---- for programs

OrderedJson inspection_json(const ParameterCount& count) {
  OrderedJson json;
  json["embedding"] = count.embedding;
  json["output"] = count.output;
  json["attention"] = count.attention;
  json["mlp"] = count.mlp;
  json["norms"] = count.norms;
  json["value_gate"] = count.value_gate;
  json["output_gate"] = count.output_gate;
  json["indexer"] = count.indexer;
  json["base"] = count.base();
  json["added"] = count.added();
  json["total"] = count.total();
  return json;
}

OrderedJson inspection_json(const Operations& operations) {
  OrderedJson json;
  json["projections"] = operations.projections;
  json["attention"] = operations.attention;
  json["indexer"] = operations.indexer;
  json["output"] = operations.output;
  json["total"] = operations.total();
  return json;
}

OrderedJson inspection_json(const CacheBytes& bytes) {
  OrderedJson json;
  json["keys"] = bytes.keys;
  json["values"] = bytes.values;
  json["index_keys"] = bytes.index_keys;
  json["total"] = bytes.total();
  return json;
}

OrderedJson inspection_json(const Cost& cost) {
  OrderedJson json;
  json["keys_per_query"] = cost.keys_per_query;
  json["prefill_flop"] = inspection_json(cost.prefill);
  json["prefill_sigmoids"] = cost.sigmoids;
  json["decode_flop"] = inspection_json(cost.decode.operations);
  json["decode_weight_bytes"] = cost.decode.weight_bytes;
  json["decode_cache_bytes"] = inspection_json(cost.decode.read);
  json["cache_bytes"] = inspection_json(cost.cache);
  json["training_flop"] = inspection_json(cost.training);
  json["weight_bytes"] = cost.weight_bytes;
  json["training_bytes"] = cost.training_bytes;
  return json;
}

void print_json(const Report& report) {
  const auto system = system_of(report.config.attention);
  OrderedJson json;
  json["system"] = system ? OrderedJson(name_of(*system)) : OrderedJson(nullptr);
  json["length"] = report.options.length;
  json["dtype"] = name_of(report.options.dtype);
  json["phase"] = name_of(report.options.phase);
  json["config"] = OrderedJson::parse(config_to_json({report.config, std::nullopt}));
  json["parameters_per_layer"] = inspection_json(report.layer);
  json["parameters"] = inspection_json(report.model);
  json["cost"] = inspection_json(report.cost);
  json["standard"] = inspection_json(report.standard);
  std::cout << json.dump(2) << '\n';
}

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("inspect", "parameters by component, and what a model costs at a length");
  command->footer(kInspectLesson);
  auto options = std::make_shared<InspectCommand>();
  add_model_options(*command, options->model);
  const char* kCosts = "Costs";
  command
      ->add_option("--length", options->length,
                   "tokens of a sequence; default: the longest the model is meant for")
      ->group(kCosts);
  command->add_option("--dtype", options->dtype, "of weights and cache: bfloat16, float16 or float32")
      ->capture_default_str()
      ->group(kCosts);
  command
      ->add_option("--phase", options->phase,
                   "of training: dense, warmup or sparse; default: sparse, or dense "
                   "where the model is")
      ->group(kCosts);
  command->add_flag("--json", options->json, "all figures as JSON");
  command->callback([&run, options] {
    run = [options] {
      const Report report = make_report(*options);
      options->json ? print_json(report) : print_inspection(report);
      return 0;
    };
  });
}

}  // namespace gsa::cli
