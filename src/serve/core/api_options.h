// How a server answers, and what it refuses. No torch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/core/chat_template.h"
#include "serve/core/json_fields.h"

namespace gsa::serve {

struct ApiOptions {
  std::string model;                  // its name, as clients see it
  std::vector<std::string> api_keys;  // empty: everybody may
  // Where a proxy shows the server ("https://model.example"): the page there may use it, as the server's own may.
  std::vector<std::string> origins;
  // Requests must name this machine in Host: by an address, as localhost, or as one of the origins. A site may let its
  // own name point here, and to a browser the answers would be that site's own (DNS rebinding).
  bool check_host = false;
  ChatTemplate chat = ChatTemplate::plain;
  std::int64_t default_max_tokens = 16;  // of completions; of chats: what the context leaves
  // limits on a request
  JsonLimits json;
  std::int64_t max_prompts = 256;  // of a completion
  std::int64_t max_n = 128;
  std::int64_t max_texts = 256;        // prompts times n
  std::int64_t max_stops = 16;         // strings, and
  std::int64_t max_stop_bytes = 1024;  // bytes of each
  std::int64_t max_logprobs = 20;
  std::int64_t max_echoed_logprobs = 4 << 20;  // numbers in all echoes of an answer
  // Bytes of a text that is tokenised or put together for its own sake: no context bounds it.
  std::int64_t max_tokenized = 8 << 20;
};

}  // namespace gsa::serve
