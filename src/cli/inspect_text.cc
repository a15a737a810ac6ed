// gsa inspect-text: a page that shows where a model looks when it reads a text.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/usage_error.h"
#include "infer/core/look_json.h"
#include "infer/generate.h"
#include "kernels/decode/decode.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "serve/core/page.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

struct InspectTextCommand : EngineChoices {
  std::string folder, text, output, positions;
  std::optional<std::int64_t> last;
  std::optional<double> extend;
};

constexpr std::int64_t kLast = 64;
constexpr std::int64_t kMaxTextBytes = std::int64_t{1} << 32;
// What a browser opens without complaint.
constexpr std::int64_t kMaxDataBytes = std::int64_t{64} << 20;

constexpr const char* kInspectTextLesson = R"(
Reads a text with a model as generate does, and writes a page (one file, nothing from the network) that shows for each
of the chosen tokens which earlier positions every layer attended to, with which weight; how many keys it selected
(k_t); how much of dense attention these keys keep; and how far the gates were open. Open it with any browser: click a
token or use the arrow keys.

Tokens before the chosen ones are read as a prompt, the chosen ones one by one as a text is written. Positions count
from 0; what the tokenizer puts before a text (a mark, mostly) is position 0.

Examples
  gsa inspect-text runs/book/latest --text page.txt --output look.html               the last 64 tokens
  gsa inspect-text model --text report.txt --last 200 --output look.html
  gsa inspect-text model --text report.txt --positions 4000-4063 --output look.html  a part in the middle
  gsa inspect-text model --text report.txt --phase dense --output dense.html         where it would look without
                                                                                     selecting
)";

// Thrown where the user wants to stop.
struct InspectTextStopped {};

struct Positions {
  std::int64_t first = 0, last = 0;  // both included
  std::int64_t count() const { return last - first + 1; }
};

[[noreturn]] void bad_positions(const std::string& expected, const std::string& got) {
  throw UsageError(concat("--positions: expected ", expected, ", got ", got));
}

// "4000-4063".
Positions parse_positions(const std::string& text) {
  Positions positions;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, positions.first);
  const bool dash = first.ec == std::errc() && first.ptr != end && *first.ptr == '-';
  const auto last = dash ? std::from_chars(first.ptr + 1, end, positions.last) : first;
  if (!dash || last.ec != std::errc() || last.ptr != end || positions.first < 0 || positions.last < 0) {
    bad_positions("two positions such as 4000-4063", concat("'", text, "'"));
  }
  if (positions.first > positions.last) {
    bad_positions("the first position before the last", concat("'", text, "'"));
  }
  return positions;
}

Positions chosen_positions(const InspectTextCommand& options, std::int64_t tokens) {
  if (options.positions.empty()) {
    return {std::max<std::int64_t>(0, tokens - options.last.value_or(kLast)), tokens - 1};
  }
  const Positions positions = parse_positions(options.positions);
  if (positions.last >= tokens) {
    bad_positions(concat("positions in 0 .. ", tokens - 1, ", the text's"), concat(positions.last));
  }
  return positions;
}

void check_length(const InspectTextCommand& options, const nn::ModelConfig& config, std::int64_t read) {
  if (read <= config.max_positions || options.extend == 1) return;
  const std::int64_t trained = config.trained_length(), factor = (read + trained - 1) / trained;
  throw Error(concat("--text: expected at most ", grouped(config.max_positions),
                     " tokens, for which the model is meant, got ", grouped(read),
                     " up to the last chosen one: ",
                     factor * trained <= kMaxDecodeLength
                         ? concat("--extend ", factor, " extends it to ", grouped(factor * trained), "; ")
                         : "",
                     "--positions chooses earlier ones; --extend 1 goes on without an extension"));
}

// ---- the page's data

class PageData {
 public:
  PageData(const InspectTextCommand& options, const data::Tokenizer& tokenizer,
           std::span<const std::int64_t> tokens, std::int64_t looks)
      : looks_(looks) {
    OrderedJson head;
    head["model"] = printable(options.folder);
    head["text"] = printable(std::filesystem::path(options.text).filename().string());
    head["tokens"] = tokens;
    OrderedJson strings = OrderedJson::array();
    for (const std::int64_t id : tokens) {
      strings.push_back(infer::token_text(tokenizer, static_cast<std::int32_t>(id)));
    }
    head["token_strs"] = std::move(strings);
    text_ = head.dump();
    text_.pop_back();
    text_ += R"(,"looks":[)";
    check(0);
  }

  void add(const infer::Look& look) {
    const std::string json = infer::look_json(look).dump();
    if (done_ == 0) check(static_cast<std::int64_t>(json.size()));
    if (done_ > 0) text_ += ',';
    text_ += json;
    ++done_;
    check(0);
  }

  std::string finish() { return std::move(text_) + "]}"; }

 private:
  // A file's name may be any bytes.
  static std::string printable(const std::string& name) {
    return Json::parse(Json(name).dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  // first: bytes of the first look, by which the others are judged before they cost time.
  void check(std::int64_t first) const {
    const auto held = static_cast<std::int64_t>(text_.size());
    const std::int64_t expected = held + first * (looks_ - done_);
    if (expected <= kMaxDataBytes) return;
    const std::int64_t fit = first > 0 ? (kMaxDataBytes - held) / first : done_;
    throw Error(concat("--output: expected at most ", format_bytes(kMaxDataBytes), " of data in a page, got ",
                       first > 0 ? "about " : "", format_bytes(expected), " for ", grouped(looks_),
                       looks_ == 1 ? " token: " : " tokens: ",
                       fit > 0 ? concat("--last or --positions with at most ", grouped(fit), " of them fit")
                               : "the text is too long, a shorter one fits"));
  }

  std::int64_t looks_, done_ = 0;
  std::string text_;
};

// ---- the work

std::string looked_at(infer::Engine& engine, const InspectTextCommand& options,
                      const data::Tokenizer& tokenizer, std::span<const std::int64_t> tokens,
                      const Positions& positions) {
  PageData data(options, tokenizer, tokens, positions.count());
  infer::Sequence sequence = engine.start();
  const infer::Prompt whole{&sequence, tokens.first(static_cast<std::size_t>(positions.last) + 1)};
  engine.reserve({&whole, 1}, 0);  // refused before any work
  if (positions.first > 0) {
    Progress progress("reading the text", positions.first);
    infer::PrefillOptions how;
    how.progress = [&](std::int64_t done, std::int64_t) {
      progress.update(done, concat(grouped(done), " tokens"));
      return !interrupted();
    };
    engine.prefill({{&sequence, tokens.first(static_cast<std::size_t>(positions.first))}}, how);
  }
  Progress progress("looking", positions.count());
  for (std::int64_t at = positions.first; at <= positions.last; ++at) {
    if (interrupted()) throw InspectTextStopped();
    data.add(engine.look(sequence, tokens[static_cast<std::size_t>(at)]));
    progress.update(at - positions.first + 1, concat("position ", grouped(at)));
  }
  return data.finish();
}

int inspect_text(const InspectTextCommand& options) {
  if (!options.positions.empty() && options.last) {
    throw UsageError("--last: expected no --positions beside it, got both");
  }
  if (!options.positions.empty()) parse_positions(options.positions);
  std::error_code none;  // where one of them is not there
  if (std::filesystem::equivalent(options.text, options.output, none)) {
    throw UsageError(concat("--output: expected another file than --text, got '", options.output, "'"));
  }
  check_writable(options.output);
  const std::string folder = model_folder(options.folder);
  std::string text = read_file(options.text, kMaxTextBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  const std::unique_ptr<data::Tokenizer> tokenizer = data::load_tokenizer(folder);
  const std::vector<std::int64_t> tokens = infer::first_tokens(*tokenizer, text);
  const Positions positions = chosen_positions(options, static_cast<std::int64_t>(tokens.size()));

  nn::ModelConfig config = nn::load_config(folder);
  if (options.extend) extend_by(config, *options.extend);
  check_length(options, config, positions.last + 1);
  tell_note(binding::use_threads(options.threads));
  watch_interrupts();
  nn::Model model = nn::load_model(folder, {.config = config}).model;
  const at::ScalarType stored = model->output_weight().scalar_type();
  infer::Engine engine(std::move(model), engine_options(options, config, stored));
  const std::string page = serve::page_with_data(looked_at(engine, options, *tokenizer, tokens, positions));
  write_file(options.output, page);
  std::cout << concat(
      options.output, ": ", grouped(positions.count()), positions.count() == 1 ? " token" : " tokens", " of ",
      grouped(static_cast<std::int64_t>(tokens.size())), ", positions ", grouped(positions.first), " .. ",
      grouped(positions.last), ", ", grouped(engine.config().layers), " layers, ",
      format_bytes(static_cast<std::int64_t>(page.size())), "\n");
  return 0;
}

}  // namespace

void add_inspect_text(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("inspect-text", "a page that shows where a model looks in a text");
  command->footer(kInspectTextLesson);
  auto options = std::make_shared<InspectTextCommand>();
  command->add_option("folder", options->folder, "a model folder, with its tokenizer")->required();
  command->add_option("--text", options->text, "the file to read, without its last line end")->required();
  command->add_option("--output,-o", options->output, "the page to write")->required();
  const char* kTokens = "Tokens that are looked at";
  command->add_option("--last", options->last, concat("the last N of the text; default: ", kLast))
      ->check(positive_whole())
      ->group(kTokens);
  command->add_option("--positions", options->positions, "from one position to another, such as 4000-4063")
      ->group(kTokens);
  const char* kModel = "The model and its cache";
  add_extend_option(*command, options->extend, kModel);
  add_engine_options(*command, *options, kModel);
  command->callback([&run, options] {
    run = [options] {
      try {
        return inspect_text(*options);
      } catch (const InspectTextStopped&) {
        std::cerr << "gsa inspect-text: interrupted; nothing was written\n";
        return kInterrupted;
      }
    };
  });
}

}  // namespace gsa::cli
