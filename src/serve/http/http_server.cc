#include "serve/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cassert>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "gsa/error.h"
#include "serve/http/connection.h"
#include "serve/http/exchange.h"

namespace gsa::serve {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

namespace {

// The way to the server's thread for those who may outlive it.
class Mailbox {
 public:
  explicit Mailbox(asio::io_context& io) : io_(&io) {}

  template <typename Work>
  void post(Work work) {
    const std::lock_guard lock(mutex_);
    if (io_ != nullptr) asio::post(*io_, std::move(work));
  }
  void close() {
    const std::lock_guard lock(mutex_);
    io_ = nullptr;
  }

 private:
  std::mutex mutex_;
  asio::io_context* io_;
};

// Refused connections that are told so at the same time; more are closed without a word.
constexpr std::size_t max_refused = 64;
constexpr std::chrono::milliseconds accept_pause(100);

std::string shown(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? concat(host, ":", port) : concat("[", host, "]:", port);
}

[[noreturn]] void cannot_listen(const std::string& host, std::uint16_t port, const error_code& error) {
  const std::string where = concat("cannot listen on ", shown(host, port), ": ");
  if (error == asio::error::address_in_use) {
    throw Error(concat("--port: ", where,
                       "address already in use; stop the program that listens there, or choose ",
                       "another port, 0 for any that is free"));
  }
  if (error == asio::error::access_denied) {
    throw Error(
        concat("--port: ", where, "permission denied; ports below 1024 are for root: choose another"));
  }
  if (error == boost::system::errc::address_not_available) {
    throw Error(concat("--host: ", where,
                       "not an address of this machine; expected one of its own, 127.0.0.1, or ",
                       "0.0.0.0 for all of them"));
  }
  throw Error(concat("--host: ", where, error.message()));
}

tcp::acceptor bind(asio::io_context& io, std::string host, std::uint16_t port) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) throw Error("--host: expected an address or a name, got an empty string");
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Error(concat("--host: expected an address or the name of this machine, got '", host,
                       "': ", error.message()));
  }
  for (const auto& entry : found) {
    tcp::acceptor acceptor(io);
    acceptor.open(entry.endpoint().protocol(), error);
    // Connections of a server that has just ended do not hold its port.
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(entry.endpoint(), error);
    if (!error) return acceptor;
  }
  cannot_listen(host, port, error);
}

const HttpOptions& checked(const HttpOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) bad_argument("HttpServer", name, "at least 1", std::to_string(value));
  };
  positive("max_connections", options.max_connections);
  positive("max_body", options.max_body);
  if (options.max_bodies < options.max_body) {
    bad_argument("HttpServer", "max_bodies", concat("at least max_body, ", options.max_body),
                 std::to_string(options.max_bodies));
  }
  positive("max_header", options.max_header);
  positive("max_unsent", options.max_unsent);
  positive("idle", options.idle.count());
  positive("receive", options.receive.count());
  positive("send", options.send.count());
  positive("workers", options.workers);
  return options;
}

}  // namespace

struct BoundPort::Impl {
  explicit Impl(const HttpOptions& options) : acceptor(bind(io, options.host, options.port)) {}

  asio::io_context io;
  tcp::acceptor acceptor;
};

BoundPort::BoundPort(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
BoundPort::BoundPort(BoundPort&&) noexcept = default;
BoundPort::~BoundPort() = default;

class HttpServer::Impl final : public ConnectionHost {
 public:
  Impl(tcp::acceptor& bound, const HttpOptions& options, Handler handler, Refuse refuse)
      : options_(checked(options)),
        bodies_(options.max_bodies),
        handler_(std::move(handler)),
        refuse_(std::move(refuse)),
        mailbox_(std::make_shared<Mailbox>(io_)),
        work_(asio::make_work_guard(io_)),
        acceptor_(io_),
        pause_(io_),
        port_(bound.local_endpoint().port()) {
    const auto protocol = bound.local_endpoint().protocol();
    acceptor_.assign(protocol, bound.release());
  }

  std::uint16_t port() const { return port_; }
  std::int64_t connections() const { return live_; }

  void start() {
    if (thread_.joinable() || stopping_) throw Error("HttpServer: start() was called twice or after the end");
    error_code error;
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) cannot_listen(options_.host, port_, error);
    workers_.emplace(static_cast<std::size_t>(options_.workers));
    quick_worker_.emplace(std::size_t{1});
    asio::post(io_, [this] { accept(); });
    thread_ = std::thread([this] { run(); });
  }

  void stop_accepting() {
    const std::lock_guard lock(ending_);
    if (!down_) close_listener();
  }

  bool shut_down(std::chrono::duration<double> grace) {
    const std::lock_guard lock(ending_);
    if (down_) return true;
    close_listener();
    wait_for_answers(grace);
    bool cut = false;
    on_server_thread([this, &cut] {
      for_each([&cut](Connection& connection) {
        cut = cut || connection.answering();
        connection.cut();
      });
    });
    for (auto* pool : {&workers_, &quick_worker_}) {
      if (!*pool) continue;
      (*pool)->stop();
      (*pool)->join();
    }
    mailbox_->close();
    io_.stop();
    if (thread_.joinable()) thread_.join();
    down_ = true;
    return !cut;
  }

  // ---- For connections.

  const HttpOptions& options() const override { return options_; }
  bool stopping() const override { return stopping_; }
  HttpResponse refusal(int status, const std::string& message) override { return refuse_(status, message); }

  void log(const std::string& message) override {
    if (options_.log) options_.log(message);
  }

  BodyBudget& bodies() override { return bodies_; }

  void dispatch(HttpRequest request, BodyClaim claim, std::shared_ptr<Exchange> exchange) override {
    const auto& quick = options_.quick;
    const bool is_quick = std::find(quick.begin(), quick.end(), request.path) != quick.end();
    asio::post(is_quick ? *quick_worker_ : *workers_,
               [this, request = std::move(request), claim = std::move(claim), reply = make_reply(exchange),
                exchange]() mutable {
                 try {
                   handler_(std::move(request), std::move(reply));
                   return;
                 } catch (const std::exception& error) {
                   log(concat("a request failed: ", error.what()));
                 } catch (...) {
                   log("a request failed: an exception that is none of the standard library's");
                 }
                 exchange->abandon();
               });
  }

  std::function<void()> waker(std::weak_ptr<Connection> connection) override {
    return [mailbox = mailbox_, connection = std::move(connection)] {
      mailbox->post([connection] {
        if (const auto held = connection.lock()) held->flush();
      });
    };
  }

  void closed(Connection& connection) override {
    if (connection.refused_at_once()) --refused_;
    connections_.erase(&connection);
    const std::lock_guard lock(mutex_);
    live_ = static_cast<std::int64_t>(connections_.size());
    closed_.notify_all();
  }

 private:
  void run() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {
        log(concat("the server goes on after: ", error.what()));
      }
    }
  }

  void close_listener() {
    on_server_thread([this] {
      stopping_ = true;
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for_each([](Connection& connection) { connection.stop(); });
    });
  }

  void wait_for_answers(std::chrono::duration<double> grace) {
    const std::chrono::duration<double> max_grace = std::chrono::hours(24 * 365);
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(std::clamp(grace, {}, max_grace));
    std::unique_lock lock(mutex_);
    closed_.wait_for(lock, time, [this] { return live_ == 0; });
  }

  // Runs it there and waits; here, where that thread has not been started.
  template <typename Work>
  void on_server_thread(Work work) {
    if (!thread_.joinable()) return work();
    assert(std::this_thread::get_id() != thread_.get_id());
    std::promise<void> done;
    asio::post(io_, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  // They leave the table when they close.
  template <typename Step>
  void for_each(Step step) {
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [key, connection] : connections_) all.push_back(connection);
    for (const auto& connection : all) step(*connection);
  }

  void accept() {
    if (stopping_) return;
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (stopping_ || error == asio::error::operation_aborted) return;
      if (error && error != asio::error::connection_aborted) {
        // No descriptors, no memory: the connection still waits, and to ask at once would spin.
        if (!std::exchange(short_of_, true)) {
          log(concat("connections wait to be accepted: ", error.message(),
                     "; others may have to end (ulimit -n)"));
        }
        pause_.expires_after(accept_pause);
        pause_.async_wait([this](const error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      if (!error) {
        short_of_ = false;
        try {
          add(std::move(socket));
        } catch (const std::exception& failure) {
          log(concat("a connection was dropped: ", failure.what()));
        }
      }
      accept();
    });
  }

  void add(tcp::socket socket) {
    const bool full = static_cast<std::int64_t>(connections_.size() - refused_) >= options_.max_connections;
    if (full && refused_ >= max_refused) return;
    const auto connection = std::make_shared<Connection>(std::move(socket), *this);
    connections_.emplace(connection.get(), connection);
    {
      const std::lock_guard lock(mutex_);
      live_ = static_cast<std::int64_t>(connections_.size());
    }
    if (!full) return connection->start();
    ++refused_;
    connection->start_refused(
        503, concat("expected at most ", options_.max_connections, " connections at a time"));
  }

  const HttpOptions options_;
  BodyBudget bodies_;
  const Handler handler_;
  const Refuse refuse_;
  asio::io_context io_{1};
  std::shared_ptr<Mailbox> mailbox_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const std::uint16_t port_;
  bool short_of_ = false;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::size_t refused_ = 0;  // of them, that were refused at once
  std::atomic<bool> stopping_ = false;
  std::atomic<std::int64_t> live_ = 0;
  std::mutex mutex_;
  std::condition_variable closed_;
  std::mutex ending_;  // one ends it at a time
  bool down_ = false;
  std::optional<asio::thread_pool> workers_, quick_worker_;
  std::thread thread_;
};

HttpServer::HttpServer(BoundPort port, const HttpOptions& options, Handler handler, Refuse refuse)
    : impl_(std::make_unique<Impl>(port.impl_->acceptor, options, std::move(handler), std::move(refuse))) {}

HttpServer::HttpServer(const HttpOptions& options, Handler handler, Refuse refuse)
    : HttpServer(BoundPort(options), options, std::move(handler), std::move(refuse)) {}

HttpServer::~HttpServer() { impl_->shut_down(std::chrono::seconds(0)); }

std::uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::start() { impl_->start(); }
void HttpServer::stop_accepting() { impl_->stop_accepting(); }
bool HttpServer::shut_down(std::chrono::duration<double> grace) { return impl_->shut_down(grace); }
std::int64_t HttpServer::connections() const { return impl_->connections(); }

}  // namespace gsa::serve
