// A small fuzzer that needs nothing but g++: mutations guided by coverage, from a seed, so that a run can be
// repeated.
//
//   gsa_fuzz replay CORPUS                         every file of CORPUS/<target>/ once; what the tests run
//   gsa_fuzz run CORPUS [--seconds N] [--seed S] [--target NAME] [--keep]
//   gsa_fuzz merge FROM INTO                       what of one corpus reaches code that the other does not
//
// An input that reaches new code joins the corpus in memory and, with --keep, on disk (smallest first come
// back in the next run). The input at hand is in fuzz-input.bin: after a crash it is the finding; `gsa_fuzz
// one TARGET FILE` runs it again.
//
// Coverage: the parsers are compiled with -fsanitize-coverage=trace-pc, which calls the function below on
// every edge.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "core/file.h"
#include "gsa/error.h"
#include "targets.h"

namespace {

constexpr std::size_t kSlots = 1 << 16;
std::uint8_t g_hits[kSlots];  // how often each place was passed, in the run at hand. No class: its functions
                              // are traced
bool g_counting = false;

}  // namespace

extern "C" __attribute__((no_sanitize_coverage, no_sanitize("address", "undefined"))) void
__sanitizer_cov_trace_pc() {
  if (!g_counting) return;
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& hits = g_hits[(place ^ (place >> 16)) % kSlots];
  if (hits < 255) ++hits;
}

namespace gsa::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongest = 4096;  // of an input
constexpr const char* kCurrent = "fuzz-input.bin";

std::string read(const fs::path& path) { return read_file(path, 1 << 24); }

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

const Target& target_by_name(const std::string& name) {
  for (const Target& target : targets()) {
    if (name == target.name) return target;
  }
  throw Error("gsa_fuzz: unknown target " + name);
}

// Returns whether the input was accepted. Anything but gsa::Error goes up and ends the run.
bool run_once(const Target& target, const std::string& bytes) {
  // A copy of its own size, so that a sanitizer sees the first byte beyond it.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  try {
    target.run({exact.data(), exact.size()});
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::is_directory(folder)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

int replay(const fs::path& corpus) {
  for (const Target& target : targets()) {
    const auto files = files_in(corpus / target.name);
    std::size_t accepted = 0;
    for (const fs::path& file : files) {
      std::cout << target.name << '/' << file.filename().string()
                << std::endl;  // the last one, should it crash
      accepted += run_once(target, read(file));
    }
    std::cout << target.name << ": " << files.size() << " inputs, " << accepted << " accepted, "
              << files.size() - accepted << " refused\n";
    // Both kinds must be there, or the replay would show nothing.
    if (accepted == 0 || accepted == files.size()) {
      std::cout << "gsa_fuzz: expected inputs of both kinds in " << (corpus / target.name).string() << "\n";
      return 1;
    }
  }
  return 0;
}

// ---- Mutations

class Mutator {
 public:
  Mutator(const Target& target, std::uint64_t seed) : target_(target), random_(seed) {}

  std::string mutate(const std::vector<std::string>& corpus) {
    std::string bytes = corpus[below(corpus.size())];
    const std::size_t steps = 1 + below(6);
    for (std::size_t i = 0; i < steps; ++i) step(bytes, corpus);
    if (bytes.size() > kLongest) bytes.resize(kLongest);
    if (target_.length_in_front && below(8) != 0) repair_length(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void step(std::string& bytes, const std::vector<std::string>& corpus) {
    const std::size_t at = below(bytes.size() + 1);
    const std::size_t rest = bytes.size() - at;
    switch (below(8)) {
      case 0:
        if (rest > 0) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (rest > 0) bytes[at] = static_cast<char>(below(256));
        break;
      case 2:
        bytes.erase(at, 1 + below(std::min<std::size_t>(rest, 16)));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
        break;
      case 4:
      case 5:
        put_word(bytes, at);
        break;
      case 6:
        change_number(bytes, at);
        break;
      case 7: {
        const std::string& other = corpus[below(corpus.size())];
        bytes = bytes.substr(0, at) + other.substr(below(other.size()));
        break;
      }
    }
  }

  void put_word(std::string& bytes, std::size_t at) {
    const std::string& word = target_.dictionary[below(target_.dictionary.size())];
    if (below(2) == 0) {
      bytes.insert(at, word);
    } else {
      bytes.replace(at, std::min(word.size(), bytes.size() - at), word);
    }
  }

  // Replaces the next number in the text by one near a bound.
  void change_number(std::string& bytes, std::size_t at) {
    const std::size_t begin = bytes.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(bytes.find_first_not_of("0123456789", begin), bytes.size());
    const std::uint64_t bounds[] = {0, 1, 8, 255, 65536, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
    const std::uint64_t value = bounds[below(std::size(bounds))] + below(3) - 1;
    bytes.replace(begin, end - begin, std::to_string(below(2) == 0 ? value : below(64)));
  }

  // The header ends at its last brace; what follows is data.
  static void repair_length(std::string& bytes) {
    const std::size_t brace = bytes.rfind('}');
    if (brace == std::string::npos || brace < 8) return;
    const std::uint64_t length = brace + 1 - 8;
    std::memcpy(bytes.data(), &length, 8);
  }

  const Target& target_;
  std::mt19937_64 random_;
};

// Places passed, each with how often in powers of two, that no input has shown before. Where counts do not
// matter, a place is new or not.
class Coverage {
 public:
  explicit Coverage(bool counts) : counts_(counts) {}

  bool adds_something() {
    bool added = false;
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (g_hits[i] == 0) continue;
      std::uint8_t bucket = 1;
      while (counts_ && bucket < 128 && (g_hits[i] >> 1) >= bucket)
        bucket = static_cast<std::uint8_t>(bucket << 1);
      if ((seen_[i] & bucket) == 0) {
        seen_[i] |= bucket;
        added = true;
      }
    }
    return added;
  }
  std::size_t places() const {
    return static_cast<std::size_t>(
        std::count_if(seen_.begin(), seen_.end(), [](std::uint8_t b) { return b != 0; }));
  }

 private:
  bool counts_;
  std::vector<std::uint8_t> seen_ = std::vector<std::uint8_t>(kSlots);
};

struct RunOptions {
  fs::path corpus;
  double seconds = 60;
  std::uint64_t seed = 1;
  std::string only;
  bool keep = false;
};

bool covers_new(const Target& target, const std::string& bytes, Coverage& coverage, bool& accepted) {
  std::memset(g_hits, 0, kSlots);
  g_counting = true;
  accepted = run_once(target, bytes);
  g_counting = false;
  return coverage.adds_something();
}

void fuzz(const Target& target, const RunOptions& options) {
  std::vector<std::string> corpus;
  for (const fs::path& file : files_in(options.corpus / target.name)) corpus.push_back(read(file));
  if (corpus.empty()) throw Error(concat("gsa_fuzz: no seeds in ", (options.corpus / target.name).string()));
  std::sort(corpus.begin(), corpus.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  Coverage coverage(/*counts=*/true);
  bool accepted = false;
  for (const std::string& bytes : corpus) covers_new(target, bytes, coverage, accepted);

  Mutator mutator(target, options.seed);
  const std::size_t seeds = corpus.size();
  std::size_t runs = 0, accepted_runs = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  while (std::chrono::steady_clock::now() < end) {
    const std::string bytes = mutator.mutate(corpus);
    write(kCurrent, bytes);
    const bool added = covers_new(target, bytes, coverage, accepted);
    ++runs;
    accepted_runs += accepted;
    if (!added) continue;
    corpus.push_back(bytes);
    if (options.keep) {
      const std::string name = concat(accepted ? "ok-" : "bad-", std::hex, std::hash<std::string>()(bytes));
      write(options.corpus / target.name / name, bytes);
    }
  }
  std::cout << target.name << ": " << runs << " inputs, " << accepted_runs << " accepted, "
            << coverage.places() << " places, corpus " << seeds << " + " << corpus.size() - seeds << "\n";
}

// Copies from one corpus into another what reaches code that nothing in the other does, smallest files first.
void merge(const fs::path& from, const fs::path& into) {
  for (const Target& target : targets()) {
    Coverage coverage(/*counts=*/false);
    bool accepted = false;
    for (const fs::path& file : files_in(into / target.name))
      covers_new(target, read(file), coverage, accepted);
    std::vector<fs::path> files = files_in(from / target.name);
    std::stable_sort(files.begin(), files.end(),
                     [](const auto& a, const auto& b) { return fs::file_size(a) < fs::file_size(b); });
    std::size_t copied = 0;
    for (const fs::path& file : files) {
      if (!covers_new(target, read(file), coverage, accepted)) continue;
      fs::copy_file(file, into / target.name / file.filename(), fs::copy_options::skip_existing);
      ++copied;
    }
    std::cout << target.name << ": " << copied << " of " << files.size() << " copied\n";
  }
}

int usage() {
  std::cerr << "usage: gsa_fuzz replay CORPUS\n"
               "       gsa_fuzz run CORPUS [--seconds N] [--seed S] [--target NAME] [--keep]\n"
               "       gsa_fuzz merge FROM INTO\n"
               "       gsa_fuzz one TARGET FILE\n";
  return 2;
}

int main_checked(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "replay") return replay(words[1]);
  if (words.size() == 3 && words[0] == "merge") {
    merge(words[1], words[2]);
    return 0;
  }
  if (words.size() == 3 && words[0] == "one") {
    const std::string bytes = read(words[2]);
    try {
      target_by_name(words[1]).run(bytes);
      std::cout << "accepted\n";
    } catch (const Error& error) {
      std::cout << "refused: " << error.what() << '\n';
    }
    return 0;
  }
  if (words.size() < 2 || words[0] != "run") return usage();
  RunOptions options;
  options.corpus = words[1];
  for (std::size_t i = 2; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--keep") {
      options.keep = true;
    } else if (words[i] == "--seconds" && has_value) {
      options.seconds = std::stod(words[++i]);
    } else if (words[i] == "--seed" && has_value) {
      options.seed = std::stoull(words[++i]);
    } else if (words[i] == "--target" && has_value) {
      options.only = target_by_name(words[++i]).name;
    } else {
      return usage();
    }
  }
  for (const Target& target : targets()) {
    if (options.only.empty() || options.only == target.name) fuzz(target, options);
  }
  fs::remove(kCurrent);
  return 0;
}

}  // namespace
}  // namespace gsa::fuzz

int main(int argc, char** argv) {
  try {
    return gsa::fuzz::main_checked({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "gsa_fuzz: " << error.what() << '\n';
    return 1;
  }
}
