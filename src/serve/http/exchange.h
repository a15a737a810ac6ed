// What passes between a handler's reply, which lives in any thread, and the connection, which lives in one.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/http/http_server.h"

namespace gsa::serve {

class Exchange {
 public:
  // wake: has the connection take() what is new. From any thread, at any time.
  explicit Exchange(std::function<void()> wake) : wake_(std::move(wake)) {}

  // ---- The reply's side.
  void send(HttpResponse response);
  void begin(HttpHeaders headers);
  void write(std::string data);
  void end();
  void on_gone(std::function<void()> gone);
  void abandon();  // nothing more will come

  // ---- The connection's side.
  struct News {
    std::optional<HttpResponse> response;
    std::optional<HttpHeaders> begin;
    std::string data;
    bool ended = false;
    bool abandoned = false;  // ended without having been answered
  };
  News take();
  void lost();  // the client is gone

 private:
  enum class State { fresh, streaming, ended };

  template <typename Change>
  void change(Change change);

  std::function<void()> wake_;
  std::mutex mutex_;
  State state_ = State::fresh;
  bool gone_ = false;
  bool abandoned_ = false;  // the rest of what a reply says is of no use
  bool woken_ = false;      // the connection has yet to take(): several writes make one
  News news_;
  std::function<void()> on_gone_;
};

std::shared_ptr<HttpReply> make_reply(std::shared_ptr<Exchange> exchange);

}  // namespace gsa::serve
