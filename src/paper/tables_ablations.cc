// Ablations: gate positions, k, the indexer's form and the budget. One seed each.
#include "core/number_text.h"
#include "gsa/error.h"
#include "paper/figures.h"

namespace gsa::paper {
namespace {

Row ablation_table(const Figures& figures, const std::string& name, const std::string& run,
                   const std::vector<const char*>& values, std::vector<std::string> paper = {}) {
  Row row{name, {}, std::move(paper)};
  for (const char* value : values) row.ours.push_back(figures.first_seed(run, "eval-1", value));
  return row;
}

}  // namespace

Table gates_table(const Figures& figures) {
  Table table{
      .id = "gates",
      .title = "Ablation: gate positions",
      .about = concat("gsa with some of its gates, one seed, on ", figures.text(0),
                      "; each from a dense model that had these gates from the beginning. Gates start "
                      "at one half; in the last row, which the paper does not have, at ",
                      kOpenGates, "."),
      .columns = {{"perplexity", 3}, {"first token", 1, Form::percent}, {"largest activation", 1}},
      .paper_columns = {"PPL", "MMLU", "Stability"}};
  const std::vector<const char*> values = {"perplexity", "first_token", "largest"};
  const std::string open = concat("G1 + G2 from ", kOpenGates);
  table.rows = {ablation_table(figures, "no gate", "no-gates", values, {"6.02", "59.1", "Moderate"}),
                ablation_table(figures, "G2", "g2", values, {"5.82", "59.2", "Good"}),
                ablation_table(figures, "G1", "g1", values, {"5.79", "60.1", "Good"}),
                ablation_table(figures, "G1 + G2", "gsa", values, {"5.70", "61.4", "Excellent"}),
                ablation_table(figures, open, "open", values, {"–", "–", "–"})};
  const auto less = [&](const std::string& left, const std::string& right) {
    return figures.less_perplexity(table, left, right);
  };
  table.verdict = figures.judged(
      {less("G1 + G2", "no gate"), less("G1 + G2", "G1"), less("G1", "G2"), less("G2", "no gate")});
  table.goals.push_back({concat("Gates that start at ", kOpenGates, ", as this project's do"),
                         figures.judged({less(open, "no gate"), less(open, "G1 + G2")})});
  table.charts.push_back(bar_chart("gates", "Perplexity by gates", table, {0}, "per token"));
  return table;
}

Table k_table(const Figures& figures) {
  const Scale& s = figures.scale();
  Table table{
      .id = "k",
      .title = "Ablation: k",
      .about = concat(
          "gsa with another k, one seed, on ", figures.text(0), " in windows of ", grouped(s.length),
          " tokens; kept is the share of dense attention's mass on the selected keys. Speed-up: prefill at ",
          s.speed_lengths.empty() ? "" : grouped(s.speed_lengths.back()),
          " tokens over standard's. The paper's rows are those of its own k: 512 to 4,096."),
      .columns = {{"perplexity", 3}, {"mean k", 0}, {"kept", 1, Form::percent}, {"speed-up", 2, Form::times}},
      .paper_columns = {"k", "PPL", "RULER-128K", "Speedup"}};
  constexpr std::size_t kSpeedUp = 3, kRuler = 4;
  const std::vector<std::vector<std::string>> paper = {{"512", "5.89", "54.32", "22×"},
                                                       {"1024", "5.78", "58.91", "16×"},
                                                       {"2048", "5.70", "62.18", "12×"},
                                                       {"4096", "5.69", "63.45", "8×"}};
  const auto name = [](std::int64_t k) { return concat("k = ", grouped(k)); };
  const auto run_of = [&](std::int64_t k) { return k == s.k() ? "gsa" : k_name(k); };
  const std::string speed = s.speed_lengths.empty() ? "" : concat("speed-", s.speed_lengths.back());
  // RULER at the longest trained length, where models beside the main tables' gsa were asked too.
  std::int64_t ruler_length = 0;
  for (const std::int64_t length : s.ruler_lengths) {
    for (const std::int64_t k : s.ks) {
      const bool asked = figures.first_seed(run_of(k), "ruler", concat(length)).run();
      if (k != s.k() && length <= s.length && asked) ruler_length = length;
    }
  }
  if (ruler_length > 0) table.columns.push_back({concat("RULER ", grouped(ruler_length)), 1});
  for (std::size_t i = 0; i < s.ks.size(); ++i) {
    const std::string run = run_of(s.ks[i]);
    Row row = ablation_table(figures, name(s.ks[i]), run, {"perplexity", "k_mean", "kept"},
                             i < paper.size() ? paper[i] : std::vector<std::string>{});
    row.ours.push_back(
        ratio(figures.first_seed(run, speed, "prefill"), figures.first_seed("standard", speed, "prefill")));
    if (ruler_length > 0) row.ours.push_back(figures.first_seed(run, "ruler", concat(ruler_length)));
    table.rows.push_back(std::move(row));
  }
  if (s.ks.size() >= 2) {
    const std::string smallest = name(s.ks.front()), largest = name(s.ks.back());
    std::vector<Claim> claims = {
        figures.less_perplexity(table, largest, smallest),
        make_claim(table, "speed-up", smallest, largest, kSpeedUp, Sense::above, Unit::percent, kTimeFloor)};
    if (ruler_length > 0) {
      claims.push_back(make_claim(table, table.columns[kRuler].name, largest, smallest, kRuler, Sense::above,
                                  Unit::points,
                                  ruler_floor(figures, ruler_length, figure(table, largest, kRuler),
                                              figure(table, smallest, kRuler))));
    }
    table.verdict = figures.judged(claims);
  }
  eval::LineChart chart{.title = "Perplexity by k",
                        .x = {.label = "k", .scale = eval::Scale::logarithmic},
                        .y = {.label = "perplexity"}};
  eval::Series series{.name = "", .points = true};
  for (std::size_t i = 0; i < s.ks.size(); ++i) {
    series.x.push_back(static_cast<double>(s.ks[i]));
    series.y.push_back(table.rows[i].ours[0].mean());
  }
  chart.series.push_back(std::move(series));
  table.charts.push_back({"k", std::move(chart)});
  return table;
}

Table indexer_table(const Figures& figures) {
  Table table{
      .id = "indexer",
      .title = "Ablation: the indexer's form and the budget",
      .about = concat(
          "gsa with one thing changed, one seed, on ", figures.text(0),
          ". inverse: k_t shrinks where the scores' variance is high, as the paper's prose has it; "
          "proportional: as its equation has it. The paper argues for sigmoids and an adaptive budget, and "
          "has no table of them."),
      .columns = {{"perplexity", 3},
                  {"mean k", 0},
                  {"kept", 1, Form::percent},
                  {"kept / oracle", 1, Form::percent},
                  {"recall", 1, Form::percent}}};
  const std::vector<const char*> values = {"perplexity", "k_mean", "kept", "kept_over_oracle",
                                           "oracle_recall"};
  table.rows = {ablation_table(figures, "sigmoid + inverse", "gsa", values),
                ablation_table(figures, "ReLU + inverse", "relu", values),
                ablation_table(figures, "sigmoid + fixed", "fixed", values),
                ablation_table(figures, "sigmoid + proportional", "proportional", values)};
  const auto less = [&](const char* right) {
    return figures.less_perplexity(table, "sigmoid + inverse", right);
  };
  table.verdict =
      figures.judged({less("ReLU + inverse"), less("sigmoid + fixed"), less("sigmoid + proportional")});
  table.charts.push_back(bar_chart("indexer", "Perplexity by indexer and budget", table, {0}, "per token"));
  return table;
}

}  // namespace gsa::paper
