// One client's connection. All of it runs on the thread of the server that holds connections; Boost's headers are for
// the sources of this folder alone.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "serve/http/body_budget.h"
#include "serve/http/exchange.h"
#include "serve/http/http_server.h"
#include "serve/http/request_reader.h"
#include "serve/http/response_text.h"

namespace gsa::serve {

class Connection;

// The server, as its connections see it.
class ConnectionHost {
 public:
  virtual const HttpOptions& options() const = 0;
  virtual bool stopping() const = 0;
  // Has a worker handle the request.
  virtual void dispatch(HttpRequest request, BodyClaim claim, std::shared_ptr<Exchange> exchange) = 0;
  virtual BodyBudget& bodies() = 0;
  virtual HttpResponse refusal(int status, const std::string& message) = 0;
  // Has the connection look at its exchange. From any thread, also when both are gone.
  virtual std::function<void()> waker(std::weak_ptr<Connection> connection) = 0;
  virtual void log(const std::string& message) = 0;
  virtual void closed(Connection& connection) = 0;

 protected:
  ~ConnectionHost() = default;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ConnectionHost& host);

  void start();
  void start_refused(int status, const std::string& message);  // instead: whatever is asked
  void flush();                                                // sends on what is new in its exchange
  void stop();  // the server is stopping: closed, unless an answer is under way
  void cut();   // closed, whatever is under way
  bool answering() const { return state_ == State::answering; }
  bool refused_at_once() const { return refused_at_once_; }

 private:
  enum class State {
    idle,       // between requests
    receiving,  // a part of a request has come
    answering,  // a request is in the handler's hands, or an answer has not been taken in whole
    lingering,  // all is said; waits for the client to close first, lest unread bytes reset the connection
    closed
  };

  template <typename Step>
  void guarded(Step step);
  void read();
  void on_read(const boost::system::error_code& error, std::size_t bytes);
  void process();
  void refuse(int status, const std::string& message) { refuse(host_.refusal(status, message)); }
  void refuse(const HttpResponse& response);
  void write_out();
  void write_some();
  void on_written(const boost::system::error_code& error, std::size_t bytes);
  void answered();
  void linger();
  void lose();
  void close();
  void set_deadline(std::chrono::milliseconds time);
  void wait_for_deadline();
  void on_deadline();
  void watch();

  boost::asio::ip::tcp::socket socket_;
  ConnectionHost& host_;
  RequestReader reader_;
  BodyClaim claim_;  // of the request that is being received
  State state_ = State::idle;
  bool refused_at_once_ = false;

  // In.
  std::array<char, 16 << 10> buffer_;
  std::string input_;  // read, not yet understood
  bool reading_ = false;
  boost::asio::steady_timer watch_;  // looks for hang-ups while nothing is read

  // Out.
  std::shared_ptr<Exchange> exchange_;  // until its answer has ended
  AnswerForm form_;                     // of the answer under way
  bool streaming_ = false;              // its head is out
  std::size_t largest_ = 0;             // bytes of its largest event so far
  bool ending_ = false;                 // the last of it is in out_ or sending_
  std::string out_;                     // waits
  std::string sending_;                 // is being sent, from sent_ on
  std::size_t sent_ = 0;
  bool writing_ = false;

  // One timer for all deadlines; it is not set back when one is postponed, but looks again when it fires.
  using Clock = std::chrono::steady_clock;
  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point fires_ = Clock::time_point::max();
};

}  // namespace gsa::serve
