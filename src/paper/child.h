// One command of a program as a process of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace gsa::paper {

struct ChildOptions {
  std::filesystem::path program;
  std::vector<std::string> arguments;
  std::filesystem::path folder;  // that it runs in
  std::filesystem::path log;     // for both of its streams
  bool append = false;           // to what the log holds
  // Asked a few times a second; true: the child is asked once to end (SIGTERM), and waited for.
  std::function<bool()> stop = [] { return false; };
  // Called as often.
  std::function<void()> watch = [] {};
};

// Its exit status; 128 + n where signal n ended it. It does not outlive this process, and Ctrl-C in a terminal
// reaches it through stop() alone.
int run_child(const ChildOptions& options);

}  // namespace gsa::paper
