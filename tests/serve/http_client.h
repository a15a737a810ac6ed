// A client of raw sockets and a server on the loopback address, for tests of the HTTP server.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "serve/http/http_server.h"

namespace gsa::serve {

constexpr std::chrono::seconds patience(60);  // before a test that hangs fails

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Counts what other threads do.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  bool reaches(int wanted) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return count_ >= wanted; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int count_ = 0;
};

// Replies that a handler leaves to the test.
class Replies {
 public:
  void push(std::shared_ptr<HttpReply> reply) {
    const std::lock_guard lock(mutex_);
    replies_.push_back(std::move(reply));
    changed_.notify_all();
  }
  std::shared_ptr<HttpReply> pop() {  // null: none came
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, [&] { return !replies_.empty(); })) return nullptr;
    std::shared_ptr<HttpReply> reply = std::move(replies_.front());
    replies_.erase(replies_.begin());
    return reply;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<HttpReply>> replies_;
};

struct Answer {
  int status = 0;    // 0: none came
  std::string head;  // with its status line
  std::string body;
  bool whole = false;  // as long as its head says, or its last chunk came
};

class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port, int receive_buffer = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const timeval limit = {.tv_sec = patience.count(), .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    const int no_delay = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof(no_delay));
    if (port != 0) connected = connect(port);
  }
  HttpClient(HttpClient&& other) noexcept
      : connected(other.connected),
        socket_(std::exchange(other.socket_, -1)),
        input_(std::move(other.input_)) {}
  ~HttpClient() { close(); }

  bool connect(std::uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  // False: the other side has closed.
  bool send(const std::string& text) {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<std::size_t>(n);
    }
    return true;
  }

  // One answer; to HEAD without a body.
  Answer receive(bool head_only = false) {
    Answer answer;
    const std::size_t end = find("\r\n\r\n");
    if (end == std::string::npos) return answer;
    answer.head = take(end + 4);
    answer.status = std::atoi(answer.head.c_str() + 9);
    if (head_only || answer.status == 204 || answer.status / 100 == 1) {
      answer.whole = true;
    } else if (answer.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      receive_chunks(answer);
    } else if (const std::size_t at = answer.head.find("Content-Length: "); at != std::string::npos) {
      const auto size = static_cast<std::size_t>(std::atoll(answer.head.c_str() + at + 16));
      while (input_.size() < size && more()) {
      }
      answer.whole = input_.size() >= size;
      answer.body = take(size);
    } else {
      answer.body = rest();
    }
    return answer;
  }

  Answer ask(const std::string& text) {
    send(text);
    return receive();
  }

  // What comes until the other side closes.
  std::string rest() {
    while (more()) {
    }
    return take(input_.size());
  }

  // The text up to and with that.
  std::string until(const std::string& text) {
    const std::size_t at = find(text);
    return at == std::string::npos ? "" : take(at + text.size());
  }

  void half_close() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void reset() {  // closes by RST
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close();
  }
  int descriptor() const { return socket_; }

  bool connected = false;

 private:
  bool more() {
    char buffer[4096];
    const ssize_t n = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    input_.append(buffer, static_cast<std::size_t>(n));
    return true;
  }

  std::size_t find(const std::string& text) {
    for (;;) {
      const std::size_t at = input_.find(text);
      if (at != std::string::npos || !more()) return at;
    }
  }

  std::string take(std::size_t bytes) {
    std::string taken = input_.substr(0, bytes);
    input_.erase(0, bytes);
    return taken;
  }

  void receive_chunks(Answer& answer) {
    for (;;) {
      const std::string line = until("\r\n");
      if (line.empty()) return;
      const std::size_t size = std::strtoull(line.c_str(), nullptr, 16);
      while (input_.size() < size + 2 && more()) {
      }
      if (input_.size() < size + 2) return;
      answer.body += take(size);
      if (take(2) != "\r\n") return;
      answer.whole = size == 0;
      if (answer.whole) return;
    }
  }

  int socket_;
  std::string input_;
};

inline HttpResponse plain_refusal(int status, const std::string& message) {
  return {.status = status, .type = "text/plain", .body = "refused: " + message};
}

inline HttpOptions test_options() {
  HttpOptions options;
  options.port = 0;
  return options;
}

// Answers what it was asked: "GET /path?query body".
inline void echo(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  reply->send({.type = "text/plain",
               .body = request.method + " " + request.path + "?" + request.query + " " + request.body});
}

inline std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"; }

inline std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

class TestServer : public HttpServer {
 public:
  explicit TestServer(Handler handler = echo, const HttpOptions& options = test_options())
      : HttpServer(options, std::move(handler), plain_refusal) {
    start();
  }
};

}  // namespace gsa::serve
