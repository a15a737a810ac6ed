// What is running and for how long, on stderr: one line that renews itself on a terminal, one line a case
// elsewhere. Everything printed while a Progress lives goes through say(), so that lines do not mix.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "timing.h"

namespace gsa::bench {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start(const std::string& what);  // a case
  void step(const std::string& what);   // a part of it
  void say(const std::string& text);    // a line on stdout

 private:
  void tick();
  void draw();

  const bool terminal_;
  const Stopwatch run_;
  Stopwatch part_;
  std::string case_, step_;
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace gsa::bench
