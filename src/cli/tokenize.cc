// gsa tokenize: text to a dataset that gsa train and gsa eval read.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <thread>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/parallel.h"
#include "core/usage_error.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "data/line_sample.h"

namespace gsa::cli {
namespace {

using namespace gsa::data;

struct TokenizeCommand {
  std::vector<std::string> inputs;
  std::string output, tokenizer = "bytes", format = "auto", field = "text", split = "file", separator;
  std::int64_t train_tokenizer = 0;
  std::int64_t sample_lines = 1'000'000;
  bool check = false, skip_bad_lines = false;
  bool tokenizer_given = false, sample_given = false, field_given = false, split_given = false;
};

constexpr const char* kTokenizeLesson = R"(
A dataset is a folder: token ids in files that are mapped into memory, where documents end, the tokenizer, and
dataset.json, which is written last: a run that was cut off leaves no dataset. A document stays whole whatever its
size, and memory does not grow with the input. Blank documents are left out. Checksums are verified when a dataset is
opened, once for every file until it changes; --check verifies all of them again.

The byte tokenizer (258 ids) needs no training and keeps any input as it is. SentencePiece is trained here with
--train-tokenizer, or taken from a file (tokenizer.model) or from a dataset or model folder; it reads UTF-8, and bytes
that are none become U+FFFD. The tokenizer.json of a Llama, Qwen or Mistral folder, which is read before a
tokenizer.model, gives the ids that Python's tokenizers gives; special tokens in the text become their ids, bytes that
are no UTF-8 are kept.

Examples
  gsa tokenize book.txt --output data/book                        bytes, one document
  gsa tokenize a.txt b.txt --split blank-lines --output data/ab   a document ends at a blank line
  gsa tokenize train.jsonl --train-tokenizer 32768 --output data/train
  gsa tokenize valid.jsonl --tokenizer data/train --output data/valid
  gsa tokenize train.jsonl --tokenizer Llama-3.2-1B --output data/llama    tokenizer.json of a model folder
  zcat *.gz | gsa tokenize - --separator '<|endoftext|>' --output data/web
  gsa tokenize --check --output data/train                        verify every checksum of a dataset
)";

// Thrown out of a reader when the user wants to stop.
struct Stopped {};

int cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

DocumentSource source_of(const TokenizeCommand& options, const std::string& input) {
  DocumentSource source;
  source.path = input;
  source.format = options.format == "auto"    ? format_by_name(input)
                  : options.format == "jsonl" ? TextFormat::jsonl
                                              : TextFormat::text;
  source.split = !options.separator.empty()       ? Split::separator
                 : options.split == "blank-lines" ? Split::blank_lines
                                                  : Split::file;
  source.separator = options.separator;
  source.field = options.field;
  return source;
}

// An option that would be ignored is refused.
void check_tokenize(const TokenizeCommand& options) {
  check_choice("--format", options.format, {"auto", "text", "jsonl"});
  check_choice("--split", options.split, {"file", "blank-lines"});
  if (options.inputs.empty()) throw UsageError("expected files to read, or - for standard input, got none");
  if (options.train_tokenizer > 0 && options.tokenizer_given) {
    throw UsageError("expected one of --tokenizer and --train-tokenizer, got both");
  }
  if (options.train_tokenizer == 0 && options.sample_given) {
    throw UsageError("--sample-lines: expected --train-tokenizer beside it, got none");
  }
  if (options.split_given && !options.separator.empty()) {
    throw UsageError("expected one of --split and --separator, got both");
  }
  bool json = false, text = false;
  for (const std::string& input : options.inputs) {
    (source_of(options, input).format == TextFormat::jsonl ? json : text) = true;
    if (input == "-" && options.train_tokenizer > 0) {
      throw UsageError("--train-tokenizer: expected files, which are read twice, got standard input");
    }
  }
  if (!json && options.skip_bad_lines) {
    throw UsageError("--skip-bad-lines: expected JSON lines, got plain text");
  }
  if (!json && options.field_given) throw UsageError("--field: expected JSON lines, got plain text");
  if (!text && (options.split_given || !options.separator.empty())) {
    throw UsageError(
        "--split and --separator: expected plain text, got JSON lines, each of which is a document");
  }
}

// Bytes of all inputs; 0 where one of them cannot say.
std::int64_t total_bytes(const TokenizeCommand& options) {
  std::int64_t total = 0;
  for (const std::string& input : options.inputs) {
    std::error_code error;
    const auto size = input == "-" ? 0 : std::filesystem::file_size(input, error);
    if (input == "-" || error) return 0;
    total += static_cast<std::int64_t>(size);
  }
  return total;
}

struct Handler {
  std::function<void(std::string_view)> text;
  std::function<void()> end;
  std::function<std::string()> detail;
};

// Lines that --skip-bad-lines left out, and what is wrong with the first of them.
struct Skipped {
  std::int64_t lines = 0;
  std::string first;
};

Skipped read_inputs(const TokenizeCommand& options, const char* title, const Handler& handler) {
  Progress progress(title, total_bytes(options));
  Skipped skipped;
  std::int64_t before = 0, in_file = 0;
  for (const std::string& input : options.inputs) {
    DocumentSource source = source_of(options, input);
    if (options.skip_bad_lines) {
      source.skip = [&](const std::string& fault) {
        if (skipped.lines++ == 0) skipped.first = fault;
      };
    }
    read_documents(source, {.text = handler.text, .end = handler.end, .progress = [&](std::int64_t bytes) {
                              if (interrupted()) throw Stopped();
                              in_file = bytes;
                              progress.update(before + bytes, handler.detail());
                            }});
    before += in_file;
    in_file = 0;
  }
  return skipped;
}

[[noreturn]] void no_text(const TokenizeCommand& options) {
  const auto shown = [](const std::string& input) { return input == "-" ? "standard input" : input; };
  std::string names = shown(options.inputs.front());
  if (options.inputs.size() > 1) names += concat("' ... '", shown(options.inputs.back()));
  bad_file(names, "at least one document with text in it", "none");
}

std::unique_ptr<Tokenizer> trained_tokenizer(const TokenizeCommand& options) {
  LineSample sample(static_cast<std::size_t>(options.sample_lines));
  read_inputs(options, "reading lines",
              {.text = [&](std::string_view text) { sample.add(text); },
               .end = [] {},
               .detail = [&] { return grouped(sample.seen()) + " lines"; }});
  if (sample.lines().empty()) no_text(options);
  std::cerr << concat("training a tokenizer of ", grouped(options.train_tokenizer), " pieces on ",
                      grouped(static_cast<std::int64_t>(sample.lines().size())), " of ",
                      grouped(sample.seen()), " lines ...\n");
  return sentencepiece_tokenizer(
      train_sentencepiece(
          {.lines = sample.lines(), .vocab_size = options.train_tokenizer, .threads = cores()}),
      "the trained tokenizer");
}

void describe_tokenizer(const std::string& folder, const Dataset& dataset) {
  std::cout << concat(folder, ": ", grouped(dataset.documents()), " documents, ", grouped(dataset.tokens()),
                      " tokens (", dataset.tokenizer_kind(), ", vocabulary ", grouped(dataset.vocab_size()),
                      "), ", fixed(dataset.bytes_per_token(), 2), " bytes a token\n");
}

int tokenize(const TokenizeCommand& options) {
  if (options.check) {
    if (!options.inputs.empty()) throw UsageError("--check: expected no files to read, got some");
    describe_tokenizer(options.output, Dataset(options.output, true));
    std::cout << "every checksum is right\n";
    return 0;
  }
  check_tokenize(options);
  watch_interrupts();
  try {
    // Before the inputs are read for a tokenizer: a wrong folder should not cost that time.
    std::error_code unknown;
    if (std::filesystem::exists(std::filesystem::path(options.output) / "dataset.json", unknown)) {
      bad_file(options.output, "a folder without a dataset (remove it, or choose another)",
               "dataset.json in it");
    }
    check_writable_folder(options.output);
    const std::unique_ptr<Tokenizer> tokenizer =
        options.train_tokenizer > 0 ? trained_tokenizer(options) : load_tokenizer(options.tokenizer);
    if (interrupted()) throw Stopped();
    const ThreadParallel parallel(cores());
    DatasetWriter writer(options.output, *tokenizer, DatasetWriter::kShardTokens, parallel);
    bool any = false;
    const Skipped skipped = read_inputs(options, "tokenizing",
                                        {.text = [&](std::string_view text) { writer.append(text); },
                                         .end =
                                             [&] {
                                               any = true;
                                               writer.end_document();
                                             },
                                         .detail = [&] { return grouped(writer.tokens()) + " tokens"; }});
    if (interrupted()) throw Stopped();  // Ctrl-C may have ended who wrote to standard input as well
    if (skipped.lines > 0) {
      tell_note(concat(grouped(skipped.lines), skipped.lines == 1 ? " line was" : " lines were",
                       " skipped, the first of them: ", skipped.first));
    }
    if (!any) no_text(options);
    writer.finish();
  } catch (const Stopped&) {
    std::cerr << "gsa tokenize: interrupted; nothing was kept\n";
    return kInterrupted;
  }
  describe_tokenizer(options.output, Dataset(options.output));
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("tokenize", "text to a dataset for training and evaluation");
  command->footer(kTokenizeLesson);
  auto options = std::make_shared<TokenizeCommand>();
  command->add_option("inputs", options->inputs, "text or JSON-lines files; - is standard input");
  command->add_option("-o,--output", options->output, "the dataset's folder")->required();
  command->add_flag("--check", options->check, "read no text; verify the dataset that --output names");
  const char* kTokens = "Tokens";
  auto* tokenizer = command->add_option(
      "--tokenizer", options->tokenizer,
      "the word 'bytes', a SentencePiece file, a tokenizer.json, or a folder that has one");
  tokenizer->capture_default_str()->group(kTokens);
  command
      ->add_option("--train-tokenizer", options->train_tokenizer, "train SentencePiece with this many pieces")
      ->check(CLI::Range(std::int64_t(270), std::int64_t(1) << 24))
      ->group(kTokens);
  auto* sample = command->add_option("--sample-lines", options->sample_lines,
                                     "lines that a tokenizer is trained on, drawn evenly from all");
  sample->check(CLI::Range(std::int64_t(1), std::int64_t(1) << 32))->capture_default_str()->group(kTokens);
  const char* kDocuments = "Documents";
  command->add_option("--format", options->format, "auto (by the file's name), text or jsonl")
      ->capture_default_str()
      ->group(kDocuments);
  auto* field = command->add_option("--field", options->field, "of JSON lines: where the text stands");
  field->capture_default_str()->group(kDocuments);
  command
      ->add_flag("--skip-bad-lines", options->skip_bad_lines,
                 "of JSON lines: leave out and count those that are no JSON or lack the text")
      ->group(kDocuments);
  auto* split =
      command->add_option("--split", options->split, "of text: a document is a file, or ends at blank-lines");
  split->capture_default_str()->group(kDocuments);
  command
      ->add_option("--separator", options->separator,
                   "of text: a document ends at a line that is exactly this")
      ->group(kDocuments);
  command->callback([&run, options, tokenizer, sample, field, split] {
    options->tokenizer_given = tokenizer->count() > 0;
    options->sample_given = sample->count() > 0;
    options->field_given = field->count() > 0;
    options->split_given = split->count() > 0;
    run = [options] { return tokenize(*options); };
  });
}

}  // namespace gsa::cli
