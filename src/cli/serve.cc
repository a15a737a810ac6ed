// gsa serve: a model behind an OpenAI-compatible API.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/text.h"
#include "core/file.h"
#include "core/json.h"
#include "core/usage_error.h"
#include "kernels/decode/decode.h"
#include "nn/model_io.h"
#include "nn/torch.h"
#include "serve/core/api.h"
#include "serve/core/scheduler.h"
#include "serve/engine_model.h"
#include "serve/http/http_server.h"
#include "torch/threads.h"

namespace gsa::cli {
namespace {

using namespace gsa::serve;

struct ServeCommand : EngineChoices {
  std::string folder, name, chat = "auto";
  std::optional<double> extend;
  std::vector<std::string> api_keys, origins;
  std::string api_key_file;
  HttpOptions http;
  bool host_given = false;
  SchedulerOptions scheduler;
  double max_gap = 200;  // ms
  bool no_prefix_cache = false;
  std::optional<std::int64_t> prefix_mib;
  std::int64_t max_body = 32;          // MiB
  std::int64_t idle = 75, grace = 30;  // seconds
};

constexpr std::int64_t kMaxKeyFile = 1 << 20;

constexpr const char* kServeLesson = R"(
Serves a model to the clients of OpenAI's API, on this machine alone unless --host says otherwise: /v1/models,
/v1/completions, /v1/chat/completions, /tokenize, /detokenize, /health, /metrics (Prometheus), and a page at / that
writes texts and shows where the model looks.

Requests are batched as they come. A long prompt is read in chunks between the steps of running texts, made as short as
--max-gap wants it, and short prompts do not wait for all of it. What requests begin with alike is read once and kept
while nobody needs the memory.

Without --host only requests that name this machine are answered: by an address, as localhost, or as the host of an
--origin. There is no TLS: to be reached from outside, stand it behind a proxy that has it (nginx, Caddy), with --api-key-file.
Ctrl-C or SIGTERM: no new texts (503), running ones may end within --grace seconds; a second one ends the program at once.

Examples
  gsa serve runs/book/latest                                   http://127.0.0.1:8000
  gsa serve model --port 0 --name book                         any free port; the name that clients use
  gsa serve model --host 0.0.0.0 --api-key-file keys.txt       from other machines, one key a line
  gsa serve model --device cuda --extend 8 --cache-limit 40000

  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once", "max_tokens": 50, "stream": true}'
  docs/serving.md has the same for Python.
)";

// The folder's name; that of the run for its latest checkpoint.
std::string default_name(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (path.filename() == "latest" && path.has_parent_path()) path = path.parent_path();
  return path.filename().string();
}

// What a header field can carry. The key itself is nobody's business.
void check_key(const std::string& key, const std::string& where) {
  const auto visible = [](char c) { return c > ' ' && c < 0x7f; };
  if (std::all_of(key.begin(), key.end(), visible)) return;
  throw UsageError(concat(where, ": expected a key of visible ASCII characters without spaces, got another"));
}

std::vector<std::string> all_keys(const ServeCommand& options) {
  std::vector<std::string> keys = options.api_keys;
  for (const std::string& key : keys) check_key(key, "--api-key");
  if (options.api_key_file.empty()) return keys;
  const std::size_t before = keys.size();
  std::istringstream lines(read_file(options.api_key_file, kMaxKeyFile));
  std::int64_t number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    line.erase(0, line.find_first_not_of(" \t"));
    if (line.empty()) continue;
    check_key(line, concat("--api-key-file: line ", number, " of ", options.api_key_file));
    keys.push_back(line);
  }
  if (keys.size() == before) {
    throw Error(concat("--api-key-file: expected a key a line in ", options.api_key_file, ", got none"));
  }
  return keys;
}

ChatTemplate chosen_template(const ServeCommand& options) {
  if (options.chat != "auto") {
    return checking_option("--chat-template", [&] { return chat_template_by_name(options.chat); });
  }
  const FolderTemplate found = folder_template(options.folder);
  if (found.present && !found.known) {
    tell_note(concat(
        options.folder, " has a chat template that is not known here: chats are written as plain ",
        "(User: ..., Assistant: ...), which the model was not trained on; --chat-template chooses one"));
  }
  return found.known.value_or(ChatTemplate::plain);
}

// The name stands in headers of logs, in labels of metrics and in paths.
void check_name(const std::string& name) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (!name.empty() && std::none_of(name.begin(), name.end(), control)) return;
  throw UsageError(concat("--name: expected a name of one line, got ", shown(Json(name))));
}

// Pages that the prefix cache may hold. On a GPU the cache's memory is taken anyway; on a CPU it would be taken by what
// nobody may ever ask for again.
std::int64_t prefix_pages(const ServeCommand& options, const infer::Engine& engine, const ModelFacts& facts) {
  constexpr std::int64_t kShareOnCpu = 4;
  if (options.prefix_mib) return (*options.prefix_mib << 20) / facts.bytes_per_page;
  return engine.options().device.is_cpu() ? facts.capacity / kShareOnCpu : facts.capacity;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string url_of(const HttpOptions& http, std::uint16_t port) {
  const bool literal6 = http.host.find(':') != std::string::npos;
  return concat("http://", literal6 ? concat("[", http.host, "]") : http.host, ":", port);
}

// A file descriptor for every client: as many as the system lets a process have.
void allow_connections(std::int64_t connections) {
  constexpr std::int64_t kOthers = 64;  // of the program itself
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(connections + kOthers);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    std::cerr << "note: --max-connections: the system allows " << limit.rlim_cur
              << " open files (ulimit -n); clients beyond that wait\n";
  }
}

// Asks the server to end when the user does.
class Watcher {
 public:
  Watcher(Api& api, Scheduler& scheduler, std::int64_t grace)
      : thread_([&api, &scheduler, grace](const std::stop_token& stop) {
          while (!stop.stop_requested() && !interrupted()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
          if (!interrupted()) return;
          std::cerr << "gsa serve: ending; texts that run may take " << grace << " s more\n";
          // Connections are taken until the texts have ended, so that clients hear why they are refused.
          api.stopping();
          scheduler.stop(std::chrono::seconds(grace));
        }) {}

 private:
  std::jthread thread_;
};

int serve(const ServeCommand& options) {
  BoundPort port(options.http);  // before minutes of loading
  const std::unique_ptr<data::Tokenizer> tokenizer = data::load_tokenizer(options.folder);
  ApiOptions api_options;
  api_options.model = options.name;
  api_options.api_keys = all_keys(options);
  api_options.origins = options.origins;
  api_options.check_host = !options.host_given;
  api_options.chat = chosen_template(options);

  nn::ModelConfig config = nn::load_config(options.folder);
  if (options.extend) extend_by(config, *options.extend);
  nn::Model model = nn::load_model(options.folder, {.config = config}).model;
  const at::ScalarType stored = model->output_weight().scalar_type();
  infer::Engine engine(std::move(model), engine_options(options, config, stored));
  if (tokenizer->vocab_size() > config.vocab_size) {
    throw Error(concat(options.folder, ": expected a tokenizer of at most ", config.vocab_size,
                       " tokens, got ", tokenizer->vocab_size(), ": it belongs to another model"));
  }
  EngineModel served(engine, options.extend == 1 ? kMaxDecodeLength : config.max_positions);
  SchedulerOptions scheduling = options.scheduler;
  const ModelFacts& facts = served.facts();
  scheduling.max_prefix_pages = std::min(prefix_pages(options, engine, facts), facts.capacity);
  Scheduler scheduler(served, *tokenizer, scheduling);
  Api api(scheduler, *tokenizer, api_options);
  HttpOptions http_options = options.http;
  http_options.quick = {"/health", "/metrics"};
  http_options.check = [&api](const HttpRequest& head) { return api.check(head); };
  HttpServer http(
      std::move(port), http_options,
      [&api](HttpRequest request, std::shared_ptr<HttpReply> reply) {
        api.handle(std::move(request), std::move(reply));
      },
      Api::refusal);

  std::cerr << "gsa serve: " << options.name << " (" << engine.options().device << ", "
            << c10::toString(*engine.options().dtype) << ", chat template " << name_of(api_options.chat)
            << "), texts of up to " << grouped(scheduler.max_length()) << " tokens, cache for "
            << grouped(facts.capacity * facts.page_size) << " tokens ("
            << format_bytes(facts.capacity * facts.bytes_per_page) << ")";
  if (scheduling.prefix_cache) {
    std::cerr << ", of which the prefix cache keeps up to "
              << format_bytes(scheduling.max_prefix_pages * facts.bytes_per_page);
  }
  std::cerr << '\n';
  if (api_options.api_keys.empty() && !is_loopback(options.http.host)) {
    std::cerr << "note: no --api-key-file: everybody who reaches this address may use the model\n";
  }
  allow_connections(options.http.max_connections);
  watch_interrupts();
  std::signal(SIGPIPE, SIG_IGN);
  http.start();
  // The line that programs wait for.
  std::cout << "listening on " << url_of(options.http, http.port()) << std::endl;
  {
    const Watcher watcher(api, scheduler, options.grace);
    scheduler.run();  // in this thread, whose number of OpenMP threads was set
  }
  api.drain();
  // What has been written goes out.
  if (!http.shut_down(std::chrono::seconds(5)))
    std::cerr << "note: some clients did not take their answers\n";
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("serve", "an OpenAI-compatible server for a model");
  command->footer(kServeLesson);
  auto options = std::make_shared<ServeCommand>();
  command->add_option("folder", options->folder, "a model folder, with its tokenizer")->required();

  const char* kServer = "The server";
  const auto number = [&](const char* name, auto& value, const std::string& text) {
    return command->add_option(name, value, text)->capture_default_str()->group(kServer);
  };
  CLI::Option* host_option =
      number("--host", options->http.host, "the address to listen at; 0.0.0.0 or ::, all of the machine's");
  number("--port", options->http.port, "0: any that is free")->check(whole_in(0, 65535));
  command->add_option("--name", options->name, "the model's name for clients; default: the folder's")
      ->group(kServer);
  command
      ->add_option(
          "--api-key", options->api_keys,
          "a key that clients must send; any number of times. Others see it in the list of processes: "
          "--api-key-file is better")
      ->take_all()
      ->allow_extra_args(false)
      ->group(kServer);
  command->add_option("--api-key-file", options->api_key_file, "a file with a key a line")->group(kServer);
  command
      ->add_option("--origin", options->origins,
                   "where a proxy shows the server (https://model.example), so that it answers by that name "
                   "and the page "
                   "works there; any number of times")
      ->take_all()
      ->allow_extra_args(false)
      ->group(kServer);
  number("--chat-template", options->chat,
         "chatml, llama3 or plain; auto: as the model's folder says, else plain");
  number("--max-connections", options->http.max_connections, "clients at once")
      ->check(whole_in(1, 1'000'000));
  number("--max-body", options->max_body, "MiB of a request at most")->check(whole_in(1, 4096));
  number("--idle-timeout", options->idle, "seconds that a connection may stay without a request")
      ->check(whole_in(1, 86'400));
  number("--grace", options->grace, "seconds that running texts have after Ctrl-C or SIGTERM")
      ->check(whole_in(0, 86'400));

  const char* kSchedule = "Batching";
  const auto schedule = [&](const char* name, auto& value, const std::string& text) {
    return command->add_option(name, value, text)->capture_default_str()->group(kSchedule);
  };
  schedule("--max-batch", options->scheduler.max_batch, "texts that are written at once")
      ->check(whole_in(1, kMaxDecodeSequences));
  schedule("--max-queue", options->scheduler.max_queue, "texts that wait for that; more are refused (429)")
      ->check(whole_in(1, 1'000'000));
  schedule(
      "--max-gap", options->max_gap,
      "milliseconds between two tokens of a running text that chunks of other prompts aim to stay below; one "
      "has 64 tokens at least")
      ->check(number_in(1, 3.6e6));
  CLI::Option* prefix_limit =
      command
          ->add_option(
              "--prefix-cache-limit", options->prefix_mib,
              "MiB of the cache that beginnings of earlier texts may keep; default: on a CPU a quarter of "
              "--cache-limit, on a GPU all of it")
          ->check(whole_in(1, kMaxCacheMib))
          ->group(kSchedule);
  command->add_flag("--no-prefix-cache", options->no_prefix_cache, "read every prompt anew")
      ->excludes(prefix_limit)
      ->group(kSchedule);

  const char* kModel = "The model and its cache";
  add_extend_option(*command, options->extend, kModel);
  add_engine_options(*command, *options, kModel);
  command->callback([&run, options, host_option] {
    options->host_given = host_option->count() > 0;
    run = [options] {
      if (options->name.empty()) options->name = default_name(options->folder);
      check_name(options->name);
      options->folder = model_folder(options->folder);
      std::string& host = options->http.host;
      if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
      options->http.max_body = options->max_body << 20;
      options->http.max_bodies = std::max(options->http.max_bodies, options->http.max_body);
      options->http.log = [](const std::string& line) { std::cerr << "gsa serve: " << line << '\n'; };
      options->http.idle = std::chrono::seconds(options->idle);
      options->scheduler.max_gap = std::chrono::duration<double>(options->max_gap / 1000);
      options->scheduler.prefix_cache = !options->no_prefix_cache;
      tell_note(binding::use_threads(options->threads));
      return serve(*options);
    };
  });
}

}  // namespace gsa::cli
