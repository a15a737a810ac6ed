// gsa ruler: the thirteen tasks of RULER at any lengths.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "cli/token_counter.h"
#include "core/crc32c.h"
#include "core/file.h"
#include "core/folder_lock.h"
#include "core/memory.h"
#include "core/usage_error.h"
#include "infer/generate_shared.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "ruler/report.h"
#include "ruler/run.h"
#include "torch/parallel.h"
#include "torch/tensor_checks.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

struct RulerOptions : EngineChoices {
  std::string folder;
  std::vector<std::string> tasks;
  std::vector<std::int64_t> lengths;
  std::int64_t samples = 100;
  std::uint64_t seed = 42;
  std::string essays, haystack, squad, hotpotqa;
  std::optional<double> extend;
  std::string output = "ruler", write, score, counter;
};

constexpr std::int64_t kShortestUsual = 4096, kLongestUsual = 131'072;  // of the usual lengths

constexpr const char* kRulerModel = "The model and its cache";
constexpr const char* kRulerWhat = "What to ask";
constexpr const char* kRulerData = "Data of yours";

constexpr const char* kRulerLesson = R"(
Tasks: niah_single_1 2 3, niah_multikey_1 2 3, niah_multivalue, niah_multiquery (needles in a haystack), vt (variable
tracking), cwe and fwe (common and frequent words), qa_1 (SQuAD), qa_2 (HotpotQA). Prompts have the words of the public
definition and are made as long as the model's tokenizer lets them be: prompt and answer together have at most --lengths
tokens. Scores are string_match_all and, for questions, string_match_part. Text is generated greedily.

A task whose data is not given, or that cannot be as short as a length, is named and never scored. --haystack takes any
text for the needle tasks that hide theirs in essays; their scores carry a mark, since they compare with nothing published.

Into --output go a page (index.html), the heat map (ruler.svg), ruler.json, and the answer to every sample (samples/).
What is there already is not asked again: a run that was cut off goes on, and more --lengths, --tasks or --samples may be
added later. Answers are kept by batches of up to 64: Ctrl-C loses the one under way; the exit status is then 75.

Models of others answer the same prompts: --write makes them as files, --score scores what was written beside them.
`python -m gated_sparse_attention.ruler` does that for any model of transformers, and counts tokens with its tokenizer.

Examples
  gsa ruler runs/book/latest --lengths 4096,8192 --samples 20 --essays essays.txt --squad dev-v2.0.json
  gsa ruler model --tasks niah_single_1,vt --lengths 16384 --extend 4 --output ruler-16k
  gsa ruler model --haystack novel.txt --phase dense --output ruler-dense
  gsa ruler tokenizer.model --write prompts --lengths 4096         then predictions/*.jsonl beside prompts/, and
  gsa ruler --score prompts
)";

// ---- what was asked for

void check_ruler(const RulerOptions& options, const CLI::App& command) {
  const int modes = static_cast<int>(!options.write.empty()) + static_cast<int>(!options.score.empty()) +
                    static_cast<int>(command.count("--output") > 0);
  if (modes > 1) throw UsageError("expected one of --output, --write and --score, got more");
  const auto refuse = [&](const char* group, const std::string& mode) {
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_group() == group && option->count() > 0) {
        throw UsageError(
            concat(option->get_name(), ": expected no ", mode, " beside it, which does without, got both"));
      }
    }
  };
  if (!options.counter.empty() && options.write.empty()) {
    throw UsageError("--counter: expected --write, whose prompts it measures, got a run without it");
  }
  if (!options.score.empty()) {
    for (const char* group : {kRulerModel, kRulerWhat, kRulerData}) refuse(group, "--score");
    if (!options.folder.empty())
      throw UsageError(concat("--score: expected no model beside it, got '", options.folder, "'"));
    return;
  }
  if (!options.write.empty()) refuse(kRulerModel, "--write");
  if (options.folder.empty() == options.counter.empty()) {
    throw UsageError(options.folder.empty() ? "expected a model's folder, got none"
                                            : "--counter: expected no model's folder beside it, got both");
  }
  if (!options.essays.empty() && !options.haystack.empty()) {
    throw UsageError("expected --essays or --haystack, got both");
  }
}

ruler::RunOptions run_options(const RulerOptions& options, std::vector<std::int64_t> lengths,
                              const Parallel& parallel = serial()) {
  ruler::RunOptions run{.tasks = {},
                        .lengths = std::move(lengths),
                        .samples = options.samples,
                        .seed = options.seed,
                        .parallel = parallel};
  for (const ruler::Task& task : ruler::all_tasks()) {
    const auto asked = std::find(options.tasks.begin(), options.tasks.end(), task.name);
    if (options.tasks.empty() || asked != options.tasks.end()) run.tasks.push_back(&task);
  }
  for (const std::string& name : options.tasks)
    checking_option("--tasks", [&] { ruler::task_by_name(name); });
  std::sort(run.lengths.begin(), run.lengths.end());
  run.lengths.erase(std::unique(run.lengths.begin(), run.lengths.end()), run.lengths.end());
  return run;
}

// RULER's own lengths as far as the model is meant for them, or all that it is meant for.
std::vector<std::int64_t> chosen_lengths(const RulerOptions& options, const nn::ModelConfig& config) {
  if (options.lengths.empty()) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t length = kShortestUsual; length <= std::min(kLongestUsual, config.max_positions);
         length *= 2) {
      lengths.push_back(length);
    }
    if (lengths.empty()) lengths.push_back(config.max_positions);
    return lengths;
  }
  const std::int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  if (longest > config.max_positions && options.extend != 1) {
    const std::int64_t trained = config.trained_length(), factor = (longest + trained - 1) / trained;
    throw UsageError(concat("--lengths: expected at most ", grouped(config.max_positions),
                            " tokens, what the model is meant for, got ", grouped(longest), "; --extend ",
                            factor, " extends it to ", grouped(factor * trained),
                            ", --extend 1 goes on without an extension"));
  }
  return options.lengths;
}

ruler::Material read_material(const RulerOptions& options, const std::vector<std::int64_t>& lengths) {
  ruler::Material material;
  const std::string& text = options.essays.empty() ? options.haystack : options.essays;
  if (!text.empty())
    material.essays = ruler::Essays::read(text, *std::max_element(lengths.begin(), lengths.end()));
  if (!options.squad.empty()) material.squad = ruler::QuestionSet::read_squad(options.squad);
  if (!options.hotpotqa.empty()) material.hotpotqa = ruler::QuestionSet::read_hotpotqa(options.hotpotqa);
  return material;
}

// ---- what a run is of

std::string hex(std::uint32_t checksum) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", checksum);
  return text;
}

std::uint32_t checksum_of_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files = {folder / "config.json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::uint32_t sum = 0;
  for (const auto& file : files) sum = crc32c(MappedFile(file).bytes(), sum);
  return sum;
}

// Text that tokenizers cut differently: words, digits, accents, another script, spaces.
constexpr const char* kTokenizerProbe =
    "Unbelievably, 1234567 brave-lamps: na\u00efve \u6771\u4eac\n\n  e4f5-0a";

// Without a model: who will answer prompts that are only written is not known.
OrderedJson run_json(const RulerOptions& options, const ruler::Material& material,
                     const std::string& tokenizer) {
  OrderedJson run;
  run["tokenizer"] = tokenizer;
  run["seed"] = options.seed;
  const auto add = [&](const char* key, const std::string& name, std::uint32_t checksum) {
    run[key] = {{"file", name}, {"checksum", hex(checksum)}};
  };
  if (material.essays) {
    add("haystack", material.essays->name(), material.essays->checksum());
    run["haystack"]["kind"] = options.essays.empty() ? "own" : "essays";
  }
  if (material.squad) add("squad", material.squad->name, material.squad->checksum);
  if (material.hotpotqa) add("hotpotqa", material.hotpotqa->name, material.hotpotqa->checksum);
  return run;
}

// ---- the model

class EngineSubject {
 public:
  EngineSubject(nn::Model model, const infer::EngineOptions& options, const data::Tokenizer& tokenizer,
                std::int64_t longest)
      : tokenizer_(tokenizer), engine_(std::move(model), options) {
    if (infer::fitting_sequences(engine_, longest) == 0) {  // before hours of shorter ones
      throw Error(concat("the cache has room for ", grouped(engine_.cache().room()), " tokens (",
                         format_bytes(engine_.cache_use().budget), "), and --lengths asks for ",
                         grouped(longest),
                         "; --cache-limit raises it, --dtype bfloat16 halves what 32 bits take"));
    }
  }

  ruler::Subject subject() {
    // More at once saves little, and what is answered goes to the disk by batches.
    const std::int64_t max_batch = engine_.options().device.is_cpu() ? 32 : 64;
    return {.batch =
                [this, max_batch](std::int64_t length) {
                  return std::min(max_batch, infer::fitting_sequences(engine_, length));
                },
            .answer = [this](const ruler::Task& task, std::span<const ruler::Sample> samples,
                             const auto& progress) { return answer(task, samples, progress); }};
  }

 private:
  std::vector<std::string> answer(const ruler::Task& task, std::span<const ruler::Sample> samples,
                                  const std::function<void(double)>& progress) {
    std::vector<std::vector<std::int64_t>> prompts;
    for (const ruler::Sample& sample : samples)
      prompts.push_back(infer::first_tokens(tokenizer_, sample.prompt));
    const infer::GenerateOptions greedy{.sampling = {.temperature = 0}, .max_tokens = task.new_tokens};
    const infer::SharedEvents events{.progress =
                                         [&](std::int64_t read, std::int64_t total) {
                                           progress(static_cast<double>(read) / static_cast<double>(total));
                                         },
                                     .cancelled = interrupted};
    const infer::GenerateResult result = infer::generate_shared(engine_, tokenizer_, prompts, greedy, events);
    std::vector<std::string> texts;
    for (const infer::GeneratedText& text : result.texts) {
      if (text.ending == infer::Ending::cancelled) return {};
      texts.push_back(text.text);
    }
    return texts;
  }

  const data::Tokenizer& tokenizer_;
  infer::Engine engine_;
};

// ---- output

std::string short_score(double score) { return std::isfinite(score) ? fixed(score, 1) : symbol("–", "-"); }

void print_report(const ruler::Report& report, std::ostream& out) {
  std::vector<std::string> heading = {"task"};
  for (const std::int64_t length : report.lengths()) heading.push_back(grouped(length));
  Table table(heading);
  table.line();
  for (const ruler::Task* task : report.tasks()) {
    std::vector<std::string> row = {ruler::label_of(*task, report.run)};
    for (const std::int64_t length : report.lengths()) {
      const ruler::Cell* cell = report.cell(*task, length);
      row.push_back(short_score(cell != nullptr ? cell->score() : NAN));
    }
    table.row(row);
  }
  table.line();
  std::vector<std::string> means = {"mean"}, counts = {"of tasks"};
  for (const std::int64_t length : report.lengths()) {
    means.push_back(short_score(report.mean(length)));
    counts.push_back(concat(report.scored(length), " of ", ruler::all_tasks().size()));
  }
  table.row(means);
  table.row(counts);
  table.print(out);
  if (const std::string note = ruler::footnote(report); !note.empty()) out << "\n" << note << "\n";
  // One line for what all lengths have in common.
  std::vector<std::string> lines;
  for (const ruler::Cell& cell : report.cells) {
    if (cell.skipped.empty()) continue;
    const bool everywhere = std::all_of(
        report.cells.begin(), report.cells.end(),
        [&](const ruler::Cell& other) { return other.task != cell.task || other.skipped == cell.skipped; });
    const std::string line =
        concat("skipped  ", cell.task->name, everywhere ? "" : concat(" at ", grouped(cell.length)), ": ",
               cell.skipped);
    if (lines.empty() || lines.back() != line) lines.push_back(line);
  }
  if (!lines.empty()) out << "\n";
  for (const std::string& line : lines) out << line << "\n";
}

void write_report(const ruler::Report& report, const std::filesystem::path& folder) {
  ruler::write_text(folder / "ruler.json", ruler::to_json(report).dump(2) + "\n");
  const std::string svg = ruler::heat_map(report, /*page=*/false);
  if (svg.empty()) {
    std::filesystem::remove(folder / "ruler.svg");  // of earlier results
  } else {
    ruler::write_text(folder / "ruler.svg", svg);
  }
  ruler::write_text(folder / "index.html", ruler::html_page(report));
}

constexpr double kRulerParts = 1e6;  // of the whole work, for the progress line

ruler::RunEvents run_events(std::optional<Progress>& progress) {
  ruler::RunEvents events;
  events.stopped = interrupted;
  events.progress = [&](double done, double total, const std::string& detail) {
    if (!progress) progress.emplace("ruler", static_cast<std::int64_t>(kRulerParts));
    progress->update(std::llround(kRulerParts * done / std::max(total, 1.0)), detail);
  };
  return events;
}

// ---- the three things that it does

int score_folder(const RulerOptions& options) {
  const std::filesystem::path folder = options.score;
  const ruler::Report report{.run = ruler::read_run(folder), .cells = ruler::score_predictions(folder)};
  if (report.cells.empty()) bad_file(folder.string(), "prompts that gsa ruler --write has made", "none");
  print_report(report, std::cout);
  write_report(report, folder);
  std::cout << "\npage     " << (folder / "index.html").string() << "\n";
  return 0;
}

int write_prompts_of(const RulerOptions& options) {
  check_writable_folder(options.write);
  const ruler::RunOptions run = run_options(
      options, options.lengths.empty() ? std::vector<std::int64_t>{kShortestUsual} : options.lengths);
  const ruler::Material material = read_material(options, run.lengths);
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::unique_ptr<TokenCounter> counter;
  ruler::CountTokens count;
  if (options.counter.empty()) {
    tokenizer = data::load_tokenizer(options.folder);
    count = [&](const std::string& text) {
      return static_cast<std::int64_t>(infer::first_tokens(*tokenizer, text).size());
    };
  } else {
    counter = std::make_unique<TokenCounter>(options.counter);
    count = [&](const std::string& text) { return counter->count(text); };
  }
  const FolderLock lock(options.write, "one that another gsa ruler writes to");
  OrderedJson what = run_json(options, material, tokenizer ? hex(tokenizer->fingerprint()) : options.counter);
  // A command may come to count by another tokenizer.
  if (counter) what["probe_tokens"] = count(kTokenizerProbe);
  ruler::check_run(options.write, what, "--write");
  std::optional<Progress> progress;
  const ruler::RunResult result =
      ruler::write_all_prompts(run, material, count, options.write, run_events(progress));
  progress.reset();
  if (!result.complete) {
    std::cerr << "gsa ruler: interrupted; prompts that are whole stay\n";
    return kInterrupted;
  }
  for (const ruler::Cell& cell : result.cells) {
    if (cell.skipped.empty()) continue;
    std::cout << "skipped  " << cell.task->name << " at " << grouped(cell.length) << ": " << cell.skipped
              << "\n";
  }
  std::cout << concat(grouped(result.answered), " prompts written into ", options.write,
                      "/prompts; answers go into predictions/ under the same names, a line {\"index\": 0, "
                      "\"prediction\": \"...\"} each, then: gsa ruler --score ",
                      options.write, "\n");
  return 0;
}

int ask_model(RulerOptions& options) {
  options.folder = model_folder(options.folder);
  check_writable_folder(options.output);
  tell_note(binding::use_threads(options.threads));
  const auto tokenizer = data::load_tokenizer(options.folder);
  nn::ModelConfig config = nn::load_config(options.folder);
  if (options.extend) extend_by(config, *options.extend);
  const binding::TorchParallel parallel;
  const ruler::RunOptions run = run_options(options, chosen_lengths(options, config), parallel);
  const ruler::Material material = read_material(options, run.lengths);
  const infer::EngineOptions engine =
      engine_options(options, config, binding::scalar_type(nn::stored_dtype(options.folder)));

  const std::filesystem::path folder = options.output;
  const FolderLock lock(folder, "one that another gsa ruler writes to");
  OrderedJson what = {{"model", options.folder}};
  what.update(run_json(options, material, hex(tokenizer->fingerprint())));
  what["weights"] = hex(checksum_of_files(options.folder));
  what["dtype"] = name_of(nn::dtype_of(*engine.dtype));  // what auto came to: it differs by machine
  what["phase"] = options.phase.empty() ? "as the model is" : options.phase;
  what["extend"] = config.attention.rope.yarn.factor;  // the model's own where none was asked for
  what["index_bits"] = options.index_bits ? OrderedJson(*options.index_bits) : OrderedJson("as the cache");
  ruler::check_run(folder, what, "--output");

  std::optional<EngineSubject> subject;
  const auto open = [&] {
    subject.emplace(nn::load_model(options.folder, {.config = config}).model, engine, *tokenizer,
                    run.lengths.back());
    return subject->subject();
  };
  std::optional<Progress> progress;
  ruler::RunEvents events = run_events(progress);
  events.finished = [&](const ruler::Cell& cell) {
    const std::string line =
        concat(cell.task->name, " at ", grouped(cell.length), ": ", fixed(cell.score(), 1));
    progress ? progress->line(line) : void(std::cout << line << std::endl);
  };
  const ruler::CountTokens count = [&](const std::string& text) {
    return static_cast<std::int64_t>(infer::first_tokens(*tokenizer, text).size());
  };
  const ruler::RunResult result = ruler::run(run, material, count, open, folder, events);
  progress.reset();

  // The folder's report, not this command's: earlier ones may have asked for other tasks and lengths, with data that
  // this one does without.
  ruler::Report report{.run = ruler::read_run(folder), .cells = result.cells};
  report.run["model"] = what["model"];
  add_answered(report.cells, folder);
  if (result.answered > 0) std::cout << "\n";
  print_report(report, std::cout);
  write_report(report, folder);
  const bool any = std::any_of(result.cells.begin(), result.cells.end(),
                               [](const ruler::Cell& cell) { return cell.skipped.empty(); });
  const std::string done = result.answered > 0 ? concat(grouped(result.answered), " samples answered")
                           : !result.complete  ? "no sample answered"
                           : any               ? "nothing to do: every sample is answered already"
                                               : "nothing was asked: every task is skipped";
  std::cout << concat("\n", done, "; page ", (folder / "index.html").string(), "\n");
  if (result.complete) return 0;
  std::cerr << "gsa ruler: interrupted; the same command goes on from here\n";
  return kInterrupted;
}

}  // namespace

void add_ruler(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("ruler", "the 13 long-context tasks of RULER at any lengths");
  command->footer(kRulerLesson);
  auto options = std::make_shared<RulerOptions>();
  command->add_option("folder", options->folder,
                      "a model folder, with its tokenizer; with --write a tokenizer.model, a tokenizer.json "
                      "or the word bytes will do");
  command->add_option("--tasks", options->tasks, "names between commas; default: all 13")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kRulerWhat);
  command
      ->add_option(
          "--lengths", options->lengths,
          "tokens of prompt and answer, between commas; default: 4096, 8192, ... 131072 as far as the model "
          "is meant for them")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(positive_whole())
      ->group(kRulerWhat);
  command
      ->add_option("--samples", options->samples, "of each task at each length; published figures have 500")
      ->check(positive_whole())
      ->capture_default_str()
      ->group(kRulerWhat);
  command->add_option("--seed", options->seed, "of all draws")
      ->check(whole_in(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str()
      ->group(kRulerWhat);
  command
      ->add_option("--essays", options->essays,
                   "Paul Graham's essays: a text file, a folder of *.txt, or RULER's JSON file")
      ->group(kRulerData);
  command->add_option("--haystack", options->haystack, "any text in their place; scores carry a mark")
      ->group(kRulerData);
  command->add_option("--squad", options->squad, "SQuAD's dev-v2.0.json, for qa_1")->group(kRulerData);
  command->add_option("--hotpotqa", options->hotpotqa, "HotpotQA's hotpot_dev_distractor_v1.json, for qa_2")
      ->group(kRulerData);
  add_extend_option(*command, options->extend, kRulerModel);
  add_engine_options(*command, *options, kRulerModel);
  const char* kOutput = "Output";
  command->add_option("--output", options->output, "a folder for results; one that is there is gone on with")
      ->capture_default_str()
      ->group(kOutput);
  command->add_option("--write", options->write, "only write prompts into this folder, for models of others")
      ->group(kOutput);
  command
      ->add_option("--counter", options->counter,
                   "with --write, in place of a model: a command that reads JSON strings, a line each, and "
                   "answers each "
                   "with a line, its number of tokens")
      ->group(kOutput);
  command->add_option("--score", options->score, "score the predictions/ that were put into such a folder")
      ->group(kOutput);
  command->callback([&run, options, command] {
    run = [options, command] {
      check_ruler(*options, *command);
      watch_interrupts();
      if (!options->score.empty()) return score_folder(*options);
      return options->write.empty() ? ask_model(*options) : write_prompts_of(*options);
    };
  });
}

}  // namespace gsa::cli
