// The program `gsa`. Exit status: 0 done, 1 something failed, 2 wrong usage, 75 interrupted and put away in
// order.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/process.h"
#include "core/memory.h"
#include "core/suggest.h"
#include "core/usage_error.h"
#include "gsa/version.h"

namespace gsa::cli {
namespace {

constexpr const char* kMainLesson = R"(
Examples
  gsa demo                                          two tiny models, trained and compared in minutes
  gsa tokenize book.txt --output data/book          text to a dataset
  gsa train configs/tiny.toml --set data.train=data/book --set output.folder=runs/book
  gsa convert Qwen3-0.6B --output qwen3-gsa         a checkpoint of Hugging Face, to be adapted
  gsa eval runs/book/latest --data data/valid       perplexity, sinks, quality of the selection
  gsa ruler runs/book/latest --essays essays.txt    the long-context tasks of RULER
  gsa paper                                         the paper's tables, by models trained here
  gsa generate runs/book/latest --prompt "Once"     go on from a text
  gsa serve runs/book/latest                        an OpenAI-compatible server, and a page at /
  gsa inspect-text runs/book/latest --text book.txt --output look.html
                                                    a page that shows where the model looks
  gsa inspect --preset paper-1.7b --length 131072   parameters and costs of the paper's model at 128K
  gsa inspect --preset small --system standard      the same for a dense model
  gsa inspect path/to/model --json                  of a model folder, for programs

`gsa <command> --help` explains a command and its options.
)";

// Names of the options and subcommands that could have been meant.
std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

int usage_error(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  std::string message = error.what();
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string typed = extras.front().substr(0, extras.front().find('='));
    const char* what = typed.starts_with("-") ? "option" : &command == &app ? "command" : "argument";
    message = concat("unknown ", what, " ", with_suggestion(typed, names_of(command)));
  }
  std::cerr << "gsa: " << message << "\n`" << (&command == &app ? "gsa" : "gsa " + command.get_name())
            << " --help` lists what there is.\n";
  return 2;
}

// An empty value is one that a script has not filled in; taken for an option that was not given, it would
// lose what the user asked for. Only an empty prompt means something.
void check_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.empty() && option->get_name() != "--prompt") {
        throw UsageError(concat(option->get_name(), ": expected a value, got an empty one"));
      }
    }
  }
}

int main_checked(int argc, char** argv) {
  CLI::App app("gsa: language models with Gated Sparse Attention, version " GSA_VERSION, "gsa");
  app.set_version_flag("--version", GSA_VERSION, "print the version");
  app.footer(kMainLesson);
  app.get_formatter()->column_width(28);
  app.require_subcommand(0, 1);
  Run run;
  add_demo(app, run);
  add_tokenize(app, run);
  add_train(app, run);
  add_convert(app, run);
  add_eval(app, run);
  add_ruler(app, run);
  add_paper(app, run);
  add_generate(app, run);
  add_serve(app, run);
  add_inspect(app, run);
  add_inspect_text(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    return usage_error(app, chosen.empty() ? app : *chosen.front(), error);
  }
  if (!run) {
    std::cout << app.help();
    return 2;
  }
  check_values(*app.get_subcommands().front());
  return run();
}

// What there is, and what makes less of it. bytes: that were asked for at once; 0: unknown.
std::string out_of_memory(std::int64_t bytes) {
  std::string text = "out of memory";
  if (bytes > 0) text += concat(": ", format_bytes(bytes), " more were asked for");
  if (const auto room = memory_room()) {
    text += concat(bytes > 0 ? ", and " : ": ", room->bound, " has ", format_bytes(room->bytes), " left");
  }
  return text +
         "; fewer tokens at a time need less (train: batch.rows; eval: --length, --batch-tokens; generate: "
         "--chunk, --max-tokens)";
}

// An error of torch's as one line: its cause without the stack of calls, which says nothing to a user.
std::string one_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  constexpr std::string_view kAsked = "tried to allocate ";
  if (const std::size_t asked = text.find(kAsked); asked != std::string::npos) {
    return out_of_memory(std::strtoll(text.c_str() + asked + kAsked.size(), nullptr, 10));
  }
  return text.substr(0, text.find('\n'));
}

int failed(const std::string& text, int status) {
  std::cerr << "gsa: " << text << '\n';
  return status;
}

}  // namespace
}  // namespace gsa::cli

int main(int argc, char** argv) {
  gsa::cli::prepare_process();
  try {
    const int status = gsa::cli::main_checked(argc, argv);
    // Buffered text may fail to go out only now; what failed earlier has left its mark on the stream.
    if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      std::cerr << "gsa: standard output: not all of it could be written (a full disk, or nobody reads it)\n";
      return status == 0 ? 1 : status;
    }
    return status;
  } catch (const gsa::UsageError& error) {
    return gsa::cli::failed(error.what(), 2);
  } catch (const c10::Error& error) {
    return gsa::cli::failed(gsa::cli::one_line(error), 1);
  } catch (const std::bad_alloc&) {
    return gsa::cli::failed(gsa::cli::out_of_memory(0), 1);
  } catch (const std::exception& error) {
    return gsa::cli::failed(error.what(), 1);
  }
}
