#include "cli/grouping.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/checks.h"
#include "cli/eval_memory.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "data/dataset.h"
#include "gsa/error.h"
#include "nn/device.h"
#include "nn/model_io.h"

namespace gsa::cli {
namespace {

constexpr std::int64_t kGroupingLength = 4096, kGroupingTokens = 65536;

std::string mass_cell(double value) { return std::isfinite(value) ? percent(value) : symbol("–", "-"); }

}  // namespace

void add_grouping_options(CLI::App& app, GroupingOptions& options, const char* group) {
  app.add_option("--data", options.data, "a dataset's folder, whose text says which layers agree")
      ->group(group);
  app.add_option(
         "--length", options.length,
         concat("tokens of its windows; default: what the model is meant for, at most ", kGroupingLength))
      ->check(positive_whole())
      ->group(group);
  app.add_option("--tokens", options.tokens,
                 concat("read about this many of its tokens; default: ", kGroupingTokens))
      ->check(positive_whole())
      ->group(group);
  app.add_flag("--ignore-tokenizer", options.ignore_tokenizer,
               "take the dataset's ids for the model's, whatever tokenizer stands in its folder")
      ->group(group);
}

Grouping::Grouping(const std::filesystem::path& folder, const GroupingOptions& options,
                   std::function<void()> go_on)
    : documents_(eval::dataset_documents(options.data, eval::Joining::all)), go_on_(std::move(go_on)) {
  if (!options.ignore_tokenizer) {
    data::check_same_tokenizer(folder, options.data, documents_->tokenizer().fingerprint(),
                               "--ignore-tokenizer");
  }
  length_ = options.length.value_or(std::min(nn::load_config(folder).max_positions, kGroupingLength));
  tokens_ = options.tokens.value_or(kGroupingTokens);
  before_ = measure(folder, "measuring", true);
}

eval::Report Grouping::measure(const std::filesystem::path& folder, const char* what, bool agreement) {
  const torch::Device device = nn::device_by_name("auto");
  nn::LoadOptions how{.config = nn::load_config(folder), .device = device};
  // Selections are what is compared: they are made in windows too that would run dense.
  how.config->attention.dense_below = 0;
  if (device.is_cuda()) how.dtype = DType::bf16;
  eval::EvaluateOptions options{
      .perplexity = false, .selection = true, .oracle = false, .agreement = agreement};
  options.windows = {.length = length_, .predictions = tokens_};
  check_eval_memory({.folder = folder, .config = *how.config, .dtype = how.dtype, .device = device},
                    *documents_, options,
                    "a shorter --length takes less, and without --data nothing is measured");
  Progress progress(what, eval::WindowReader(*documents_, options.windows).predictions());
  options.progress = [&](std::int64_t done, std::int64_t total) {
    go_on_();
    progress.update(std::min(done, total),
                    concat(grouped(std::min(done, total)), " of ", grouped(total), " tokens"));
  };
  return eval::evaluate(nn::load_model(folder, how).model, *documents_, options);
}

std::vector<std::int64_t> Grouping::choose(std::int64_t leaders) const {
  const eval::LayerPairs& found = before_.agreement->selections;
  for (std::size_t a = 0; a < found.size(); ++a) {
    for (std::size_t b = a; b < found.size(); ++b) {  // the same queries count for both orders
      if (before_.agreement->queries[a][b] > 0) continue;
      throw Error(concat("--length: expected windows in which queries leave keys out, got none at which ",
                         a == b ? concat("layer ", a, " does") : concat("layers ", a, " and ", b, " both do"),
                         " in windows of ", length_, " tokens of --data"));
    }
  }
  return eval::choose_leaders(found, leaders);
}

void Grouping::measure_converted(const std::filesystem::path& folder) {
  after_ = measure(folder, "measuring what came of it", false);
}

void Grouping::print(const nn::ModelConfig& config, std::ostream& out) const {
  Table table({concat("on ", documents_->name()), "goes by", "agreed", "kept before", "kept now"});
  table.line();
  const auto& before = before_.selection->layers;
  const auto& after = after_->selection->layers;
  for (std::int64_t n = 0; n < config.layers; ++n) {
    const auto at = static_cast<std::size_t>(n);
    const std::int64_t leader = config.leader_of(n);
    const double agreed = before_.agreement->selections[static_cast<std::size_t>(leader)][at];
    table.row({concat("layer ", n), leader == n ? "" : concat("layer ", leader),
               leader == n ? "" : mass_cell(agreed), mass_cell(before[at].kept_mass_mean()),
               mass_cell(after[at].kept_mass_mean())});
  }
  table.line();
  table.row({"mean", "", "", mass_cell(before_.selection->kept_mass_mean()),
             mass_cell(after_->selection->kept_mass_mean())});
  out << '\n';
  table.print(out);
  out << "agreed: share of the keys that the layer selected by itself which the layer it goes by selects, at "
      << "queries that leave keys out\nkept: share of dense attention's mass on the selected keys, over "
      << grouped(before_.tokens) << " tokens in windows of " << grouped(length_) << "\n";
}

}  // namespace gsa::cli
