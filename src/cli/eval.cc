// gsa eval: perplexity, attention sinks and the quality of the selection of a model on a text.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/eval_memory.h"
#include "cli/eval_tables.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/usage_error.h"
#include "eval/charts.h"
#include "eval/evaluate.h"
#include "eval/report_json.h"
#include "model/cost.h"
#include "nn/device.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "torch/tensor_checks.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

using namespace gsa::eval;

struct EvalCommand {
  ModelOptions model;  // the folder, and what is changed of its configuration
  std::string data, text, phase, json, plots;
  bool join = false, ignore_tokenizer = false;
  std::vector<std::string> measures;
  std::vector<std::int64_t> lengths;
  std::int64_t stride = 0, tokens = 0, batch_tokens = 8192;
  std::optional<std::int64_t> oracle_queries, agreement_queries;
  std::string device = "auto", dtype = "auto";
  std::int64_t threads = 0;
};

constexpr std::int64_t kUsualLength = 4096;

constexpr const char* kEvalLesson = R"(
perplexity   How well the model predicts the text: exp of the mean of -log p over all tokens but a document's first, and
             the same over the text's bytes, which compares between tokenizers. Windows start every --stride tokens;
             each counts what no window before it has counted.
sinks        The share of attention that goes to the first token, by layer and head; the means of the gates; the largest
             magnitude in the residual stream, and at which token of its window it stands.
selection    "kept": the share of dense attention's mass that falls on the selected keys; "choosing": the share of queries
             that leave keys out, and the mass that "theirs" keep; how many keys queries take; and "U 16": the keys that
             16 neighbouring queries select together, over the keys of one. In --phase warmup attention is dense and the
             selection is the one that the indexer would make. Beside it the oracle's, the best selection with as many
             keys: its mass, the share of it that is kept (the indexer's fault) and of its keys that are selected
             ("recall"), over queries that leave keys out, of --oracle-queries in each window.

agreement    For pairs of layers the share of one's keys that the other has, too, of the selections and of the oracles, at
             --agreement-queries of each window: which layers could share a selection (gsa convert --index-every).

Memory grows linearly with --length. docs/evaluation.md has the formulas.

Examples
  gsa eval runs/book/latest --data data/valid
  gsa eval runs/book/latest --text chapter.txt --measure perplexity --length 1024 --stride 256
  gsa eval runs/book/latest --data data/valid --join --length 1024,4096,16384 --extend 16 --tokens 200000
  gsa eval runs/book/latest --data data/valid --measure selection --k 64 --k-min 16 --k-max 128
  gsa eval runs/book/latest --data data/valid --json result.json --plots plots/
)";

// Thrown out of the evaluation when the user wants to stop.
struct EvalStopped {};

void check_eval(const EvalCommand& options) {
  if (options.data.empty() == options.text.empty()) {
    throw UsageError(
        concat("expected --data DATASET or --text FILE, got ", options.data.empty() ? "neither" : "both"));
  }
  if (options.join && options.data.empty()) {
    throw UsageError("--join: expected --data, whose documents it joins, got --text, which is one document");
  }
  if (options.ignore_tokenizer && options.data.empty()) {
    throw UsageError("--ignore-tokenizer: expected --data, got --text, which the model's tokenizer reads");
  }
  check_choice("--device", options.device, {"auto", "cpu", "cuda"});
  check_choice("--dtype", options.dtype, {"auto", "float32", "bfloat16", "float16"});
  for (const std::string& measure : options.measures) {
    check_choice("--measure", measure, {"perplexity", "sinks", "selection", "agreement"});
  }
}

std::optional<DType> chosen_dtype(const EvalCommand& options, const torch::Device& device) {
  if (device.is_cuda() && options.dtype == "float32") {
    throw UsageError(
        "--dtype: expected bfloat16 or float16 on a GPU, whose operators take 16-bit types, got float32 (or "
        "use "
        "--device cpu)");
  }
  if (options.dtype == "auto") return device.is_cuda() ? std::optional(DType::bf16) : std::nullopt;
  return options.dtype == "float32" ? DType::f32 : options.dtype == "bfloat16" ? DType::bf16 : DType::f16;
}

std::unique_ptr<Documents> open_documents(const EvalCommand& options) {
  const std::filesystem::path folder = options.model.folder;
  if (!options.text.empty()) {
    if (!data::has_tokenizer(folder)) {
      bad_file(
          folder.string(),
          "a tokenizer beside the weights, for --text (tokenizer.model, tokenizer.json, or a byte model's "
          "tokenizer_config.json)",
          "none (--data takes a dataset that brings its own)");
    }
    return file_document(options.text, data::load_tokenizer(folder));
  }
  auto documents = dataset_documents(options.data, options.join ? Joining::all : Joining::none);
  if (!options.ignore_tokenizer) {
    data::check_same_tokenizer(folder, options.data, documents->tokenizer().fingerprint(),
                               "--ignore-tokenizer");
  }
  return documents;
}

EvaluateOptions evaluate_options(const EvalCommand& options, const nn::ModelConfig& config) {
  EvaluateOptions result;
  if (!options.phase.empty())
    result.phase = checking_option("--phase", [&] { return nn::phase_by_name(options.phase); });
  const nn::Phase usual = config.attention.sparse ? nn::Phase::sparse : nn::Phase::dense;
  const auto asked = [&](const char* name) {
    return std::find(options.measures.begin(), options.measures.end(), name) != options.measures.end();
  };
  const bool all = options.measures.empty();
  result.perplexity = all || asked("perplexity");
  result.sinks = all || asked("sinks");
  result.selection = asked("selection") || (all && result.phase.value_or(usual) != nn::Phase::dense);
  if (options.oracle_queries) {
    if (!result.selection) {
      throw UsageError(
          "--oracle-queries: expected the measure selection, which it is a part of, got a run without it");
    }
    result.oracle_queries = *options.oracle_queries;
  }
  result.agreement = asked("agreement");
  if (options.agreement_queries) {
    if (!result.agreement) {
      throw UsageError(
          "--agreement-queries: expected the measure agreement, which it is a part of, got a run "
          "without it");
    }
    result.agreement_queries = *options.agreement_queries;
  }
  result.windows.batch_tokens = options.batch_tokens;
  result.windows.predictions = options.tokens;
  return result;
}

std::vector<std::int64_t> lengths_of(const EvalCommand& options, const nn::ModelConfig& config) {
  std::vector<std::int64_t> lengths = options.lengths;
  if (lengths.empty()) lengths = {std::min(config.max_positions, kUsualLength)};
  std::sort(lengths.begin(), lengths.end());
  if (options.stride > lengths.front()) {
    throw UsageError(concat("--stride: expected at most ", lengths.front(),
                            options.lengths.empty() ? ", the length of a window" : ", the shortest --length",
                            ", got ", options.stride));
  }
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

Report evaluate_at(std::int64_t length, const EvalCommand& options, nn::Model& model,
                   const Documents& documents) {
  EvaluateOptions how = evaluate_options(options, model->config());
  how.windows.length = length;
  how.windows.stride = options.stride > 0 ? options.stride : std::max<std::int64_t>(1, length / 2);
  const std::int64_t total = WindowReader(documents, how.windows).predictions();
  Progress progress(concat("windows of ", grouped(length)), total);
  how.progress = [&](std::int64_t done, std::int64_t) {
    if (interrupted()) throw EvalStopped();
    // The last window may bring more than was asked for.
    progress.update(done, concat(grouped(std::min(done, total)), " of ", grouped(total), " tokens"));
  };
  return evaluate(model, documents, how);
}

// Pairs of layers for which no query counts have NaN for their mean over nothing.
bool is_finite(const Agreement& agreement) {
  for (std::size_t a = 0; a < agreement.queries.size(); ++a) {
    for (std::size_t b = 0; b < agreement.queries.size(); ++b) {
      const double selections = agreement.selections[a][b], oracles = agreement.oracles[a][b];
      if (agreement.queries[a][b] > 0 && !std::isfinite(selections + oracles)) return false;
    }
  }
  return true;
}

// A library's caller sees NaN in the figures; a program that prints them has to fail.
void check_finite(const Report& report) {
  if ((!report.perplexity || std::isfinite(report.perplexity->nats)) &&
      (!report.sinks || std::isfinite(report.sinks->largest())) &&
      (!report.selection || std::isfinite(report.selection->kept_mass_mean())) &&
      (!report.agreement || is_finite(*report.agreement))) {
    return;
  }
  throw Error(
      concat("windows of ", report.length,
             ": expected finite numbers, got NaN or infinity from a model whose weights are finite: they "
             "grew too large for its type"));
}

// Refuses what cannot fit, before the weights are read.
void check_memory(const EvalCommand& options, const nn::ModelConfig& config, const Documents& documents,
                  const std::vector<std::int64_t>& lengths) {
  EvaluateOptions how = evaluate_options(options, config);
  how.windows.length = lengths.back();
  const torch::Device device = nn::device_by_name(options.device);
  check_eval_memory({.folder = options.model.folder,
                     .config = config,
                     .dtype = chosen_dtype(options, device),
                     .device = device},
                    documents, how);
}

struct Subject {
  nn::Model model{nullptr};
  std::string system, device, dtype;
  std::int64_t parameters = 0;
};

Subject load_subject(const EvalCommand& options) {
  const nn::ModelConfig config = chosen_config(options.model);
  const torch::Device device = nn::device_by_name(options.device);
  const nn::LoadOptions how{.config = config,
                            .missing = nn::MissingParts::refuse,
                            .dtype = chosen_dtype(options, device),
                            .device = device};
  Subject subject;
  subject.model = nn::load_model(options.model.folder, how).model;
  for (const auto& weight : subject.model->named_parameters()) {
    if (weight.value().isfinite().all().item<bool>()) continue;
    bad_file(options.model.folder, "finite weights", concat("NaN or infinity in ", weight.key()));
  }
  const auto system = nn::system_of(config.attention);
  subject.system = system ? nn::name_of(*system) : "an ablation";
  subject.device = device.str();
  subject.dtype =
      name_of(binding::dtype_of("eval", "model", subject.model->output_weight(), /*allow_float32=*/true));
  subject.parameters = nn::count_model(config).total();
  return subject;
}

OrderedJson eval_json(const EvalCommand& options, const Subject& subject, const Documents& documents,
                      const std::vector<Report>& reports) {
  OrderedJson json;
  json["model"] = options.model.folder;
  json["system"] = subject.system;
  json["parameters"] = subject.parameters;
  json["device"] = subject.device;
  json["dtype"] = subject.dtype;
  json["data"] = documents.name();
  json["documents"] = documents.count();
  for (const Report& report : reports) json["reports"].push_back(eval::to_json(report));
  return json;
}

void print_heading(const EvalCommand& options, const Subject& subject, const Documents& documents,
                   const std::vector<std::int64_t>& lengths, std::ostream& out) {
  out << concat("model   ", options.model.folder, ": ", subject.system, ", ", grouped(subject.parameters),
                " parameters, ", subject.dtype, " on ", subject.device, "\n", "data    ", documents.name(),
                ": ", grouped(documents.count()), documents.count() == 1 ? " document" : " documents",
                options.join ? ", joined" : "", "\n");
  const nn::ModelConfig& config = subject.model->config();
  if (lengths.back() > config.max_positions) {
    const std::int64_t factor = (lengths.back() + config.max_positions - 1) / config.max_positions;
    out << concat("note    ", grouped(lengths.back()), " tokens are beyond the ",
                  grouped(config.max_positions), " the model is meant for; --extend ", factor,
                  " would stretch its positions\n");
  }
  if (options.device == "auto" && subject.device == "cpu" && torch::cuda::is_available()) {
    out << "note    there is a GPU, but this build has no CUDA operators: evaluating on the CPU\n";
  }
  out << std::endl;
}

int evaluate_model(EvalCommand& options) {
  check_eval(options);
  options.model.folder = model_folder(options.model.folder);
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  if (!options.plots.empty()) check_writable_folder(options.plots);
  watch_interrupts();
  tell_note(binding::use_threads(options.threads));
  const std::unique_ptr<Documents> documents = open_documents(options);
  // Refuses before the weights are read.
  const nn::ModelConfig config = chosen_config(options.model);
  evaluate_options(options, config);
  const std::vector<std::int64_t> lengths = lengths_of(options, config);
  check_memory(options, config, *documents, lengths);
  Subject subject = load_subject(options);
  const bool tables = options.json != "-";
  if (tables) print_heading(options, subject, *documents, lengths, std::cout);
  std::vector<Report> reports;
  try {
    for (const std::int64_t length : lengths) {
      reports.push_back(evaluate_at(length, options, subject.model, *documents));
      check_finite(reports.back());
    }
  } catch (const EvalStopped&) {
    std::cerr << "gsa eval: interrupted; nothing was written\n";
    return kInterrupted;
  }
  if (tables) print_reports(reports, std::cout);
  if (!options.json.empty()) {
    const std::string text = eval_json(options, subject, *documents, reports).dump(2) + "\n";
    tables ? write_file(options.json, text) : void(std::cout << text);
  }
  if (!options.plots.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.plots, error);
    if (error) bad_file(options.plots, "a folder that can be made", error.message());
    const std::string caption =
        concat(options.model.folder, " (", subject.system, ") on ", documents->name());
    const std::vector<NamedChart> charts = charts_of(reports, caption);
    const std::filesystem::path folder = options.plots;
    for (const NamedChart& chart : charts) write_file(folder / (chart.name + ".svg"), chart.svg);
    write_file(folder / "index.html", index_page(charts, caption));
    if (tables) {
      std::cout << concat(charts.size(), " plots in ", options.plots, ", all of them on ",
                          (folder / "index.html").string(), "\n");
    }
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("eval", "perplexity, attention sinks and selection quality of a model");
  command->footer(kEvalLesson);
  auto options = std::make_shared<EvalCommand>();
  command->add_option("folder", options->model.folder, "a model folder (config.json and model.safetensors)")
      ->required();
  const char* kText = "What to read";
  command->add_option("--data", options->data, "a dataset's folder (gsa tokenize makes one)")->group(kText);
  command->add_option("--text", options->text, "a text file, through the tokenizer in the model's folder")
      ->group(kText);
  command->add_flag("--join", options->join, "read the dataset's documents concatenated, for long windows")
      ->group(kText);
  command
      ->add_flag("--ignore-tokenizer", options->ignore_tokenizer,
                 "take the dataset's ids for the model's, whatever tokenizer stands in its folder")
      ->group(kText);
  command->add_option("--tokens", options->tokens, "stop after about this many predictions; default: all")
      ->check(positive_whole())
      ->group(kText);
  const char* kMeasures = "What to measure";
  command
      ->add_option("--measure", options->measures,
                   "perplexity, sinks, selection, agreement; several between commas. Default: all that the "
                   "model has, but for agreement")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kMeasures);
  command
      ->add_option(
          "--length", options->lengths,
          concat("tokens of a window; several between commas. Default: what the model is meant for, at "
                 "most ",
                 kUsualLength))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(positive_whole())
      ->group(kMeasures);
  command->add_option("--stride", options->stride, "tokens between windows; default: half of the length")
      ->check(positive_whole())
      ->group(kMeasures);
  command
      ->add_option("--phase", options->phase,
                   "attention as in training: dense, warmup or sparse; default: sparse where the model is")
      ->group(kMeasures);
  command
      ->add_option("--oracle-queries", options->oracle_queries,
                   concat("queries of a window that are measured beside the oracle, spread evenly; 0: all. "
                          "Default: ",
                          OracleOptions().queries))
      ->check(whole_in(0, 1ull << 40))
      ->group(kMeasures);
  command
      ->add_option(
          "--agreement-queries", options->agreement_queries,
          concat("queries of a window at which layers are compared, spread evenly; 0: all. Default: ",
                 AgreementOptions().queries))
      ->check(whole_in(0, 1ull << 40))
      ->group(kMeasures);
  const char* kChanges = "Changes to the model";
  command->add_option("--k", options->model.k, "keys a query attends to (k_base)")->group(kChanges);
  command->add_option("--k-min", options->model.k_min, "lower bound of k")->group(kChanges);
  command->add_option("--k-max", options->model.k_max, "upper bound of k")->group(kChanges);
  command
      ->add_option("--budget", options->model.budget,
                   "how k follows the scores' variance: inverse, proportional or fixed")
      ->group(kChanges);
  add_extend_option(*command, options->model.extend, kChanges);
  const char* kHow = "How to run";
  command->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str()->group(kHow);
  command
      ->add_option("--dtype", options->dtype,
                   "float32, bfloat16 or float16; auto: as stored, on a GPU bfloat16")
      ->capture_default_str()
      ->group(kHow);
  command->add_option("--batch-tokens", options->batch_tokens, "windows that fit in this are read together")
      ->check(positive_whole())
      ->capture_default_str()
      ->group(kHow);
  command->add_option("--threads", options->threads, "CPU threads; default: one a core, which is the most")
      ->check(whole_in(1, binding::kMaxThreads))
      ->group(kHow);
  const char* kOutput = "Output";
  command->add_option("--json", options->json, "all figures into this file; - prints them instead of tables")
      ->group(kOutput);
  command
      ->add_option("--plots", options->plots,
                   "charts as SVG files into this folder, and index.html, which shows them")
      ->group(kOutput);
  command->callback([&run, options] { run = [options] { return evaluate_model(*options); }; });
}

}  // namespace gsa::cli
