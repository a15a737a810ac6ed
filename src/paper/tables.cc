#include "paper/tables.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/number_text.h"
#include "gsa/error.h"

namespace gsa::paper {
namespace {

using Sense = Claim::Sense;
using Form = Column::Form;

// Differences of perplexity up to this share come and go with the seed at the scales that run here.
constexpr double kLossFloor = 0.005;
// Shares of attention and largest activations move more.
constexpr double kSinkFloor = 0.1;
constexpr double kTimeFloor = 0.05;

bool is_empty(const Chart& chart) {
  const auto none = [](const std::vector<double>& values) {
    return std::none_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  };
  if (const auto* lines = std::get_if<eval::LineChart>(&chart.chart)) {
    return std::all_of(lines->series.begin(), lines->series.end(), [&](const auto& s) { return none(s.y); });
  }
  const auto& bars = std::get<eval::BarChart>(chart.chart).series;
  return std::all_of(bars.begin(), bars.end(), [&](const auto& s) { return none(s.values); });
}

class Tables {
 public:
  Tables(const TableOptions& options, const Results& results)
      : o_(options), s_(options.scale), results_(results) {}

  std::vector<Table> all() {
    return {perplexity(), ruler(), sinks(), stability(), speed(), gates(), ks(), indexer()};
  }

 private:
  const double* find(const std::string& step, const std::string& value) const {
    const auto found = results_.find(step);
    if (found == results_.end()) return nullptr;
    const auto number = found->second.find(value);
    return number == found->second.end() ? nullptr : &number->second;
  }

  // Over the seeds that have it.
  Cell cell(const std::string& run, const std::string& step, const std::string& value) const {
    Cell result;
    for (std::int64_t seed = 1; seed <= o_.seeds; ++seed) {
      if (const double* number = find(concat(seed_name(seed), "/", run, "/", step), value)) {
        result.seeds[seed] = *number;
      }
    }
    return result;
  }
  // Of the first seed, which is all that ablations have: beside them the main tables' gsa has one seed too.
  Cell first_seed(const std::string& run, const std::string& step, const std::string& value) const {
    const double* number = find(concat(seed_name(1), "/", run, "/", step), value);
    return number != nullptr ? Cell{*number} : Cell{};
  }

  static const Cell& of(const Table& table, const std::string& row, std::size_t column) {
    static const Cell none;
    for (const Row& candidate : table.rows) {
      if (candidate.name == row) return candidate.ours.at(column);
    }
    return none;
  }

  // The spread is that of the column.
  static Claim claim(const Table& table, const std::string& what, const std::string& left,
                     const std::string& right, std::size_t column, Sense sense, Unit unit, double floor) {
    std::vector<Cell> rows;
    for (const Row& row : table.rows) rows.push_back(row.ours.at(column));
    return {.what = what,
            .left = left,
            .right = right,
            .a = of(table, left, column),
            .b = of(table, right, column),
            .sense = sense,
            .unit = unit,
            .floor = floor,
            .spread = spread_of(rows, unit)};
  }

  // One series a column, of the rows' means.
  static Chart bars(const std::string& name, const std::string& title, const Table& table,
                    const std::vector<std::size_t>& columns, const std::string& unit) {
    eval::BarChart chart{.title = title, .y = {.label = unit}};
    for (const Row& row : table.rows) chart.categories.push_back(row.name);
    for (const std::size_t column : columns) {
      eval::BarChart::Bars series{.name = table.columns[column].name};
      for (const Row& row : table.rows) series.values.push_back(row.ours[column].mean());
      chart.series.push_back(std::move(series));
    }
    return {name, std::move(chart)};
  }

  Verdict judged(const std::vector<Claim>& claims) const { return verdict_of(claims, s_.tells); }

  // Ablations have one seed each: perplexity strays as that of the main tables does.
  Claim less_perplexity(const Table& table, const std::string& left, const std::string& right) const {
    Claim result = claim(table, "perplexity", left, right, 0, Sense::below, Unit::percent, kLossFloor);
    std::vector<Cell> rows;
    for (const std::string& system : systems()) rows.push_back(cell(system, "eval-1", "perplexity"));
    result.spread = spread_of(rows, Unit::percent);
    return result;
  }

  Table perplexity() const {
    Table table{.id = "perplexity",
                .title = "Perplexity",
                .about = concat(
                    "Per token, on text that no system has seen; lower is better. All systems learned from "
                    "the same rows for as many tokens (",
                    grouped((s_.base_steps + s_.warmup + s_.sparse) * s_.batch_tokens),
                    "). kept: the share of dense attention's mass on the keys that a sparse system selects, "
                    "and how much of what "
                    "the best selection of that size would keep (oracle)."),
                .columns = {{o_.texts[0], 3},
                            {o_.texts[1], 3},
                            {"kept", 1, Form::percent},
                            {"kept / oracle", 1, Form::percent}},
                .paper_columns = {"WikiText-103", "C4"}};
    const std::vector<std::vector<std::string>> paper = {
        {"6.03", "7.82"}, {"6.02", "7.79"}, {"5.76", "7.45"}, {"5.70", "7.38"}};
    for (std::size_t i = 0; i < systems().size(); ++i) {
      const std::string& system = systems()[i];
      table.rows.push_back({system,
                            {cell(system, "eval-1", "perplexity"), cell(system, "eval-2", "perplexity"),
                             cell(system, "eval-1", "kept"), cell(system, "eval-1", "kept_over_oracle")},
                            paper[i]});
    }
    std::vector<Claim> claims;
    for (std::size_t text = 0; text < 2; ++text) {
      for (const char* other : {"standard", "gated-only"}) {
        claims.push_back(
            claim(table, o_.texts[text], "gsa", other, text, Sense::below, Unit::percent, kLossFloor));
      }
    }
    table.verdict = judged(claims);
    table.charts.push_back(bars("perplexity", "Perplexity", table, {0, 1}, "per token"));
    return table;
  }

  // Answers that a mean is of.
  double answers() const {
    return static_cast<double>(s_.ruler_samples) * static_cast<double>(s_.ruler_tasks.size());
  }

  // Twice the standard error of a difference of two shares of so many answers, in points; a point at least.
  double ruler_floor(const Cell& a, const Cell& b) const {
    const double share = std::clamp((a.mean() + b.mean()) / 200, 0.0, 1.0);
    const double error = 200 * std::sqrt(2 * share * (1 - share) / answers());
    return std::isfinite(error) ? std::max(1.0, error) : 1;
  }

  Table ruler() const {
    Table table{.id = "ruler",
                .title = "RULER by length",
                .about = concat(
                    "Mean score of ", s_.ruler_tasks.size(), " tasks, ", s_.ruler_samples,
                    " samples each; higher is better. * beyond the trained length of ", grouped(s_.length),
                    " tokens, by YaRN. The tasks that RULER hides in essays are hidden in text of ours, so "
                    "that scores compare with each other only."),
                .columns = {},
                .paper_columns = {"4K", "8K", "16K", "32K", "64K*", "128K*"}};
    const std::vector<std::vector<std::string>> paper = {{"88.9", "85.9", "83.2", "79.5", "37.5", "31.7"},
                                                         {"89.1", "86.5", "84.0", "80.2", "42.4", "36.8"},
                                                         {"90.6", "87.1", "84.6", "79.8", "66.6", "58.8"},
                                                         {"91.2", "88.5", "86.1", "82.3", "69.5", "62.2"}};
    std::vector<std::string> steps;
    for (const std::int64_t length : s_.ruler_lengths) {
      const bool extended = length > s_.length;
      table.columns.push_back({grouped(length) + (extended ? "*" : ""), 1});
      steps.push_back(extended ? concat("ruler-", length) : "ruler");
    }
    for (std::size_t i = 0; i < systems().size(); ++i) {
      Row row{systems()[i], {}, paper[i]};
      for (std::size_t j = 0; j < steps.size(); ++j)
        row.ours.push_back(cell(systems()[i], steps[j], concat(s_.ruler_lengths[j])));
      table.rows.push_back(std::move(row));
    }
    // At the longest length of both kinds.
    std::vector<std::size_t> longest;
    for (std::size_t j = 0; j < steps.size(); ++j) {
      const bool last = j + 1 == steps.size();
      if (last || (s_.ruler_lengths[j] <= s_.length && s_.ruler_lengths[j + 1] > s_.length))
        longest.push_back(j);
    }
    std::vector<Claim> claims;
    for (const std::size_t j : longest) {
      for (const char* other : {"standard", "gated-only"}) {
        claims.push_back(claim(table, concat("at ", table.columns[j].name), "gsa", other, j, Sense::above,
                               Unit::points, ruler_floor(of(table, "gsa", j), of(table, other, j))));
      }
    }
    table.verdict = judged(claims);
    eval::LineChart chart{.title = "RULER by length",
                          .x = {.label = "tokens", .scale = eval::Scale::logarithmic},
                          .y = {.label = "score", .low = 0, .high = 100}};
    for (const Row& row : table.rows) {
      eval::Series series{.name = row.name, .points = true};
      for (std::size_t j = 0; j < row.ours.size(); ++j) {
        series.x.push_back(static_cast<double>(s_.ruler_lengths[j]));
        series.y.push_back(row.ours[j].mean());
      }
      chart.series.push_back(std::move(series));
    }
    if (s_.ruler_lengths.back() > s_.length) {
      chart.marks.push_back({static_cast<double>(s_.length), "trained length", true});
    }
    table.charts.push_back({"ruler", std::move(chart)});
    return table;
  }

  Table sinks() const {
    Table table{
        .id = "sinks",
        .title = "Attention sinks and activations",
        .about =
            concat("Mean share of attention that queries pay to the first token, which is the begin mark in "
                   "every row of training; means of the output gate (G1) and the value gate (G2), which "
                   "start at 0.5; the largest magnitude in the residual stream. On ",
                   o_.texts[0], "."),
        .columns = {{"first token", 1, Form::percent}, {"G1", 3}, {"G2", 3}, {"largest activation", 1}},
        .paper_columns = {"First-token attn", "Mean gate", "Max activation"}};
    const std::vector<std::vector<std::string>> paper = {
        {"46.7 %", "–", "1053"}, {"38.2 %", "–", "892"}, {"4.8 %", "0.116", "94"}, {"3.9 %", "0.108", "87"}};
    for (std::size_t i = 0; i < systems().size(); ++i) {
      Row row{systems()[i], {}, paper[i]};
      for (const char* value : {"first_token", "output_gate", "value_gate", "largest"})
        row.ours.push_back(cell(systems()[i], "eval-1", value));
      table.rows.push_back(std::move(row));
    }
    Claim gate = claim(table, "mean output gate", "gsa", "", 1, Sense::below, Unit::percent, kSinkFloor);
    gate.right = "where it starts (0.5)";
    for (const auto& [seed, value] : gate.a.seeds) gate.b.seeds[seed] = 0.5;
    table.verdict = judged(
        {claim(table, "first token's share", "gsa", "standard", 0, Sense::below, Unit::percent, kSinkFloor),
         claim(table, "first token's share", "gated-only", "standard", 0, Sense::below, Unit::percent,
               kSinkFloor),
         claim(table, "largest activation", "gsa", "standard", 3, Sense::below, Unit::percent, kSinkFloor),
         gate});
    Chart chart = bars("sinks", "Attention on the first token", table, {0}, "share of attention");
    std::get<eval::BarChart>(chart.chart).y.unit = eval::Unit::share;
    table.charts.push_back(std::move(chart));
    return table;
  }

  Cell at_rate(double factor, const std::string& system, const char* value) const {
    const std::string run = concat(rate_name(factor), "-", system);
    const double* diverged = find(concat(seed_name(1), "/", run, "/train"), "diverged");
    const bool is_loss = std::string(value) == "loss";
    if (is_loss && diverged != nullptr && *diverged > 0) return {std::numeric_limits<double>::infinity()};
    return first_seed(run, "train", value);
  }

  Table stability() const {
    Table table{
        .id = "stability",
        .title = "Training stability",
        .about = concat("Runs of ", grouped(s_.stability.steps()),
                        " steps from scratch at multiples of the rate that the main tables have (", s_.rate,
                        "): steps whose loss lies 6 deviations above the last 128, and the loss of the "
                        "last tenth. Wall time: of a training step of the main tables, over standard's."),
        .columns = {},
        .paper_columns = {"Spikes / 100K steps", "Max LR", "Wall time"},
        .timed = true};
    const std::vector<std::vector<std::string>> paper = {{"12.3", "4e-3", "1.00×"},
                                                         {"8.7", "5e-3", "0.85×"},
                                                         {"0.8", "8e-3", "1.02×"},
                                                         {"0.3", "8e-3", "0.87×"}};
    const auto& rates = s_.stability_rates;
    for (const double rate : rates) table.columns.push_back({concat("spikes at ", rate, "×"), 0});
    for (const double rate : rates) table.columns.push_back({concat("loss at ", rate, "×"), 3});
    table.columns.push_back({"wall time", 2, Form::times});
    for (std::size_t i = 0; i < systems().size(); ++i) {
      const std::string& system = systems()[i];
      Row row{system, {}, paper[i]};
      for (const double rate : rates) row.ours.push_back(at_rate(rate, system, "loss_spikes"));
      for (const double rate : rates) row.ours.push_back(at_rate(rate, system, "loss"));
      row.ours.push_back(
          ratio(cell("standard", "train", "tokens_per_second"), cell(system, "train", "tokens_per_second")));
      table.rows.push_back(std::move(row));
    }
    Claim spikes{.what = "spikes at all rates", .left = "gsa", .right = "standard", .a = {}, .b = {}};
    spikes.a = sum_of(table, "gsa", rates.size());
    spikes.b = sum_of(table, "standard", rates.size());
    spikes.unit = Unit::points;
    // Counts of rare events: twice the deviation of their difference.
    if (spikes.a.run() && spikes.b.run()) spikes.floor = 2 * std::sqrt(spikes.a.mean() + spikes.b.mean());
    const std::size_t highest = 2 * rates.size() - 1;
    table.verdict = judged({spikes,
                            claim(table, "loss at the highest rate", "gsa", "standard", highest, Sense::below,
                                  Unit::percent, kLossFloor),
                            claim(table, "loss at the highest rate", "gated-only", "standard", highest,
                                  Sense::below, Unit::percent, kLossFloor)});
    eval::LineChart chart{.title = "Loss by learning rate",
                          .x = {.label = "times the rate of the main tables"},
                          .y = {.label = "nats a token"}};
    for (const Row& row : table.rows) {
      eval::Series series{.name = row.name, .points = true};
      for (std::size_t i = 0; i < rates.size(); ++i) {
        series.x.push_back(rates[i]);
        series.y.push_back(row.ours[rates.size() + i].mean());
      }
      chart.series.push_back(std::move(series));
    }
    table.charts.push_back({"stability", std::move(chart)});
    return table;
  }

  static Cell sum_of(const Table& table, const std::string& row, std::size_t columns) {
    double sum = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      const Cell& part = of(table, row, i);
      if (!part.run()) return {};
      sum += part.mean();
    }
    return {sum};
  }

  // Seed by seed.
  static Cell ratio(const Cell& a, const Cell& b) {
    Cell result;
    for (const auto& [seed, value] : a.seeds) {
      if (b.seeds.contains(seed)) result.seeds[seed] = value / b.seeds.at(seed);
    }
    return result;
  }

  Table speed() const {
    Table table{.id = "throughput",
                .title = "Throughput by length",
                .about = concat(
                    "Time to read a prompt (prefill) and to write ", s_.speed_tokens,
                    " tokens behind it (decode), and bytes of cache a token, over standard's; one sequence, "
                    "the models of the main tables. Less is better. Small models spend little on attention, "
                    "so that less can be saved than at the paper's size."),
                .columns = {},
                .paper_columns = {"Prefill 128K", "Decode 128K", "Memory 128K"},
                .timed = true};
    const std::vector<std::vector<std::string>> paper = {{"1.00×", "1.00×", "1.00×"},
                                                         {"0.08×", "0.12×", "0.95×"},
                                                         {"1.02×", "1.01×", "1.02×"},
                                                         {"0.09×", "0.13×", "0.97×"}};
    for (const std::int64_t length : s_.speed_lengths)
      table.columns.push_back({"prefill " + grouped(length), 2, Form::times});
    for (const std::int64_t length : s_.speed_lengths)
      table.columns.push_back({"decode " + grouped(length), 2, Form::times});
    table.columns.push_back({"cache", 2, Form::times});
    const auto step = [](std::int64_t length) { return concat("speed-", length); };
    for (std::size_t i = 0; i < systems().size(); ++i) {
      const std::string& system = systems()[i];
      Row row{system, {}, paper[i]};
      for (const char* what : {"prefill", "decode"}) {
        for (const std::int64_t length : s_.speed_lengths) {
          // Tokens a second: more of them is less time.
          row.ours.push_back(
              ratio(first_seed("standard", step(length), what), first_seed(system, step(length), what)));
        }
      }
      const std::int64_t last = s_.speed_lengths.back();
      row.ours.push_back(
          ratio(first_seed(system, step(last), "cache"), first_seed("standard", step(last), "cache")));
      table.rows.push_back(std::move(row));
    }
    const std::size_t count = s_.speed_lengths.size();
    const std::string at = concat(" at ", grouped(s_.speed_lengths.back()), " tokens");
    table.verdict = judged({claim(table, "time of prefill" + at, "gsa", "standard", count - 1, Sense::below,
                                  Unit::times, kTimeFloor),
                            claim(table, "time of decode" + at, "gsa", "standard", 2 * count - 1,
                                  Sense::below, Unit::times, kTimeFloor)});
    eval::LineChart chart{.title = "Prefill, tokens a second",
                          .x = {.label = "tokens of the prompt", .scale = eval::Scale::logarithmic},
                          .y = {.label = "tokens a second", .scale = eval::Scale::logarithmic}};
    for (const std::string& system : systems()) {
      eval::Series series{.name = system, .points = true};
      for (const std::int64_t length : s_.speed_lengths) {
        series.x.push_back(static_cast<double>(length));
        series.y.push_back(first_seed(system, step(length), "prefill").mean());
      }
      chart.series.push_back(std::move(series));
    }
    table.charts.push_back({"throughput", std::move(chart)});
    return table;
  }

  Row ablation(const std::string& name, const std::string& run, const std::vector<const char*>& values,
               std::vector<std::string> paper = {}) const {
    Row row{name, {}, std::move(paper)};
    for (const char* value : values) row.ours.push_back(first_seed(run, "eval-1", value));
    return row;
  }

  Table gates() const {
    Table table{.id = "gates",
                .title = "Ablation: gate positions",
                .about = concat("gsa with some of its gates, one seed, on ", o_.texts[0],
                                "; each from a dense model that had these gates from the beginning."),
                .columns = {{"perplexity", 3}, {"first token", 1, Form::percent}, {"largest activation", 1}},
                .paper_columns = {"PPL", "MMLU", "Stability"}};
    const std::vector<const char*> values = {"perplexity", "first_token", "largest"};
    table.rows = {ablation("no gate", "no-gates", values, {"6.02", "59.1", "Moderate"}),
                  ablation("G2", "g2", values, {"5.82", "59.2", "Good"}),
                  ablation("G1", "g1", values, {"5.79", "60.1", "Good"}),
                  ablation("G1 + G2", "gsa", values, {"5.70", "61.4", "Excellent"})};
    const auto less = [&](const char* left, const char* right) {
      return less_perplexity(table, left, right);
    };
    table.verdict =
        judged({less("G1 + G2", "no gate"), less("G1 + G2", "G1"), less("G1", "G2"), less("G2", "no gate")});
    table.charts.push_back(bars("gates", "Perplexity by gates", table, {0}, "per token"));
    return table;
  }

  Table ks() const {
    Table table{
        .id = "k",
        .title = "Ablation: k",
        .about = concat(
            "gsa with another k_base, one seed, on ", o_.texts[0], " in windows of ", grouped(s_.length),
            " tokens; kept is the share of dense attention's mass on the selected keys. Speed-up: "
            "prefill at ",
            s_.speed_lengths.empty() ? "" : grouped(s_.speed_lengths.back()),
            " tokens over standard's. The paper's rows are those of its own k: 512 to 4,096."),
        .columns = {{"perplexity", 3},
                    {"mean k", 0},
                    {"kept", 1, Form::percent},
                    {"speed-up", 2, Form::times}},
        .paper_columns = {"k", "PPL", "RULER-128K", "Speedup"},
        .timed = true};
    const std::vector<std::vector<std::string>> paper = {{"512", "5.89", "54.32", "22×"},
                                                         {"1024", "5.78", "58.91", "16×"},
                                                         {"2048", "5.70", "62.18", "12×"},
                                                         {"4096", "5.69", "63.45", "8×"}};
    const auto name = [](std::int64_t k) { return concat("k = ", grouped(k)); };
    for (std::size_t i = 0; i < s_.ks.size(); ++i) {
      const std::string run = s_.ks[i] == s_.k() ? "gsa" : k_name(s_.ks[i]);
      Row row = ablation(name(s_.ks[i]), run, {"perplexity", "k_mean", "kept"},
                         i < paper.size() ? paper[i] : std::vector<std::string>{});
      const std::string step = s_.speed_lengths.empty() ? "" : concat("speed-", s_.speed_lengths.back());
      row.ours.push_back(ratio(first_seed(run, step, "prefill"), first_seed("standard", step, "prefill")));
      table.rows.push_back(std::move(row));
    }
    if (s_.ks.size() >= 2) {
      const std::string smallest = name(s_.ks.front()), largest = name(s_.ks.back());
      table.verdict =
          judged({less_perplexity(table, largest, smallest),
                  claim(table, "speed-up", smallest, largest, 3, Sense::above, Unit::percent, kTimeFloor)});
    }
    eval::LineChart chart{.title = "Perplexity by k",
                          .x = {.label = "k_base", .scale = eval::Scale::logarithmic},
                          .y = {.label = "perplexity"}};
    eval::Series series{.name = "gsa", .points = true};
    for (std::size_t i = 0; i < s_.ks.size(); ++i) {
      series.x.push_back(static_cast<double>(s_.ks[i]));
      series.y.push_back(table.rows[i].ours[0].mean());
    }
    chart.series.push_back(std::move(series));
    table.charts.push_back({"k", std::move(chart)});
    return table;
  }

  Table indexer() const {
    Table table{.id = "indexer",
                .title = "Ablation: the indexer's form and the budget",
                .about = concat(
                    "gsa with one thing changed, one seed, on ", o_.texts[0],
                    ". inverse: k_t shrinks where the scores' variance is high, as the paper's prose has it; "
                    "proportional: as its equation has it. The paper argues for sigmoids and an adaptive "
                    "budget, and has no table of them."),
                .columns = {{"perplexity", 3},
                            {"mean k", 0},
                            {"kept", 1, Form::percent},
                            {"kept / oracle", 1, Form::percent},
                            {"recall", 1, Form::percent}}};
    const std::vector<const char*> values = {"perplexity", "k_mean", "kept", "kept_over_oracle",
                                             "oracle_recall"};
    table.rows = {ablation("sigmoid, inverse", "gsa", values), ablation("ReLU, inverse", "relu", values),
                  ablation("sigmoid, fixed", "fixed", values),
                  ablation("sigmoid, proportional", "proportional", values)};
    const auto less = [&](const char* right) { return less_perplexity(table, "sigmoid, inverse", right); };
    table.verdict = judged({less("ReLU, inverse"), less("sigmoid, fixed"), less("sigmoid, proportional")});
    table.charts.push_back(bars("indexer", "Perplexity by indexer and budget", table, {0}, "per token"));
    return table;
  }

  const TableOptions& o_;
  const Scale& s_;
  const Results& results_;
};

}  // namespace

std::vector<Table> make_tables(const TableOptions& options, const Results& results) {
  std::vector<Table> tables = Tables(options, results).all();
  for (Table& table : tables) std::erase_if(table.charts, [](const Chart& chart) { return is_empty(chart); });
  return tables;
}

std::string shown(const Cell& cell, const Column& column) {
  if (!cell.run()) return "–";
  const double mean = cell.mean(), deviation = cell.deviation();
  if (std::isinf(mean)) return "diverged";
  if (std::isnan(mean)) return "–";
  const double factor = column.form == Form::percent ? 100 : 1;
  std::string text = fixed(factor * mean, column.decimals);
  if (std::isfinite(deviation)) text += " ± " + fixed(factor * deviation, column.decimals);
  if (column.form == Form::percent) text += " %";
  if (column.form == Form::times) text += "×";
  return text;
}

}  // namespace gsa::paper
