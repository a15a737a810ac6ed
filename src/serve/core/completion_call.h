// One completion or chat on its way: its texts, and the answer that they share. No torch header.
#pragma once

#include <atomic>
#include <memory>

#include "serve/core/completion_request.h"
#include "serve/core/worker.h"
#include "serve/http/http_server.h"

namespace gsa::serve {

// What all calls of an API use.
struct CallHost {
  Scheduler& scheduler;              // must outlive the texts,
  const data::Tokenizer& tokenizer;  // and so must this
  std::string model;
  std::shared_ptr<Worker> worker;  // makes what is large
  std::shared_ptr<const std::atomic<bool>> stopping;
};

// Submits the request's texts and answers by reply as they come: all at once, or as a stream. A client that hangs up
// takes its texts with it. Throws what Scheduler::submit() throws, and has then answered nothing.
void answer_completion(const CallHost& host, CompletionRequest request, std::shared_ptr<HttpReply> reply);

}  // namespace gsa::serve
