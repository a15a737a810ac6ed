// The API that clients of OpenAI's know, over a scheduler: requests in, answers and events out. No torch header.
//
//   GET  /v1/models, /v1/models/{id}      POST /v1/completions, /v1/chat/completions
//   POST /tokenize, /detokenize           as vLLM has them
//   GET  /health, /metrics                without a key
//   POST /gsa/look                        {"tokens": [...], "position": i}: where the model looked (infer/core/look.h)
//   GET  /                                the page that shows it (serve/core/page.html), without a key
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "serve/core/api_options.h"
#include "serve/core/scheduler.h"
#include "serve/http/http_server.h"

namespace gsa::serve {

class Api {
 public:
  // All must outlive it.
  Api(Scheduler& scheduler, const data::Tokenizer& tokenizer, ApiOptions options);
  ~Api();

  // A handler for HttpServer: routes, checks the key, parses, submits; answers by reply, now or as tokens come. What
  // is under way needs the scheduler, not the Api.
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply);
  // What refuses a request by its head: route, method, host, origin, key, type. For HttpOptions::check; any thread.
  std::optional<HttpResponse> check(const HttpRequest& head) const;
  // GET /health answers 503 from now on, so that nobody sends more, and so do texts that fail: they are cut.
  void stopping();
  // Makes what is still to be made of answers; the scheduler has ended.
  void drain();
  // An error in OpenAI's form, for what never reaches handle().
  static HttpResponse refusal(int status, const std::string& message);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gsa::serve
