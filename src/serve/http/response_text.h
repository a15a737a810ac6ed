// Answers as the bytes that go over the wire.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "serve/http/http_server.h"

namespace gsa::serve {

// What an answer has to know of its request.
struct AnswerForm {
  bool http_1_0 = false;
  bool head = false;        // HEAD: no body follows
  bool keep_alive = false;  // the connection stays
};

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string http_date(std::time_t time);

// Throws gsa::Error for a header field that would break the head apart.
void check_fields(const HttpHeaders& headers);

std::string response_text(const HttpResponse& response, const AnswerForm& form);
std::string stream_head(const HttpHeaders& headers, const AnswerForm& form);
// The text with a chunk of that data behind it.
void append_chunk(std::string& text, std::string_view data);

}  // namespace gsa::serve
