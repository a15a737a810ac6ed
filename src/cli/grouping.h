// What gsa convert measures where layers are to share a selection: which groups of layers agree on keys, and
// what sharing costs each of them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "model/model_config.h"

namespace gsa::cli {

struct GroupingOptions {
  std::string data;  // a dataset's folder; empty: nothing is measured
  std::optional<std::int64_t> length, tokens;
  bool ignore_tokenizer = false;
};

void add_grouping_options(CLI::App& app, GroupingOptions& options, const char* group);

class Grouping {
 public:
  // Measures the folder's model, without its dense_below. go_on: called between batches; may throw to stop.
  Grouping(const std::filesystem::path& folder, const GroupingOptions& options, std::function<void()> go_on);

  // The layers of `leaders` indexers whose groups agree best.
  std::vector<std::int64_t> choose(std::int64_t leaders) const;

  // The model that came of it, on the same text.
  void measure_converted(const std::filesystem::path& folder);

  // By layer: whose selection it goes by, how far the two agreed, and the kept mass before and after.
  void print(const nn::ModelConfig& config, std::ostream& out) const;

 private:
  eval::Report measure(const std::filesystem::path& folder, const char* what, bool agreement);

  std::unique_ptr<eval::Documents> documents_;
  std::function<void()> go_on_;
  std::int64_t length_ = 0, tokens_ = 0;
  eval::Report before_;
  std::optional<eval::Report> after_;
};

}  // namespace gsa::cli
