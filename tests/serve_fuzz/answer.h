// Answers of the server, read strictly: whatever a client sends, what comes back must be right.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gsa/error.h"

namespace gsa::serve_fuzz {

// Something is wrong with the server.
class Finding : public Error {
 public:
  using Error::Error;
};

struct Answer {
  int status = 0;
  std::string type;  // Content-Type
  std::string body;  // without its chunks
  bool closes = false;
  bool retry_after = false;
  std::size_t size = 0;  // bytes that it took
};

enum class Body { present, absent, unknown };  // absent: to HEAD; unknown: to what may have been HEAD

// The first answer in the bytes, "100 Continue" included; none while it is not whole. closed: nothing more will come.
// Throws Finding where it is malformed.
std::optional<Answer> first_answer(std::string_view bytes, bool closed, Body body);

// Checks status and body: JSON parses, errors have OpenAI's form, streams end. stopping: the server is going down.
void check_answer(const Answer& answer, bool stopping);

// Whether a pass of the model failed, which the fuzzer asks of it now and then.
bool model_failed(const Answer& answer);
// Whether the text failed because the server is going down.
bool shut_down(const Answer& answer);

}  // namespace gsa::serve_fuzz
