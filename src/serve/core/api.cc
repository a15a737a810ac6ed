#include "serve/core/api.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <span>

#include "infer/core/look_json.h"
#include "infer/core/text_stream.h"
#include "serve/core/completion_answer.h"
#include "serve/core/completion_call.h"
#include "serve/core/completion_request.h"
#include "serve/core/page.h"
#include "serve/core/worker.h"

namespace gsa::serve {
namespace {

using Reply = std::shared_ptr<HttpReply>;

HttpResponse json_response(const OrderedJson& json, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = text_of(json);
  return response;
}

// Takes as long for a wrong key as for the right one, whichever byte is wrong.
bool same(std::string_view key, std::string_view given) {
  unsigned difference = key.size() == given.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(expected ^ given[i]);
  }
  return difference == 0;
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// "%2F" to "/": clients write names of models so. What is no escape stays.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* end = text.data() + std::min(i + 3, text.size());
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, end, byte, 16).ptr == end) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// "http://127.0.0.1:8000" to "127.0.0.1:8000"; empty where there is no scheme.
std::string without_scheme(const std::string& origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string::npos ? "" : origin.substr(scheme + 3);
}

// "Model.example:443" to "model.example".
std::string without_port(const std::string& host) {
  if (host.starts_with('[')) return lower(host.substr(0, host.find(']') + 1));
  return lower(host.substr(0, host.find(':')));
}

// "127.0.0.1:8000", "[::1]", "localhost": nothing that a site could let point to this machine.
bool names_this_machine(const std::string& host_and_port) {
  const std::string host = without_port(host_and_port);
  if (host.starts_with('[')) return host.ends_with(']');
  return host == "localhost" || (!host.empty() && host.find_first_not_of("0123456789.") == std::string::npos);
}

// A base URL that ends in a slash, or has one too many.
std::string plain_path(std::string path) {
  while (path.starts_with("//")) path.erase(0, 1);
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

HttpResponse response_of(const RequestError& error) {
  HttpResponse response =
      json_response(error_json(error.status(), error.what(), error.param(), error.code()), error.status());
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

// More texts than may wait are refused by the field that asks for them.
ApiOptions within(ApiOptions options, const Scheduler& scheduler) {
  options.max_texts = std::min(options.max_texts, scheduler.max_queue());
  options.max_prompts = std::min(options.max_prompts, options.max_texts);
  return options;
}

void send_look(const infer::Look& look, HttpReply& reply) {
  HttpResponse response;
  try {
    response = json_response(infer::look_json(look));
  } catch (const std::exception& error) {  // numbers that are not finite: the model's fault
    response = Api::refusal(500, error.what());
  }
  reply.send(std::move(response));
}

}  // namespace

class Api::Impl {
 public:
  Impl(Scheduler& scheduler, const data::Tokenizer& tokenizer, ApiOptions options)
      : scheduler_(scheduler), tokenizer_(tokenizer), options_(within(std::move(options), scheduler)) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    started_ = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  }
  ~Impl() { worker_->close(); }

  void handle(HttpRequest request, const Reply& reply);
  std::optional<HttpResponse> check(const HttpRequest& request) const;
  void stopping() { *stopping_ = true; }
  void drain() { worker_->close(); }

 private:
  struct Route {
    const char* method;
    const char* path;  // one that ends in '/', but "/": what begins with it
    bool open;         // without a key
    void (Impl::*run)(const HttpRequest&, const Reply&);

    bool reads() const { return method == std::string_view("GET"); }
    std::string allow() const { return reads() ? "GET, HEAD, OPTIONS" : "POST, OPTIONS"; }
  };
  static const std::vector<Route>& routes();
  static const Route* route_of(const std::string& path);

  void check_host(const HttpRequest& request) const;
  void check_origin(const HttpRequest& request) const;
  void check_key(const HttpRequest& request) const;
  void check_type(const HttpRequest& request) const;
  void check_tokenized(const char* param, std::size_t bytes) const;
  RequestContext context() const {
    return {options_, tokenizer_, scheduler_.max_length(), scheduler_.facts().vocab_size, longest_token_};
  }
  CallHost call_host() const { return {scheduler_, tokenizer_, options_.model, worker_, stopping_}; }
  OrderedJson model_json() const;
  OrderedJson strings_of(std::span<const std::int64_t> ids) const;

  void models(const HttpRequest& request, const Reply& reply);
  void model(const HttpRequest& request, const Reply& reply);
  void completions(const HttpRequest& request, const Reply& reply);
  void chat(const HttpRequest& request, const Reply& reply);
  void answer(const HttpRequest& request, CompletionRequest completion, const Reply& reply);
  void tokenize(const HttpRequest& request, const Reply& reply);
  void detokenize(const HttpRequest& request, const Reply& reply);
  void health(const HttpRequest& request, const Reply& reply);
  void metrics(const HttpRequest& request, const Reply& reply);
  void look(const HttpRequest& request, const Reply& reply);
  void page(const HttpRequest& request, const Reply& reply);

  Scheduler& scheduler_;
  const data::Tokenizer& tokenizer_;
  const ApiOptions options_;
  const std::int64_t longest_token_ = longest_token(tokenizer_);
  std::int64_t started_;
  // What is under way may outlive the Api.
  const std::shared_ptr<std::atomic<bool>> stopping_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<Worker> worker_ = std::make_shared<Worker>();
};

const std::vector<Api::Impl::Route>& Api::Impl::routes() {
  static const std::vector<Route> all = {
      {"GET", "/v1/models", false, &Impl::models},
      {"GET", "/v1/models/", false, &Impl::model},
      {"POST", "/v1/completions", false, &Impl::completions},
      {"POST", "/v1/chat/completions", false, &Impl::chat},
      {"POST", "/tokenize", false, &Impl::tokenize},
      {"POST", "/detokenize", false, &Impl::detokenize},
      {"GET", "/health", true, &Impl::health},
      {"GET", "/metrics", true, &Impl::metrics},
      {"POST", "/gsa/look", false, &Impl::look},
      {"GET", "/", true, &Impl::page},
  };
  return all;
}

const Api::Impl::Route* Api::Impl::route_of(const std::string& asked) {
  const std::string path = plain_path(asked);
  const Route* found = nullptr;
  for (const Route& route : routes()) {
    const std::string_view own = route.path;
    const bool prefix = own.size() > 1 && own.ends_with('/');
    const bool below = prefix && path.size() > own.size() && path.starts_with(own);
    if (below || (!prefix && path == own)) found = &route;
  }
  return found;
}

std::optional<HttpResponse> Api::Impl::check(const HttpRequest& request) const {
  const Route* route = route_of(request.path);
  if (route == nullptr) {
    return Api::refusal(404, concat("Unknown path: ", request.method, " ", plain_path(request.path)));
  }
  // The HTTP server keeps a body back from who asks for the head.
  const bool allowed = request.method == route->method || request.method == "OPTIONS" ||
                       (route->reads() && request.method == "HEAD");
  if (!allowed) {
    HttpResponse response = Api::refusal(
        405, concat("Method ", request.method, " is not allowed for ", plain_path(request.path)));
    response.headers.emplace_back("Allow", route->allow());
    return response;
  }
  try {
    check_host(request);
    if (request.method == "OPTIONS") return std::nullopt;
    check_origin(request);
    if (!route->open) check_key(request);
    if (request.method == "POST") check_type(request);
  } catch (const RequestError& error) {
    return response_of(error);
  }
  return std::nullopt;
}

void Api::Impl::handle(HttpRequest request, const Reply& reply) {
  if (auto refused = check(request)) return reply->send(std::move(*refused));
  const Route& route = *route_of(request.path);
  if (request.method == "OPTIONS") {
    // No CORS headers, whatever the Origin: a page of another site must not use a server on its visitor's machine. The
    // server's own page needs none.
    return reply->send({.status = 204, .type = "", .body = "", .headers = {{"Allow", route.allow()}}});
  }
  request.path = plain_path(std::move(request.path));
  (this->*route.run)(request, reply);
}

// What comes without the field is no browser's.
void Api::Impl::check_host(const HttpRequest& request) const {
  if (!options_.check_host || request.host.empty() || names_this_machine(request.host)) return;
  const auto is_of = [&](const std::string& origin) {
    return without_port(without_scheme(origin)) == without_port(request.host);
  };
  if (std::any_of(options_.origins.begin(), options_.origins.end(), is_of)) return;
  throw RequestError(403,
                     concat("Host: expected an address, localhost or the host of an --origin, got ",
                            request.host, " (with --host the server takes any)"),
                     "", "host_not_allowed");
}

// A site may let its own name point at this machine (DNS rebinding): to a browser its page then is the server's own. It
// cannot do so with an address or "localhost".
void Api::Impl::check_origin(const HttpRequest& request) const {
  if (request.origin.empty() || names_this_machine(without_scheme(request.origin))) return;
  const std::vector<std::string>& known = options_.origins;
  if (std::find(known.begin(), known.end(), request.origin) != known.end()) return;
  throw RequestError(403, concat("Origin: expected a page of this server, got one of ", request.origin), "",
                     "origin_not_allowed");
}

void Api::Impl::check_key(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return;
  const std::size_t space = request.authorization.find(' ');
  const bool bearer = space != std::string::npos && lower(request.authorization.substr(0, space)) == "bearer";
  const std::string given = bearer ? request.authorization.substr(space + 1) : "";
  bool known = false;
  for (const std::string& key : options_.api_keys) known = same(key, given) || known;
  if (known && !given.empty()) return;
  throw RequestError(401,
                     given.empty()
                         ? "You didn't provide an API key: expected the header Authorization: Bearer KEY"
                         : "Incorrect API key provided",
                     "", "invalid_api_key");
}

// Browsers let a page of any site POST plain text, forms and untyped bytes without asking; JSON they send only where
// CORS headers allow it, and there are none. Programs, which send no Origin, may call it what they like: curl -d says
// it is a form.
void Api::Impl::check_type(const HttpRequest& request) const {
  std::string type = lower(request.content_type.substr(0, request.content_type.find(';')));
  while (type.ends_with(' ')) type.pop_back();
  if (type == "application/json" || request.origin.empty()) return;
  throw RequestError(
      415,
      concat("Content-Type: expected application/json, got ", type.empty() ? "none" : concat("'", type, "'")),
      "", "unsupported_media_type");
}

OrderedJson Api::Impl::model_json() const {
  return {{"id", options_.model},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "gsa"},
          {"root", options_.model},
          {"parent", nullptr},
          {"max_model_len", scheduler_.max_length()}};
}

void Api::Impl::models(const HttpRequest&, const Reply& reply) {
  reply->send(json_response({{"object", "list"}, {"data", OrderedJson::array({model_json()})}}));
}

void Api::Impl::model(const HttpRequest& request, const Reply& reply) {
  const Json name = {{"model", unescaped(request.path.substr(request.path.find("/models/") +
                                                             std::string_view("/models/").size()))}};
  check_model(Fields(name), options_);
  reply->send(json_response(model_json()));
}

void Api::Impl::completions(const HttpRequest& request, const Reply& reply) {
  answer(request, parse_completion(request.body, context()), reply);
}

void Api::Impl::chat(const HttpRequest& request, const Reply& reply) {
  answer(request, parse_chat(request.body, context()), reply);
}

// Latencies count from when the request was there: it has waited for a thread, and has been tokenised.
void Api::Impl::answer(const HttpRequest& request, CompletionRequest completion, const Reply& reply) {
  completion.text.arrived = request.received;
  answer_completion(call_host(), std::move(completion), reply);
}

void Api::Impl::check_tokenized(const char* param, std::size_t bytes) const {
  if (static_cast<std::int64_t>(bytes) <= options_.max_tokenized) return;
  bad_value(param, concat("a text of at most ", options_.max_tokenized, " bytes"), "more");
}

void Api::Impl::tokenize(const HttpRequest& request, const Reply& reply) {
  const Json json = parse_body(request.body, options_.json);
  const Fields fields(json);
  check_model(fields, options_);
  std::vector<std::int64_t> ids;
  if (fields.find("messages") != nullptr) {
    if (fields.find("prompt") != nullptr) bad_value("messages", "them or a prompt", "both");
    fields.refuse_unless("add_generation_prompt", {true}, "chats are tokenised as they are answered");
    fields.refuse_unless("add_special_tokens", {false}, "the chat template brings its own");
    const std::vector<ChatMessage> messages = parse_messages(fields);
    check_tokenized("messages", bytes_of_messages(messages));
    const ChatPrompt prompt = chat_prompt(options_.chat, messages, tokenizer_);
    ids.assign(prompt.ids.begin(), prompt.ids.end());
  } else {
    fields.required("prompt", "a string");
    const std::string text = *fields.string("prompt");
    check_tokenized("prompt", text.size());
    ids = ids_of_text(text, fields.boolean("add_special_tokens").value_or(true), tokenizer_);
  }
  OrderedJson strings;
  if (fields.boolean("return_token_strs").value_or(false)) strings = strings_of(ids);
  reply->send(json_response({{"count", ids.size()},
                             {"max_model_len", scheduler_.max_length()},
                             {"tokens", ids},
                             {"token_strs", std::move(strings)}}));
}

// The text of each token by itself.
OrderedJson Api::Impl::strings_of(std::span<const std::int64_t> ids) const {
  OrderedJson strings = OrderedJson::array();
  for (const std::int64_t id : ids) {
    infer::Utf8Stream stream;
    std::string text = stream.push(tokenizer_.bytes_of(static_cast<std::int32_t>(id)));
    strings.push_back(text + stream.finish());
  }
  return strings;
}

void Api::Impl::detokenize(const HttpRequest& request, const Reply& reply) {
  const Json json = parse_body(request.body, options_.json);
  const Fields fields(json);
  check_model(fields, options_);
  const Json& list = fields.required("tokens", "a list of token ids");
  std::vector<std::int64_t> ids;
  if (list != Json::array()) ids = parse_ids(list, "tokens", context());
  std::size_t bytes = 0;
  for (const std::int64_t id : ids) {
    check_tokenized("tokens", bytes += tokenizer_.bytes_of(static_cast<std::int32_t>(id)).size());
  }
  infer::Utf8Stream stream;
  std::string text = stream.push(tokenizer_.decode(std::vector<std::int32_t>(ids.begin(), ids.end())));
  OrderedJson answer = {{"prompt", text + stream.finish()}};
  if (fields.boolean("return_token_strs").value_or(false)) answer["token_strs"] = strings_of(ids);
  reply->send(json_response(answer));
}

void Api::Impl::health(const HttpRequest&, const Reply& reply) {
  if (*stopping_) return reply->send(Api::refusal(503, "The server is stopping"));
  if (const std::string trouble = scheduler_.trouble(); !trouble.empty()) {
    return reply->send(Api::refusal(503, trouble));
  }
  reply->send(json_response({{"status", "ok"}}));
}

void Api::Impl::metrics(const HttpRequest&, const Reply& reply) {
  reply->send({.status = 200,
               .type = "text/plain; version=0.0.4; charset=utf-8",
               .body = prometheus_text(scheduler_.metrics(), options_.model)});
}

void Api::Impl::look(const HttpRequest& request, const Reply& reply) {
  const Json json = parse_body(request.body, options_.json);
  const Fields fields(json);
  check_model(fields, options_);
  std::vector<std::int64_t> tokens =
      parse_ids(fields.required("tokens", "a list of token ids"), "tokens", context());
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count > scheduler_.max_length()) {
    throw RequestError(400,
                       concat("'tokens': expected at most ", scheduler_.max_length(), " tokens, got ", count),
                       "tokens", "context_length_exceeded");
  }
  fields.required("position", "the position of a token");
  const std::int64_t position = *fields.integer("position", 0, count - 1);
  const TextId id = scheduler_.look(
      std::move(tokens), position,
      [reply, worker = worker_](const infer::Look& look) {
        worker->post([reply, look] { send_look(look, *reply); });
      },
      [reply, stopping = stopping_](const std::string& message) {
        reply->send(Api::refusal(*stopping ? 503 : 500, message));
      });
  reply->on_gone([&scheduler = scheduler_, id] { scheduler.cancel(id); });  // at once, if it is gone already
}

// Frames of other sites could make a visitor click in it.
void Api::Impl::page(const HttpRequest&, const Reply& reply) {
  reply->send({.status = 200,
               .type = "text/html; charset=utf-8",
               .body = page_html(),
               .headers = {{"X-Frame-Options", "DENY"}, {"X-Content-Type-Options", "nosniff"}}});
}

Api::Api(Scheduler& scheduler, const data::Tokenizer& tokenizer, ApiOptions options)
    : impl_(std::make_unique<Impl>(scheduler, tokenizer, std::move(options))) {}

Api::~Api() = default;

std::optional<HttpResponse> Api::check(const HttpRequest& head) const { return impl_->check(head); }

void Api::stopping() { impl_->stopping(); }
void Api::drain() { impl_->drain(); }

HttpResponse Api::refusal(int status, const std::string& message) {
  return json_response(error_json(status, message), status);
}

void Api::handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  HttpResponse response;
  try {
    return impl_->handle(std::move(request), reply);
  } catch (const RequestError& error) {
    response = response_of(error);
  } catch (const QueueFull& error) {
    response = json_response(error_json(429, error.what(), "", "queue_full"), 429);
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after()));
  } catch (const Stopping& error) {
    response = refusal(503, error.what());
  } catch (const Error& error) {
    // Of the scheduler, about a request that cannot be; what else is wrong with one was found before.
    response = refusal(400, error.what());
  }
  reply->send(std::move(response));
}

}  // namespace gsa::serve
