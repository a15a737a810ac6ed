// HTTP/1.1 by Boost.Beast: connections, limits, streams of server-sent events. Knows nothing of what is served. No
// torch header, and Boost's headers only in its sources.
//
// One thread holds all connections; handlers run in `workers` others. A connection serves one request at a time: what
// a client sends ahead waits. A read is always pending, so that a client that hangs up is noticed at once, also while
// nothing is being written. The end of a client's stream counts as a hang-up, half-closed sockets included
// (shutdown(SHUT_WR), `nc -N`): who wants an answer keeps its side open until it has come.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gsa::serve {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query, as it came: percent signs are not decoded
  std::string query;
  std::string authorization, content_type, origin;  // header fields; empty where there is none
  std::string body;
  std::string host = {};
  std::chrono::steady_clock::time_point received = {};  // when all of it had come
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body;          // is left out in answers to HEAD
  HttpHeaders headers = {};  // more of them
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // an IPv4 or IPv6 address, or a name
  std::uint16_t port = 8000;       // 0: any that is free
  std::int64_t max_connections = 2048;
  std::int64_t max_body = std::int64_t{32} << 20;  // bytes
  // Bytes of all bodies together that are being received or wait for the end of their handlers; at least max_body.
  std::int64_t max_bodies = std::int64_t{256} << 20;
  std::int64_t max_header = std::int64_t{16} << 10;  // bytes of a request's head
  // Bytes that may pile up in a stream behind what is being sent; a client that is further behind when more comes
  // counts as gone. An event may be larger.
  std::int64_t max_unsent = std::int64_t{8} << 20;
  std::chrono::milliseconds idle = std::chrono::seconds(75);     // a connection without a request
  std::chrono::milliseconds receive = std::chrono::seconds(60);  // for a request to come in whole
  std::chrono::milliseconds send = std::chrono::seconds(60);  // for a client to take any of what was written
  int workers = 2;                                            // threads in which handlers run
  // Paths whose handler is quick ("/health"): a thread of their own runs it, so that they wait for nobody's work.
  std::vector<std::string> quick = {};
  // Of a request whose head has come and whose body has not: the answer that refuses it. It is given before "100
  // Continue", and the connection then closes: nobody need receive what would be refused anyway. Runs on the thread
  // that holds the connections, and must be quick. Requests without a body go to the handler.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> check = {};
  // What an operator should know and no client is told: a handler that threw, no file descriptor left. From any
  // thread of the server.
  std::function<void(const std::string&)> log = {};
};

// The way back to one client, from any thread; after the client or the server is gone, all of it does nothing. One of
// send() or begin() ... end(). One that is let go of without an answer sends a 500 by Refuse; a stream that has begun
// is closed without its last chunk, so that clients see that it is not whole.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(HttpResponse response) = 0;
  // A stream of server-sent events, in chunks: begin() the head, write() "data: ...\n\n" lines, end(). To clients of
  // HTTP/1.0 without chunks, until the connection closes.
  virtual void begin(HttpHeaders headers = {}) = 0;
  virtual void write(std::string data) = 0;
  virtual void end() = 0;
  // Called once, on a thread of the server, if the client hangs up or takes nothing for too long before send() or
  // end(); at once, on the caller's thread, if it has already. Must not throw or block. What it owns is let go of when
  // the answer has ended. A second one takes the place of the first.
  virtual void on_gone(std::function<void()> gone) = 0;
};

// A port that is taken but not yet listened at: a program that has much to load first says at once that it cannot have
// it. Clients are refused until HttpServer::start(). Another program can take the port until then, too; who listens
// first has it.
class BoundPort {
 public:
  // Throws gsa::Error where it cannot (somebody listens there, no such address).
  explicit BoundPort(const HttpOptions& options);
  BoundPort(BoundPort&&) noexcept;
  BoundPort& operator=(BoundPort&&) = delete;
  ~BoundPort();

 private:
  friend class HttpServer;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class HttpServer {
 public:
  // Runs in a worker's thread; what it throws becomes a 500 answer without details, or the end of a stream.
  using Handler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;
  // The answer to what never reaches the handler (too large, malformed, too many connections): status and message in.
  // Called on the server's threads.
  using Refuse = std::function<HttpResponse(int status, const std::string& message)>;

  HttpServer(BoundPort port, const HttpOptions& options, Handler handler, Refuse refuse);
  HttpServer(const HttpOptions& options, Handler handler, Refuse refuse);  // with BoundPort(options)
  ~HttpServer();                                                           // shut_down(0)

  std::uint16_t port() const;
  void start();  // listens, in threads of its own; once. Throws gsa::Error where it cannot
  // Accepts no more; idle connections are closed, also those whose request has not come in whole, and those with an
  // answer under way when it has ended.
  void stop_accepting();
  // Waits until all answers have ended and were taken, at most so long, then cuts what is left. True: no answer was
  // cut. Waits for handlers that are running however long they take. Not from a thread of the server.
  bool shut_down(std::chrono::duration<double> grace);
  std::int64_t connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gsa::serve
