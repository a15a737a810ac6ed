// A reply that writes down what it was told, for tests of the API.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/json.h"
#include "serve/http/http_server.h"

namespace gsa::testing {

class RecordingReply : public serve::HttpReply {
 public:
  void send(serve::HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    response_ = std::move(response);
    sender_ = std::this_thread::get_id();
    ++answers_;
    done_.notify_all();
  }
  void begin(serve::HttpHeaders) override {
    const std::lock_guard lock(mutex_);
    begun_ = true;
  }
  void write(std::string data) override {
    const std::lock_guard lock(mutex_);
    writes_.push_back(std::move(data));
    done_.notify_all();
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    sender_ = std::this_thread::get_id();
    ++answers_;
    done_.notify_all();
  }
  void on_gone(std::function<void()> gone) override {
    const std::lock_guard lock(mutex_);
    gone_ = std::move(gone);
  }

  // The client hangs up.
  void hang_up() {
    std::function<void()> gone;
    {
      const std::lock_guard lock(mutex_);
      gone = gone_;
    }
    if (gone) gone();
  }

  // Waits for the whole answer.
  serve::HttpResponse response() {
    wait();
    return response_;
  }
  // The thread that gave it.
  std::thread::id sender() {
    wait();
    return sender_;
  }
  Json json() { return Json::parse(response().body); }
  // The events of a stream, [DONE] as a string; those so far where it goes on.
  std::vector<Json> events() {
    wait();
    std::vector<Json> events;
    for (const std::string& data : writes_) {  // data: ...\n\n, once or several times
      for (std::size_t begin = 0, end = 0; begin < data.size(); begin = end + 2) {
        end = data.find("\n\n", begin);
        const std::string text = data.substr(begin + 6, end - begin - 6);
        events.push_back(text == "[DONE]" ? Json(text) : Json::parse(text));
      }
    }
    return events;
  }
  void wait_for_writes(std::size_t count) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return writes_.size() >= count || answers_ > 0; });
  }
  bool begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  int answers() {
    const std::lock_guard lock(mutex_);
    return answers_;
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return answers_ > 0; });
  }

  std::mutex mutex_;
  std::condition_variable done_;
  serve::HttpResponse response_;
  std::thread::id sender_;
  std::vector<std::string> writes_;
  std::function<void()> gone_;
  bool begun_ = false;
  int answers_ = 0;
};

}  // namespace gsa::testing
