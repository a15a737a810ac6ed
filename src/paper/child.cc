#include "paper/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/file.h"

namespace gsa::paper {
namespace {

constexpr useconds_t kPause = 100'000;

}  // namespace

int run_child(const ChildOptions& options) {
  // Everything that takes memory comes before fork(): between it and exec() only plain system calls are safe.
  std::vector<std::string> words = {options.program.string()};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string folder = options.folder.string();
  std::filesystem::create_directories(options.log.parent_path());
  const int log = ::open(options.log.c_str(),
                         O_WRONLY | O_CREAT | O_CLOEXEC | (options.append ? O_APPEND : O_TRUNC), 0644);
  if (log < 0) bad_file(options.log.string(), "a file that can be written", std::strerror(errno));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    const int error = errno;
    ::close(log);
    throw Error(concat("a process for '", words[0], "' cannot be started: ", std::strerror(error)));
  }
  if (child == 0) {
    ::setpgid(0, 0);  // a Ctrl-C goes to this process, which asks the child once
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // it had ended before
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    if (::chdir(folder.c_str()) == 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(log);
  bool asked = false;
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0 && errno != EINTR)
      throw Error(concat("a process cannot be waited for: ", std::strerror(errno)));
    options.watch();
    if (!asked && options.stop()) {
      asked = true;
      ::kill(child, SIGTERM);
    }
    ::usleep(kPause);
  }
}

}  // namespace gsa::paper
