// Requests out of a connection's bytes, by Beast's parser, and which of them are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "serve/http/http_server.h"
#include "serve/http/response_text.h"

namespace gsa::serve {

class RequestReader {
 public:
  RequestReader(std::int64_t max_header, std::int64_t max_body);
  ~RequestReader();

  enum class Progress {
    more,            // bytes are wanted
    head,            // the head has come, a body follows: read() goes on with it
    wants_continue,  // the client waits for "100 Continue" before it sends the body
    done,
    refused  // the connection is of no more use: where the next request begins is unknown
  };
  // Takes off the input's front what it has understood.
  Progress read(std::string& input);

  // After head.
  const HttpRequest& head() const { return request_; }
  // Of the request so far.
  std::int64_t body_bytes() const;
  void drop();  // what has come of the request
  // After done. The next read() begins another request.
  HttpRequest take();
  // As far as it is known. keep_alive: the client would keep the connection.
  AnswerForm form() const { return form_; }
  // After refused.
  int status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  struct Parser;

  Progress refuse(int status, std::string message);
  Progress read_head(std::string& input);
  Progress read_body(std::string& input);
  Progress check_head();

  std::int64_t max_header_, max_body_;
  std::unique_ptr<Parser> parser_;
  std::int64_t head_bytes_ = 0;
  HttpRequest request_;
  AnswerForm form_;
  bool waits_ = false;  // the client waits for "100 Continue"
  int status_ = 0;
  std::string message_;
};

}  // namespace gsa::serve
