// What happens before main(), in .preinit_array: before the constructor of any library has run.
//
// How long OpenMP's threads wait by spinning. libgomp's own choice, some ten milliseconds at every barrier,
// is for a machine of its own: beside other work the thread that is waited for does not run while the others
// spin on its core, and training falls to a fifteenth. A short spin is as quick on an idle machine. libgomp
// reads the environment when it is loaded, so the program begins a second time with the variable in place;
// here that takes hundredths of a second, behind torch's constructors it would take a quarter.
//
// What is said where memory ends outside of main(): in those constructors, and in threads.
#include <alloca.h>
#include <limits.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace {

// Some tens of microseconds: longer than between most parallel parts of a step, shorter than a time slice.
constexpr char kSpins[] = "GOMP_SPINCOUNT=1000";

void bound_spinning(int, char** argv, char** environment) {
  std::size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    const std::string_view entry = environment[count];
    // What the user has chosen stands; it is also what ends the second beginning here.
    if (entry.starts_with("GOMP_SPINCOUNT=") || entry.starts_with("OMP_WAIT_POLICY=")) return;
  }
  // Started by the loader's name (ld.so gsa ...), the program that would begin again is the loader.
  if (::getauxval(AT_BASE) == 0) return;
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return;
  self[length] = '\0';
  // No allocation: the C library itself is not initialised yet.
  char** const extended = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  for (std::size_t i = 0; i < count; ++i) extended[i] = environment[i];
  extended[count] = const_cast<char*>(kSpins);
  extended[count + 1] = nullptr;
  ::execve(self, argv, extended);
  // Where that fails the program goes on: it is slower beside other work, and does the same.
}

[[noreturn]] void last_word() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kText =
        "gsa: out of memory: not enough even to begin, or for another thread (ulimit -v and the control "
        "group bound it)\n";
    // No stream: it could want memory.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    ::_exit(1);
  } catch (...) {
  }
  std::abort();
}

void begin_again(int argc, char** argv, char** environment) {
  bound_spinning(argc, argv, environment);
  std::set_terminate(last_word);
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const kFirst)(int, char**, char**) = begin_again;

}  // namespace
