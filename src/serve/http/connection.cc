#include "serve/http/connection.h"

#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <exception>
#include <utility>

#include "gsa/error.h"

namespace gsa::serve {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Bytes of further requests that are read while an answer is under way.
constexpr std::size_t max_ahead = 64 << 10;
// A buffer that has grown beyond is given back.
constexpr std::size_t spare_buffer = 256 << 10;
constexpr std::chrono::seconds linger_time(2);
constexpr std::chrono::milliseconds watch_period(250);

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ConnectionHost& host)
    : socket_(std::move(socket)),
      host_(host),
      reader_(host.options().max_header, host.options().max_body),
      claim_(host.bodies()),
      watch_(socket_.get_executor()),
      timer_(socket_.get_executor()) {
  error_code ignored;  // a connection that is already gone says so when it is read
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

// Without memory for one connection the others go on.
template <typename Step>
void Connection::guarded(Step step) {
  try {
    step();
  } catch (const std::exception& error) {
    host_.log(concat("a connection was dropped: ", error.what()));
    lose();
  }
}

void Connection::start() {
  guarded([&] {
    set_deadline(host_.options().idle);
    read();
  });
}

void Connection::start_refused(int status, const std::string& message) {
  refused_at_once_ = true;
  guarded([&] {
    refuse(status, message);
    read();
  });
}

void Connection::stop() {
  if (state_ == State::idle || state_ == State::receiving) close();
}

void Connection::cut() { lose(); }

// ---- In.

void Connection::read() {
  if (reading_ || state_ == State::closed) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](const error_code& error, std::size_t n) {
                            self->guarded([&] { self->on_read(error, n); });
                          });
}

void Connection::on_read(const error_code& error, std::size_t bytes) {
  reading_ = false;
  if (state_ == State::closed) return;
  if (error) return lose();
  // After a refusal nothing is understood any more.
  const bool discard = state_ == State::lingering || (ending_ && !form_.keep_alive);
  if (!discard) {
    input_.append(buffer_.data(), bytes);
    process();
  }
  if (state_ == State::answering && input_.size() > max_ahead) return watch();
  read();
}

void Connection::process() {
  while (state_ == State::idle || state_ == State::receiving) {
    if (state_ == State::idle) {
      // Some clients end a body with a line too many.
      std::size_t lines = 0;
      while (input_.compare(lines, 2, "\r\n") == 0) lines += 2;
      input_.erase(0, lines);
      if (input_.empty() || input_ == "\r") return;
      state_ = State::receiving;
      set_deadline(host_.options().receive);
    }
    const RequestReader::Progress progress = reader_.read(input_);
    if (!claim_.grow_to(reader_.body_bytes())) {
      HttpResponse response =
          host_.refusal(503, concat("bodies of requests: expected at most ", host_.bodies().max_bytes(),
                                    " bytes of all clients at a time; try again later"));
      response.headers.emplace_back("Retry-After", "1");
      return refuse(response);
    }
    switch (progress) {
      case RequestReader::Progress::more:
        return;
      case RequestReader::Progress::head:
        if (const auto& check = host_.options().check) {
          if (const auto refusal = check(reader_.head())) return refuse(*refusal);
        }
        break;
      case RequestReader::Progress::wants_continue:
        out_.append("HTTP/1.1 100 Continue\r\n\r\n");
        write_out();
        return;
      case RequestReader::Progress::refused:
        return refuse(reader_.status(), reader_.message());
      case RequestReader::Progress::done:
        state_ = State::answering;
        set_deadline(std::chrono::milliseconds::max());
        form_ = reader_.form();
        exchange_ = std::make_shared<Exchange>(host_.waker(weak_from_this()));
        largest_ = 0;
        host_.dispatch(reader_.take(), std::move(claim_), exchange_);
    }
  }
}

void Connection::refuse(const HttpResponse& response) {
  state_ = State::answering;
  input_.clear();
  form_ = reader_.form();
  reader_.drop();
  claim_.release();
  form_.keep_alive = false;
  ending_ = true;
  out_.append(response_text(response, form_));
  write_out();
}

// With as much sent ahead nothing more is read, and the end of the stream would go unseen behind what is there.
void Connection::watch() {
  watch_.expires_after(watch_period);
  watch_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->state_ != State::answering || self->reading_) return;
    pollfd descriptor = {.fd = self->socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    if (::poll(&descriptor, 1, 0) > 0) return self->lose();
    self->watch();
  });
}

// ---- Out.

void Connection::flush() {
  if (!exchange_ || state_ != State::answering) return;
  guarded([&] {
    // What has piled up behind what is being sent, before this: large events make no client slow.
    const auto allowed = static_cast<std::size_t>(host_.options().max_unsent) + 2 * largest_;
    if (streaming_ && out_.size() > allowed) return lose();
    Exchange::News news = exchange_->take();
    largest_ = std::max(largest_, news.data.size());
    if (news.begin) {
      form_.keep_alive = form_.keep_alive && !form_.http_1_0 && !host_.stopping();
      out_.append(stream_head(*news.begin, form_));
      streaming_ = true;
    }
    if (!news.data.empty() && !form_.head) {
      if (form_.http_1_0) {
        out_.append(news.data);
      } else {
        append_chunk(out_, news.data);
      }
    }
    if (news.ended) {
      if (news.abandoned && !streaming_) {
        news.response = host_.refusal(500, "the server failed to answer the request");
      }
      if (news.response) {
        form_.keep_alive = form_.keep_alive && !host_.stopping();
        out_.append(response_text(*news.response, form_));
      } else if (news.abandoned) {
        form_.keep_alive = false;
      } else if (!form_.http_1_0 && !form_.head) {
        out_.append("0\r\n\r\n");
      }
      ending_ = true;
      exchange_.reset();
    }
    write_out();
  });
}

void Connection::write_out() {
  if (writing_) {
    // What is being sent may be of before the answer: "100 Continue".
    if (state_ == State::answering && deadline_ == Clock::time_point::max())
      set_deadline(host_.options().send);
    return;
  }
  if (out_.empty()) {
    if (ending_) answered();
    return;
  }
  std::swap(out_, sending_);
  write_some();
}

void Connection::write_some() {
  writing_ = true;
  if (state_ == State::answering) set_deadline(host_.options().send);
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](const error_code& error, std::size_t n) {
                             self->guarded([&] { self->on_written(error, n); });
                           });
}

void Connection::on_written(const error_code& error, std::size_t bytes) {
  writing_ = false;
  if (state_ == State::closed) return;
  if (error) return lose();
  sent_ += bytes;
  if (sent_ < sending_.size()) return write_some();
  sent_ = 0;
  sending_.clear();
  if (sending_.capacity() > spare_buffer) sending_ = {};
  if (state_ == State::answering) set_deadline(std::chrono::milliseconds::max());
  write_out();
}

void Connection::answered() {
  streaming_ = ending_ = false;
  if (!form_.keep_alive || host_.stopping()) return linger();
  state_ = State::idle;
  set_deadline(host_.options().idle);
  process();
  if (state_ == State::closed || (state_ == State::answering && input_.size() > max_ahead)) return;
  watch_.cancel();
  read();
}

// ---- The end.

void Connection::linger() {
  state_ = State::lingering;
  input_ = {};
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  set_deadline(linger_time);
  read();
}

void Connection::lose() {
  if (state_ == State::closed) return;
  const std::shared_ptr<Exchange> exchange = std::move(exchange_);
  close();
  if (exchange) exchange->lost();
}

void Connection::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  const auto self = shared_from_this();
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  watch_.cancel();
  host_.closed(*this);
}

// ---- Deadlines.

void Connection::set_deadline(std::chrono::milliseconds time) {
  if (time == std::chrono::milliseconds::max()) {
    deadline_ = Clock::time_point::max();
    return;
  }
  deadline_ = Clock::now() + time;
  if (deadline_ < fires_) wait_for_deadline();
}

void Connection::wait_for_deadline() {
  fires_ = deadline_;
  timer_.expires_at(fires_);  // ends a wait before it
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->state_ == State::closed) return;
    self->fires_ = Clock::time_point::max();
    if (self->deadline_ == Clock::time_point::max()) return;
    if (Clock::now() < self->deadline_) return self->wait_for_deadline();
    self->guarded([&] { self->on_deadline(); });
  });
}

void Connection::on_deadline() {
  deadline_ = Clock::time_point::max();
  if (state_ != State::receiving) return lose();
  refuse(408, concat("expected the whole request within ", host_.options().receive.count() / 1000.0, " s"));
}

}  // namespace gsa::serve
