// gsa generate: text from a model folder.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/generate_output.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/usage_error.h"
#include "infer/generate.h"
#include "kernels/decode/decode.h"
#include "model/cost.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

using namespace gsa::infer;

struct GenerateCommand : EngineChoices {
  std::string folder, source;
  std::vector<std::string> prompts, files;
  std::optional<double> extend;
  std::string load_cache, save_cache;
  GenerateOptions generate;
  bool echo = false, json = false, stats = false;
  std::int64_t repeat = 0;  // 0: the one pass that shows the text is the one that is timed
};

constexpr std::int64_t kMaxPromptBytes = std::int64_t{1} << 32;

constexpr const char* kGenerateLesson = R"(
Prompts are continued, all of them together as one batch of at most 2,048 texts (prompts times --samples). A text ends
where the model ends it, before a stop string, or after --max-tokens. The seed decides: the same prompt, options and
seed give the same text, whatever else is in the batch.

Sampling, in this order: --repetition-penalty, --temperature (0: always the most likely token), --top-k, --top-p,
--min-p.

Ctrl-C ends the texts where they are; what was generated stays, --save-cache is written if the prompt has been read to
its end, and the exit status is 75. A second Ctrl-C ends the program at once. SIGTERM, SIGHUP (a closed terminal),
SIGXCPU and SIGUSR1 do the same.

Examples
  gsa generate runs/book/latest --prompt "The keeper of the lamp"
  gsa generate model --prompt-file report.txt --stats --max-tokens 400        a bar while a long prompt is read
  head -c 100000 book.txt | gsa generate model - --extend 8                   beyond the trained length
  gsa generate model --prompt "Once" --samples 3 --temperature 0.9 --top-p 0.95 --seed 7
  gsa generate model --prompt "Q: 2+2?\nA:" --prompt "Q: 3+3?\nA:" --stop "\n" --json --logprobs 3

  gsa generate model --prompt-file manual.txt --max-tokens 0 --save-cache manual.cache    read once,
  gsa generate model --load-cache manual.cache --prompt "How is it cleaned?"              ask often
)";

// ---- prompts

std::string without_last_line_end(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// Thrown where the user wants to stop before there is a text.
struct GenerateStopped {};

std::string standard_input() {
  watch_interrupts();
  std::string text;
  std::vector<char> part(1 << 16);
  for (;;) {
    const ssize_t got = interrupted() ? 0 : ::read(STDIN_FILENO, part.data(), part.size());
    if (interrupted()) throw GenerateStopped();  // asked again: Ctrl-C may have ended the writer as well
    if (got == 0) return text;
    if (got > 0) {
      text.append(part.data(), static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      bad_file("standard input", "a text that can be read", std::strerror(errno));
    }
  }
}

// \n and \t as they are written on a command line.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const char meant = next == 'n' ? '\n' : next == 't' ? '\t' : next == '\\' ? '\\' : '\0';
    result += meant != '\0' ? meant : text[i];
    if (meant != '\0') ++i;
  }
  return result;
}

std::vector<std::string> read_prompts(const GenerateCommand& options) {
  std::vector<std::string> prompts;
  for (const std::string& prompt : options.prompts) prompts.push_back(unescaped(prompt));
  for (const std::string& file : options.files) {
    prompts.push_back(without_last_line_end(read_file(file, kMaxPromptBytes)));
  }
  if (!options.source.empty() && options.source != "-") {
    throw UsageError(concat("expected - (standard input) behind the model's folder, got '", options.source,
                            "'; a text goes behind --prompt, a file behind --prompt-file"));
  }
  if (options.source == "-") prompts.push_back(without_last_line_end(standard_input()));
  if (prompts.empty()) {
    if (options.load_cache.empty()) {
      throw UsageError(
          "no prompt: --prompt TEXT, --prompt-file FILE, or - for standard input (--prompt \"\" begins a "
          "text from nothing)");
    }
    prompts.emplace_back();  // goes on behind the cache
  }
  return prompts;
}

// ---- lengths

// The model's configuration with the extension that was asked for.
nn::ModelConfig extended_config(const GenerateCommand& options) {
  nn::ModelConfig config = nn::load_config(options.folder);
  if (options.extend) extend_by(config, *options.extend);
  return config;
}

// New tokens that fit behind the longest prompt, at most as many as asked for. A prompt that the model is not
// meant for is refused, unless --extend 1 says that no extension is wanted.
std::int64_t fitting_tokens(const GenerateCommand& options, const nn::ModelConfig& config,
                            std::int64_t prompt) {
  const std::int64_t wanted = options.generate.max_tokens, meant = config.max_positions;
  if (prompt + wanted <= meant || options.extend == 1) return wanted;
  const std::int64_t trained = config.trained_length(), factor = (prompt + wanted + trained - 1) / trained;
  const std::string advice =
      factor * trained <= kMaxDecodeLength
          ? concat("--extend ", factor, " extends it to ", grouped(factor * trained))
          : concat("--extend extends it to at most ", grouped(kMaxDecodeLength), ", with fewer --max-tokens");
  if (prompt >= meant) {
    throw Error(concat("the prompt has ", grouped(prompt), " tokens; the model was trained at ",
                       grouped(config.trained_length()),
                       meant == config.trained_length() ? "" : concat(" and is extended to ", grouped(meant)),
                       ". ", advice, "; --extend 1 goes on without an extension"));
  }
  std::cerr << "note: texts end at " << grouped(meant) << " tokens, the prompt's " << grouped(prompt)
            << " included: the model is not meant for more (" << advice << ")\n";
  return meant - prompt;
}

// ---- the prompts' sequences

// A prompt's sequence and the tokens that go behind it.
struct Input {
  Sequence sequence;
  std::vector<std::int64_t> tokens;
  std::int64_t length() const { return sequence.length() + static_cast<std::int64_t>(tokens.size()); }
};

Input make_input(Engine& engine, const data::Tokenizer& tokenizer, const Sequence* cached,
                 const std::string& prompt) {
  if (cached == nullptr || cached->length() == 0) return {engine.start(), first_tokens(tokenizer, prompt)};
  std::vector<std::int32_t> ids;
  tokenizer.encode(prompt, ids);
  if (!ids.empty()) return {cached->fork(), {ids.begin(), ids.end()}};
  // Nothing new: the last token is read once more for what follows it.
  return {cached->fork(cached->length() - 1), {cached->tokens().back()}};
}

// How much of the work of reading the prompts is done. Late tokens see more before them and cost more: by
// tokens alone, the time left of a long prompt would grow while it is read.
class PrefillCost {
 public:
  PrefillCost(const Engine& engine, const std::vector<Input>& inputs) : config_(engine.config()) {
    if (engine.options().phase == nn::Phase::dense) nn::apply(config_, nn::System::standard);
    for (const Input& input : inputs) {
      parts_.push_back({input.sequence.length(), static_cast<std::int64_t>(input.tokens.size())});
      total_ += cost(parts_.back(), parts_.back().tokens);
    }
  }

  // After so many tokens of all prompts, one after another.
  double share(std::int64_t done) const {
    double sum = 0;
    for (const Part& part : parts_) {
      sum += cost(part, std::min(done, part.tokens));
      done -= std::min(done, part.tokens);
    }
    return total_ > 0 ? sum / total_ : 1;
  }

 private:
  struct Part {
    std::int64_t before = 0, tokens = 0;
  };

  double cost(const Part& part, std::int64_t tokens) const {
    return up_to(part.before + tokens) - up_to(part.before);
  }
  double up_to(std::int64_t length) const {
    if (length == 0) return 0;
    const nn::Phase phase = config_.attention.sparse ? nn::Phase::sparse : nn::Phase::dense;
    const nn::Operations work = nn::estimate_cost(config_, {.length = length, .phase = phase}).prefill;
    return work.projections + work.attention + work.indexer;
  }

  nn::ModelConfig config_;
  std::vector<Part> parts_;
  double total_ = 0;
};

// ---- the work

class Generator {
 public:
  explicit Generator(const GenerateCommand& options) : options_(options), prompts_(read_prompts(options)) {}

  int run() {
    tokenizer_ = data::load_tokenizer(options_.folder);
    const nn::ModelConfig config = extended_config(options_);
    check_prompts(config);
    nn::Model model = nn::load_model(options_.folder, {.config = config}).model;
    const at::ScalarType stored = model->output_weight().scalar_type();
    EngineOptions how = engine_options(options_, config, stored);
    how.count_keys = options_.stats;
    Engine engine(std::move(model), how);
    make_inputs(engine);
    std::int64_t longest = 0;
    for (const Input& input : inputs_) longest = std::max(longest, input.length());
    GenerateOptions generate = options_.generate;
    generate.max_tokens = fitting_tokens(options_, config, longest);

    const std::int64_t cached = inputs_.front().sequence.length();
    const GenerateResult result = this->generate(engine, generate);
    const std::vector<GenerateTimes> passes = repeat(engine, generate, cached);
    const bool stopped = interrupted();
    if (stopped) std::cerr << "interrupted; what was generated stays\n";
    if (!options_.save_cache.empty()) save_cache(engine, result.texts.front());
    if (options_.stats && options_.repeat > 0 && passes.empty()) {
      std::cerr << "note: no pass of --repeat was done to its end: there is nothing to show of --stats\n";
    } else if (options_.stats) {
      const GenerateCosts costs{options_.repeat > 0 ? median_of(passes) : result.times, engine.cache_use(),
                                engine.keys_per_query(), engine.weight_bytes(), passes};
      if (options_.json) {
        std::cout << json_line(costs) << std::flush;
      } else {
        std::cerr << '\n' << describe(costs);
      }
    }
    return stopped ? kInterrupted : 0;
  }

 private:
  // Before the weights are read: a prompt that cannot be is refused at once.
  void check_prompts(const nn::ModelConfig& config) const {
    const auto prompts = static_cast<std::int64_t>(prompts_.size());
    const std::int64_t samples = options_.generate.samples;
    if (prompts * samples > kMaxDecodeSequences) {
      throw UsageError(concat("expected at most ", grouped(kMaxDecodeSequences),
                              " texts (prompts times --samples), got ", grouped(prompts * samples), ": ",
                              grouped(prompts), prompts == 1 ? " prompt" : " prompts", " with --samples ",
                              samples));
    }
    if (options_.load_cache.empty()) {
      std::size_t longest = 0;
      for (const std::string& prompt : prompts_) {
        longest = std::max(longest, first_tokens(*tokenizer_, prompt).size());
      }
      if (static_cast<std::int64_t>(longest) >= config.max_positions) {
        fitting_tokens(options_, config, static_cast<std::int64_t>(longest));
      }
    }
    if (!options_.save_cache.empty() && prompts > 1) {
      throw UsageError(concat("--save-cache: expected one prompt, got ", prompts));
    }
    if (!options_.save_cache.empty() && samples > 1) {
      throw UsageError(concat("--save-cache: expected one text, got --samples ", samples));
    }
    if (options_.repeat > 0) check_repeat();
    if (options_.generate.sampling.logprobs && !options_.json) {
      throw UsageError("--logprobs: expected --json beside it, which has a place for them");
    }
    if (options_.echo && options_.json) {
      throw UsageError(
          "--echo: expected no --json beside it, whose lines have no place for the prompt, got both");
    }
    checking_option("", [&] { options_.generate.sampling.validate(); });
    for (const std::string& stop : options_.generate.stops) {
      if (stop.empty()) throw UsageError("--stop: expected a text that ends it, got an empty one");
    }
  }

  void check_repeat() const {
    if (!options_.stats) {
      throw UsageError("--repeat: expected --stats beside it, which shows what is measured");
    }
    if (prompts_.size() > 1) throw UsageError(concat("--repeat: expected one prompt, got ", prompts_.size()));
    if (options_.generate.samples > 1) {
      throw UsageError(concat("--repeat: expected one text, got --samples ", options_.generate.samples));
    }
    if (!options_.save_cache.empty()) {
      throw UsageError("--repeat: expected no --save-cache beside it, whose work is not measured, got both");
    }
  }

  void make_inputs(Engine& engine) {
    std::optional<Sequence> cached;
    if (!options_.load_cache.empty()) cached = engine.load(options_.load_cache);
    for (const std::string& prompt : prompts_) {
      inputs_.push_back(make_input(engine, *tokenizer_, cached ? &*cached : nullptr, prompt));
    }
  }

  std::vector<std::string> titles() const {
    const std::int64_t samples = options_.generate.samples;
    std::vector<std::string> titles;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        std::string title;
        if (prompts_.size() > 1) title = concat("prompt ", i + 1, " of ", prompts_.size());
        if (samples > 1) title += concat(title.empty() ? "" : ", ", "sample ", sample + 1, " of ", samples);
        titles.push_back(title);
      }
    }
    return titles;
  }

  GenerateResult generate(Engine& engine, const GenerateOptions& generate) {
    std::vector<Prompt> prompts;
    std::vector<std::string> openings;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      prompts.push_back({&inputs_[i].sequence, inputs_[i].tokens});
      lengths_.push_back(inputs_[i].length());
      total += static_cast<std::int64_t>(inputs_[i].tokens.size());
      openings.insert(openings.end(), static_cast<std::size_t>(generate.samples),
                      options_.echo ? prompts_[i] : "");
    }
    TextOutput output(titles(), openings);
    constexpr std::int64_t kParts = 1'000'000;
    std::optional<Progress> progress(std::in_place, "reading the prompt", kParts);
    const PrefillCost cost(engine, inputs_);
    const auto index = [&](const GeneratedText& text) {
      return text.prompt * static_cast<std::size_t>(generate.samples) + static_cast<std::size_t>(text.sample);
    };
    GenerateEvents events;
    events.prefill = [&](std::int64_t done, std::int64_t all) {
      progress->update(std::llround(static_cast<double>(kParts) * cost.share(done)),
                       concat(grouped(done), " of ", grouped(all), " tokens"));
      if (done == all) progress.reset();
    };
    if (!options_.json) {
      events.text = [&](const GeneratedText& text, const std::string& more) {
        output.text(index(text), more);
      };
    }
    events.finished = [&](const GeneratedText& text) {
      progress.reset();
      if (options_.json) {
        std::cout << json_line(text, lengths_[text.prompt], *tokenizer_) << std::flush;
      } else {
        output.finished(index(text));
      }
    };
    // Where a cache is to be kept, a reader that goes away (`| head`) ends the text, not the program.
    if (!options_.save_cache.empty()) std::signal(SIGPIPE, SIG_IGN);
    events.cancelled = [] { return interrupted() || !std::cout; };
    watch_interrupts();
    try {
      return infer::generate(engine, *tokenizer_, prompts, generate, events);
    } catch (...) {
      progress.reset();
      output.close();
      throw;
    }
  }

  // The same work again, timed and without a word, once the pass that showed the text has paid for what is set up only
  // once. cached: tokens of the sequence before the prompt; all others are forgotten and read again.
  std::vector<GenerateTimes> repeat(Engine& engine, const GenerateOptions& generate, std::int64_t cached) {
    std::vector<GenerateTimes> passes;
    if (options_.repeat == 0) return passes;
    Input& input = inputs_.front();
    GenerateEvents events;
    events.cancelled = [] { return interrupted(); };
    Progress progress("measuring", options_.repeat);
    for (std::int64_t pass = 1; pass <= options_.repeat && !interrupted(); ++pass) {
      progress.update(pass - 1, concat("pass ", pass, " of ", options_.repeat));
      input.sequence.truncate(cached);
      const Prompt prompt{&input.sequence, input.tokens};
      const GenerateTimes times = infer::generate(engine, *tokenizer_, {&prompt, 1}, generate, events).times;
      if (!interrupted()) passes.push_back(times);
    }
    return passes;
  }

  // With the last token of the text, which no step has read yet.
  void save_cache(Engine& engine, const GeneratedText& text) {
    Sequence& sequence = inputs_.front().sequence;
    const std::int64_t missing =
        lengths_.front() + static_cast<std::int64_t>(text.tokens.size()) - sequence.length();
    if (missing > 1) {
      std::cerr << "note: " << options_.save_cache << " is not written: the prompt was not read to its end\n";
      return;
    }
    if (missing == 1) {
      const std::int64_t last = text.tokens.back().id;
      engine.prefill({{&sequence, {&last, 1}}});
    }
    engine.save(sequence, options_.save_cache);
  }

  const GenerateCommand& options_;
  std::vector<std::string> prompts_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<Input> inputs_;
  std::vector<std::int64_t> lengths_;  // of prompts in tokens, with what was cached before them
};

void add_sampling_options(CLI::App& command, GenerateCommand& options) {
  GenerateOptions& generate = options.generate;
  SamplingOptions& sampling = generate.sampling;
  sampling.temperature = 0.8;
  const char* kGroup = "Sampling";
  const auto number = [&](const char* name, auto& value, const std::string& text) {
    return command.add_option(name, value, text)->capture_default_str()->group(kGroup);
  };
  number("--max-tokens,-n", generate.max_tokens, "new tokens of a text at most; 0 only reads the prompt")
      ->check(whole_in(0, kMaxDecodeLength));
  number("--temperature,-t", sampling.temperature, "below 1 surer, above 1 wilder; 0: the most likely token");
  number("--top-k", sampling.top_k, "of the k most likely tokens only; 0: all");
  number("--top-p", sampling.top_p, "of the fewest tokens that have this probability together; 1: all");
  number("--min-p", sampling.min_p, "of tokens at least this share as likely as the most likely one; 0: all");
  number("--repetition-penalty", sampling.repetition_penalty,
         "above 1: tokens already there become less likely");
  number("--seed", sampling.seed, "of all draws")
      ->check(whole_in(0, std::numeric_limits<std::uint64_t>::max()));
  number("--samples", generate.samples,
         concat("texts for each prompt; at most ", kMaxDecodeSequences, " for all prompts together"))
      ->check(whole_in(1, kMaxDecodeSequences));
  command
      .add_option("--stop", generate.stops,
                  "a text that ends it, not shown; any number of times; \\n is a line end")
      ->take_all()
      ->allow_extra_args(false)
      ->group(kGroup);
  command.add_flag("--ignore-eos", generate.ignore_eos, "go on where the model would end the text")
      ->group(kGroup);
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("generate", "continue prompts with a model");
  command->footer(kGenerateLesson);
  auto options = std::make_shared<GenerateCommand>();
  command->add_option("folder", options->folder, "a model folder, with its tokenizer")->required();
  command->add_option("source", options->source, "-: a prompt from standard input");
  command
      ->add_option("--prompt,-p", options->prompts,
                   "a text to go on from; any number of times; \\n is a line end")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--prompt-file,-f", options->files, "the same from a file, without its last line end")
      ->take_all()
      ->allow_extra_args(false);
  add_sampling_options(*command, *options);

  const char* kModel = "The model and its cache";
  add_extend_option(*command, options->extend, kModel);
  add_engine_options(*command, *options, kModel);
  command->add_option("--load-cache", options->load_cache, "go on behind what this file holds")
      ->group(kModel);
  command
      ->add_option("--save-cache", options->save_cache,
                   "write prompt and text, as read, to this file; one prompt, one sample")
      ->group(kModel);

  const char* kOutput = "Output";
  command->add_flag("--echo", options->echo, "show the prompt before its text; not with --json")
      ->group(kOutput);
  command->add_flag("--json", options->json, "a JSON line for each text when it has ended")->group(kOutput);
  command
      ->add_option("--logprobs", options->generate.sampling.logprobs,
                   "with --json: log-probabilities of each token and of the n most likely ones")
      ->group(kOutput);
  command->add_flag("--stats", options->stats, "tokens/s, k_t and the cache's size at the end")
      ->group(kOutput);
  command
      ->add_option(
          "--repeat", options->repeat,
          "with --stats: read the prompt and write the text so many times more, and show medians of these: "
          "the first time pays for what is set up once. One prompt, one sample")
      ->check(whole_in(1, 1'000'000))
      ->group(kOutput);
  command->callback([&run, options] {
    run = [options] {
      for (std::string& stop : options->generate.stops) stop = unescaped(stop);
      // Before standard input is waited for.
      options->folder = model_folder(options->folder);
      if (!options->save_cache.empty()) check_writable(options->save_cache);
      tell_note(binding::use_threads(options->threads));
      try {
        return Generator(*options).run();
      } catch (const GenerateStopped&) {
        std::cerr << "gsa generate: interrupted; nothing was generated\n";
        return kInterrupted;
      }
    };
  });
}

}  // namespace gsa::cli
