// A fuzzer of the whole server: sockets, HTTP, JSON, API and scheduler in one process, over a model made by rule.
//
//   gsa_serve_fuzz [--requests N] [--seed S] [--threads T] [--first I]
//
// Clients send right requests to every route and mutated ones: wrong JSON, wrong HTTP, wrong bytes; in pieces, in part,
// hanging up anywhere. Every answer is checked, and after some requests a right one must get the right text. The cache
// is small, so that texts are pre-empted, pages evicted and requests refused, and now and then a pass of the model
// fails. A server lives for some thousand requests; each second one is stopped while requests come. What a connection
// sends depends on seed and number alone: `--first I --requests 1 --threads 1` sends it again.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bodies.h"
#include "client.h"
#include "core/json.h"
#include "serve/core/api.h"
#include "serve/rule_model.h"

// Of the sanitizers, where they are.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
extern "C" const char* __asan_default_options() { return "handle_abort=1:detect_stack_use_after_return=1"; }

namespace gsa::serve_fuzz {
namespace {

using namespace gsa::serve;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kMaxThreads = 64;
constexpr std::int64_t kRound = 5000;          // requests that a server lives for
constexpr std::uint64_t kProbeEvery = 50;      // connections of a client
std::atomic<std::uint64_t> g_at[kMaxThreads];  // what each client is sending, for the report of a crash

void tell_where() {
  std::fputs("gsa_serve_fuzz: connections under way:", stderr);
  for (const auto& at : g_at) {
    if (at != 0) std::fprintf(stderr, " %llu", static_cast<unsigned long long>(at - 1));
  }
  std::fputs("\n", stderr);
}

struct Options {
  std::int64_t requests = 20'000;
  std::uint64_t seed = 1, first = 0;
  std::size_t threads = 12;
};

std::string escaped(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, 3000)) {
    if (c >= ' ' && c < 0x7f && c != '\\') {
      text += c;
    } else {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02x", static_cast<unsigned char>(c));
      text += code;
    }
  }
  return bytes.size() > 3000 ? concat(text, " ... of ", bytes.size(), " bytes") : text;
}

// A server with little room, of another shape each time.
struct Server {
  explicit Server(std::uint64_t shape)
      : tokenizer(data::byte_tokenizer()),
        model({.max_positions = 256,
               .capacity = shape % 3 == 0 ? 40 : 72,
               .max_chunk = 32,
               .max_batch = 6,
               .dense_below = shape % 4 == 1 ? 48 : 0,
               .end_after = 180,
               .a_step = std::chrono::microseconds(shape % 2 == 0 ? 0 : 100)}),
        scheduler(
            model, *tokenizer,
            {.max_queue = 6, .prefix_cache = shape % 5 != 4, .max_prefix_pages = shape % 7 == 2 ? 12 : 1000}),
        api(scheduler, *tokenizer, api_options()),
        http(
            http_options(shape),
            [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
              api.handle(std::move(request), std::move(reply));
            },
            Api::refusal),
        compute([this] { scheduler.run(); }) {
    http.start();
  }
  ~Server() {
    if (compute.joinable()) stop(Seconds(0));
  }

  static ApiOptions api_options() {
    ApiOptions options;
    options.model = kModel;
    options.api_keys = {kKey, "another"};
    return options;
  }
  HttpOptions http_options(std::uint64_t shape) {
    HttpOptions options;
    options.port = 0;
    options.max_connections = shape % 4 == 3 ? 11 : 2 * kMaxThreads;  // of 12 clients
    options.max_body = 64 << 10;
    options.max_header = 4 << 10;
    options.max_unsent = 1 << 20;
    options.idle = std::chrono::milliseconds(1500);
    options.receive = std::chrono::milliseconds(700);
    options.send = std::chrono::milliseconds(300);
    options.check = [this](const HttpRequest& head) { return api.check(head); };
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      logged.push_back(line);
    };
    return options;
  }

  // True: all answers went out.
  bool stop(Seconds grace) {
    api.stopping();
    http.stop_accepting();
    scheduler.stop(grace);
    compute.join();
    return http.shut_down(Seconds(10));
  }

  std::mutex mutex;
  std::vector<std::string> logged;
  std::unique_ptr<data::Tokenizer> tokenizer;
  RuleModel model;
  Scheduler scheduler;
  Api api;
  HttpServer http;
  std::thread compute;
};

// ---- Right requests

std::string expected_text(const Server& server, const std::string& prompt, std::int64_t max_tokens) {
  const std::vector<std::int32_t> ids = data::prompt_ids(*server.tokenizer, prompt);
  std::vector<std::int64_t> tokens(ids.begin(), ids.end());
  std::string text;
  for (std::int64_t i = 0; i < max_tokens; ++i) {
    tokens.push_back(server.model.next(tokens));
    if (tokens.back() >= 256) break;
    text += static_cast<char>(tokens.back());
  }
  return text;
}

std::string text_of(const Answer& answer) {
  if (answer.type == "application/json") return Json::parse(answer.body).at("choices").at(0).at("text");
  std::string text;
  for (std::size_t at = 0; (at = answer.body.find("data: {", at)) != std::string::npos; at += 6) {
    const Json event = Json::parse(answer.body.substr(at + 6, answer.body.find('\n', at) - at - 6));
    text += event.at("choices").at(0).at("text").get<std::string>();
  }
  return text;
}

// False: the server is gone.
bool probe(Server& server, Client& client, Random& random) {
  const std::string prompt(random.between(0, 150), static_cast<char>('a' + random.below(26)));
  const auto max_tokens = static_cast<std::int64_t>(random.between(1, 60));
  const Json json = {
      {"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}, {"stream", random.one_in(2)}};
  const std::string body = json.dump();
  const std::string bytes = concat("POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ", kKey,
                                   "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  for (int tries = 0; tries < 10'000; ++tries) {
    const std::optional<Answer> answer = client.ask(bytes);
    if (!answer) return false;
    if (answer->status == 429 || answer->status == 503 || model_failed(*answer)) {
      ++client.counts.probes_put_off;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    if (shut_down(*answer)) return false;  // check_answer() allows it only then
    const std::string expected = expected_text(server, prompt, max_tokens);
    const bool right = answer->status == 200 && text_of(*answer) == expected;
    if (!right)
      throw Finding(concat("a right request: ", body, "\nexpected ", expected, "\ngot ", answer->body));
    ++client.counts.probes;
    return true;
  }
  throw Finding("a right request finds no room");
}

// ---- A server's life

class Round {
 public:
  Round(const Options& options, std::uint64_t number, std::uint64_t first, std::int64_t requests)
      : options_(options), number_(number), next_(first), requests_(requests), server_(number) {}

  // Sends so many requests; false: something was found.
  bool run(bool stop_early);
  std::uint64_t next() const { return next_; }

  Counts counts;
  MetricsSnapshot metrics;

 private:
  void client(std::size_t index);
  void fail(const std::string& what);
  void stop_in_between();
  void check_rest();
  template <typename Condition>
  void expect_soon(const Condition& condition, const char* what);

  const Options& options_;
  std::uint64_t number_;
  std::atomic<std::uint64_t> next_;
  std::int64_t requests_;
  Server server_;
  std::atomic<std::int64_t> sent_ = 0;
  std::atomic<bool> stopping_ = false, failed_ = false;
  std::mutex mutex_;
};

void Round::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  std::cout << "FOUND (server " << number_ << "): " << what << std::endl;
}

void Round::client(std::size_t index) {
  Client client(server_.http.port(), stopping_);
  std::uint64_t played = 0;
  bool alive = true;
  while (alive && !failed_ && sent_ < requests_) {
    const std::uint64_t at = next_++;
    g_at[index] = at + 1;
    Random random(options_.seed * 0x9e3779b97f4a7c15U + at);
    const Traffic traffic = make_traffic(random);
    const std::int64_t before = client.counts.requests;
    try {
      if (random.one_in(400)) server_.model.fail_next = true;
      alive = client.play(traffic, random);
      if (alive && ++played % kProbeEvery == 0) alive = probe(server_, client, random);
    } catch (const std::exception& error) {
      fail(concat("connection ", at, ": ", error.what(), "\nsent: ", escaped(traffic.bytes)));
    }
    sent_ += client.counts.requests - before;
  }
  g_at[index] = 0;
  const std::lock_guard lock(mutex_);
  counts.add(client.counts);
}

template <typename Condition>
void Round::expect_soon(const Condition& condition, const char* what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return fail(what);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// While clients go on.
void Round::stop_in_between() {
  while (!failed_ && sent_ < requests_ * 9 / 10) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  stopping_ = true;
  server_.stop(Seconds(number_ % 4 == 1 ? 0 : 0.05));
}

void Round::check_rest() {
  expect_soon([&] { return server_.http.connections() == 0; }, "a connection is left");
  expect_soon(
      [&] {
        metrics = server_.scheduler.metrics();
        return metrics.waiting + metrics.reading + metrics.writing == 0;
      },
      "a text is left");
  if (metrics.pages_in_use != metrics.pages_cached || server_.model.pages_in_use() != metrics.pages_cached) {
    fail(concat("pages are left: ", metrics.pages_in_use, " in use, ", metrics.pages_cached, " cached"));
  }
  Client client(server_.http.port(), stopping_);
  Random random(options_.seed);
  try {
    server_.model.fail_next = false;
    if (!probe(server_, client, random)) fail("the last request got no answer");
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (!server_.stop(Seconds(10))) fail("an answer was cut when the server stopped");
}

bool Round::run(bool stop_early) {
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < options_.threads; ++i) threads.emplace_back([this, i] { client(i); });
    if (stop_early) stop_in_between();
  }
  if (stop_early) {
    metrics = server_.scheduler.metrics();
    if (server_.http.connections() != 0) fail("a connection is left after the stop");
    if (metrics.pages_in_use != metrics.pages_cached) fail("pages are left after the stop");
  } else {
    check_rest();
  }
  for (const std::string& line : server_.logged) fail(concat("the server logged: ", line));
  return !failed_;
}

// ---- All of it

void report(const Options& options, const Counts& counts, const MetricsSnapshot& sums, std::uint64_t servers,
            double seconds) {
  std::cout << "gsa_serve_fuzz: " << counts.requests << " requests, seed " << options.seed << ", "
            << options.threads << " clients, " << servers << " servers, "
            << static_cast<std::int64_t>(seconds) << " s, "
            << static_cast<std::int64_t>(static_cast<double>(counts.requests) / seconds) << " a second\n"
            << "  right " << counts.levels[0] << ", wrong JSON " << counts.levels[1] << ", wrong HTTP "
            << counts.levels[2] << ", wrong bytes " << counts.levels[3] << "\n  connections: cut off "
            << counts.cut << ", hung up " << counts.hung_up << ", reading nothing " << counts.stalled
            << ", in pieces " << counts.pieces << ", several requests ahead " << counts.pipelined
            << ", made again " << counts.again << "\n  right texts " << counts.probes << " (put off "
            << counts.probes_put_off << " times)\n  statuses:";
  for (const auto& [status, n] : counts.statuses) std::cout << ' ' << status << " x " << n;
  std::cout << "\n  texts: finished " << sums.finished_stop + sums.finished_length << ", cancelled "
            << sums.cancelled << ", failed " << sums.failed << ", refused " << sums.refused
            << "; pre-emptions " << sums.preemptions << ", pages evicted " << sums.evicted_pages
            << ", prompt tokens from the prefix cache " << sums.prefix_hit_tokens << std::endl;
}

void add(MetricsSnapshot& sums, const MetricsSnapshot& more) {
  sums.finished_stop += more.finished_stop;
  sums.finished_length += more.finished_length;
  sums.cancelled += more.cancelled;
  sums.failed += more.failed;
  sums.refused += more.refused;
  sums.preemptions += more.preemptions;
  sums.evicted_pages += more.evicted_pages;
  sums.prefix_hit_tokens += more.prefix_hit_tokens;
}

int fuzz(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  Counts counts;
  MetricsSnapshot sums;
  std::uint64_t servers = 0, next = options.first;
  bool clean = true;
  while (clean && counts.requests < options.requests) {
    const std::int64_t requests = std::min(kRound, options.requests - counts.requests);
    Round round(options, servers, next, requests);
    clean = round.run(/*stop_early=*/servers % 2 == 1);
    counts.add(round.counts);
    add(sums, round.metrics);
    next = round.next();
    if (++servers % 10 == 0)
      std::cout << servers << " servers, " << counts.requests << " requests so far" << std::endl;
  }
  const Seconds seconds = std::chrono::steady_clock::now() - begin;
  report(options, counts, sums, servers, seconds.count());
  std::cout << (clean ? "gsa_serve_fuzz: nothing found" : "gsa_serve_fuzz: FAILED, see above") << std::endl;
  return clean ? 0 : 1;
}

int usage() {
  std::cerr << "usage: gsa_serve_fuzz [--requests N] [--seed S] [--threads T] [--first I]\n";
  return 2;
}

int main_checked(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    const unsigned long long value = std::stoull(words[i + 1]);
    if (words[i] == "--requests") {
      options.requests = static_cast<std::int64_t>(value);
    } else if (words[i] == "--seed") {
      options.seed = value;
    } else if (words[i] == "--first") {
      options.first = value;
    } else if (words[i] == "--threads" && value >= 1 && value <= kMaxThreads) {
      options.threads = value;
    } else {
      return usage();
    }
  }
  if (words.size() % 2 != 0) return usage();
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(tell_where);
  return fuzz(options);
}

}  // namespace
}  // namespace gsa::serve_fuzz

int main(int argc, char** argv) {
  try {
    return gsa::serve_fuzz::main_checked({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "gsa_serve_fuzz: " << error.what() << '\n';
    return 1;
  }
}
