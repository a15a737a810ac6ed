#include "serve/http/exchange.h"

#include <cassert>
#include <utility>

#include "serve/http/response_text.h"

namespace gsa::serve {

// Changes the news under the lock and wakes the connection if there are any. What the caller gave for hang-ups is let
// go of outside of the lock: its destructor may come back here.
template <typename Change>
void Exchange::change(Change change) {
  std::function<void()> spent;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    const bool news = change();
    if (state_ == State::ended) spent = std::exchange(on_gone_, nullptr);
    if (gone_) {
      news_ = {};
      return;
    }
    if (!news || std::exchange(woken_, true)) return;
  }
  wake_();
}

void Exchange::send(HttpResponse response) {
  check_fields(response.headers);
  check_fields({{"Content-Type", response.type}});
  change([&] {
    assert(state_ == State::fresh);
    if (state_ != State::fresh) return false;
    state_ = State::ended;
    news_.ended = true;
    news_.response = std::move(response);
    return true;
  });
}

void Exchange::begin(HttpHeaders headers) {
  check_fields(headers);
  change([&] {
    assert(state_ == State::fresh);
    if (state_ != State::fresh) return false;
    state_ = State::streaming;
    news_.begin = std::move(headers);
    return true;
  });
}

void Exchange::write(std::string data) {
  if (data.empty()) return;
  change([&] {
    assert(state_ == State::streaming);
    if (state_ != State::streaming) return false;
    if (news_.data.empty()) {
      news_.data = std::move(data);
    } else {
      news_.data.append(data);
    }
    return true;
  });
}

void Exchange::end() {
  change([&] {
    assert(state_ == State::streaming);
    if (state_ != State::streaming) return false;
    state_ = State::ended;
    news_.ended = true;
    return true;
  });
}

void Exchange::abandon() {
  change([&] {
    if (state_ == State::ended) return false;
    state_ = State::ended;
    abandoned_ = true;
    news_.ended = news_.abandoned = true;
    return true;
  });
}

void Exchange::on_gone(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::ended) return;
    if (!gone_) {
      std::swap(gone, on_gone_);
      return;
    }
  }
  if (gone) gone();
}

Exchange::News Exchange::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  return std::exchange(news_, {});
}

void Exchange::lost() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    news_ = {};
    gone = std::exchange(on_gone_, nullptr);
  }
  if (gone) gone();
}

namespace {

class Reply : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Reply() override { exchange_->abandon(); }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  void send(HttpResponse response) override { exchange_->send(std::move(response)); }
  void begin(HttpHeaders headers) override { exchange_->begin(std::move(headers)); }
  void write(std::string data) override { exchange_->write(std::move(data)); }
  void end() override { exchange_->end(); }
  void on_gone(std::function<void()> gone) override { exchange_->on_gone(std::move(gone)); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::shared_ptr<HttpReply> make_reply(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<Reply>(std::move(exchange));
}

}  // namespace gsa::serve
