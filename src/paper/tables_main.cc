// Perplexity, RULER, attention sinks: of the four systems over all seeds.
#include <algorithm>
#include <cmath>
#include <map>

#include "core/number_text.h"
#include "gsa/error.h"
#include "paper/figures.h"
#include "ruler/task.h"

namespace gsa::paper {
namespace {

// What the project asks of gsa: at most this share above gated-only.
constexpr double kAllowedLoss = 0.01;

std::string signed_number(double value) {
  return concat(value < 0 ? "−" : "+", three_digits(std::abs(value)));
}

std::string signed_percent(double share) { return signed_number(100 * share) + " %"; }

// Which part of a sparse system's difference to the dense one is training's, and which the selection's.
std::string split_note(const Table& table, const std::string& text, const std::string& sparse,
                       const std::string& dense, std::size_t own_dense) {
  const Cell &a = figure(table, sparse, 0), &own = figure(table, sparse, own_dense),
             &b = figure(table, dense, 0);
  const double all = mean_difference(a, b, Unit::percent), training = mean_difference(own, b, Unit::percent),
               selection = mean_difference(a, own, Unit::percent);
  if (!std::isfinite(all) || !std::isfinite(training)) return "";
  return concat(sparse, " beside ", dense, " on ", text, ": ", signed_percent(all), ". Training makes ",
                signed_percent(training), " of it (", sparse, " without selection beside ", dense,
                "), selection ", signed_percent(selection), " (", sparse,
                " beside itself without selection).");
}

// What becomes of gsa's difference to standard where the gates start as this project's do.
std::string open_gates_note(const Figures& figures) {
  Cell open = figures.cell("open", "eval-1", "perplexity"),
       paper = figures.cell("gsa", "eval-1", "perplexity");
  // Of the seeds that both have.
  std::erase_if(paper.seeds, [&](const auto& entry) { return !open.seeds.contains(entry.first); });
  std::erase_if(open.seeds, [&](const auto& entry) { return !paper.seeds.contains(entry.first); });
  const auto beside_standard = [&](const Cell& cell) {
    return mean_difference(cell, figures.cell("standard", "eval-1", "perplexity"), Unit::percent);
  };
  if (!std::isfinite(beside_standard(paper)) || !std::isfinite(beside_standard(open))) return "";
  const std::string seeds = open.seeds.size() > 1    ? concat("mean of ", open.seeds.size(), " seeds")
                            : open.seeds.contains(1) ? "first seed"
                                                     : "one seed";
  return concat("gsa beside standard on ", figures.text(0), ", ", seeds, ": ",
                signed_percent(beside_standard(paper)), ". With gates that start at ", kOpenGates,
                " instead of ", kPaperGates,
                " (ablation of gate positions): ", signed_percent(beside_standard(open)), ".");
}

// Which part of gsa's difference to standard comes with the gates, and which with the indexer.
std::string split_of_ruler(const Table& table, std::size_t column) {
  const Cell &gsa = figure(table, "gsa", column), &gated = figure(table, "gated-only", column),
             &standard = figure(table, "standard", column);
  const double all = mean_difference(gsa, standard, Unit::points),
               gates = mean_difference(gated, standard, Unit::points),
               indexer = mean_difference(gsa, gated, Unit::points);
  if (!std::isfinite(all) || !std::isfinite(gates)) return "";
  return concat("gsa beside standard at ", table.columns[column].name, " tokens: ", signed_number(all),
                " points. Gates make ", signed_number(gates),
                " of it (gated-only beside standard), the indexer ", signed_number(indexer),
                " (gsa beside gated-only).");
}

// Tasks of RULER by whether any system answers them, at one length: means over all of them hide that some are out of
// reach for models of a size.
struct TasksAnswered {
  std::vector<std::string> by_some = {}, by_none = {};
};

// Answered: a mean over the seeds of at least this, by one of the systems.
constexpr double kAnswered = 10;

TasksAnswered tasks_answered(const Figures& figures, std::int64_t length) {
  TasksAnswered tasks;
  for (const std::string& task : figures.scale().ruler_tasks) {
    double best = -1;
    for (const std::string& system : systems()) {
      const Cell score = figures.cell(system, ruler_step(figures.scale(), length), concat(length, " ", task));
      if (score.run()) best = std::max(best, score.mean());
    }
    if (best >= 0) (best >= kAnswered ? tasks.by_some : tasks.by_none).push_back(task);
  }
  return tasks;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// What the tasks are that nobody answers, at the longest trained length.
std::string unanswered_note(const TasksAnswered& tasks, std::int64_t length) {
  if (tasks.by_none.empty()) return "";
  const std::size_t all = tasks.by_none.size() + tasks.by_some.size();
  std::string note =
      concat("At ", grouped(length), " tokens no system answers ", tasks.by_none.size(), " of the ", all,
             " tasks: no mean over seeds reaches ", kAnswered, " (", listed(tasks.by_none), ").");
  if (tasks.by_some.empty()) return note;
  return note + concat(" They add next to nothing to the means of ", all, "; the last column is the mean of ",
                       listed(tasks.by_some), ".");
}

// Which of RULER's tasks are not asked, and why.
std::string tasks_left_out(const Scale& scale) {
  std::vector<std::string> left_out, data_of_others;
  for (const ruler::Task& task : ruler::all_tasks()) {
    if (std::find(scale.ruler_tasks.begin(), scale.ruler_tasks.end(), task.name) != scale.ruler_tasks.end())
      continue;
    (task.source == ruler::Source::squad || task.source == ruler::Source::hotpotqa ? data_of_others
                                                                                   : left_out)
        .emplace_back(task.name);
  }
  std::string why;
  if (!left_out.empty()) why = listed(left_out) + " at this scale";
  if (!data_of_others.empty()) {
    why += concat(why.empty() ? "" : "; ", listed(data_of_others),
                  " for want of data of others (--squad, --hotpotqa)");
  }
  if (why.empty()) return "";
  return concat(" Of RULER's ", ruler::all_tasks().size(), " tasks not asked: ", why, ".");
}

Claim less_perplexity_on(const Figures& figures, const Table& table, std::size_t text,
                         const std::string& left, const std::string& right) {
  return make_claim(table, figures.text(text), left, right, text, Sense::below, Unit::percent, kLossFloor);
}

// At the steps that both have.
eval::Series difference(eval::Series series, const eval::Series& less) {
  std::map<double, double> at;
  for (std::size_t i = 0; i < less.x.size(); ++i) at[less.x[i]] = less.y[i];
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const auto found = at.find(series.x[i]);
    series.y[i] = found == at.end() ? std::nan("") : series.y[i] - found->second;
  }
  return series;
}

Chart ruler_by_task(const Figures& figures, const std::string& system) {
  const Scale& s = figures.scale();
  eval::HeatMap map{.title = "RULER by task: " + system,
                    .description = "Scores of 0 to 100 by task and length",
                    .caption = "score, 0 to 100",
                    .column_label = "tokens",
                    .rows = s.ruler_tasks,
                    .low = 0,
                    .high = 100};
  for (const std::int64_t length : s.ruler_lengths)
    map.columns.push_back(grouped(length) + (length > s.length ? "*" : ""));
  for (const std::string& task : s.ruler_tasks) {
    map.values.emplace_back();
    for (const std::int64_t length : s.ruler_lengths) {
      const double score = figures.cell(system, ruler_step(s, length), concat(length, " ", task)).mean();
      map.values.back().push_back(std::round(score));
    }
  }
  map.size = {.width = std::max(360, 150 + 64 * static_cast<int>(map.columns.size())),
              .height = 80 + 26 * static_cast<int>(map.rows.size())};
  return {"ruler-" + system, std::move(map)};
}

}  // namespace

Table perplexity_table(const Figures& figures) {
  const Scale& s = figures.scale();
  Table table{
      .id = "perplexity",
      .title = "Perplexity",
      .about = concat(
          "Per token, on text that no system has seen; lower is better. All systems learned from the same "
          "rows for as many tokens (",
          grouped((s.base_steps + s.warmup + s.sparse) * s.batch_tokens), "). Of sparse systems, on ",
          figures.text(0),
          ": without selection, as in their dense phase; how many keys a query has (k); the share of dense "
          "attention's mass on them (kept), and how much that is of what the best choice of as many keys "
          "would keep (oracle); how many keys of that choice are among them (recall)."),
      .columns = {{figures.text(0), 3},
                  {figures.text(1), 3},
                  {"without selection", 3},
                  {"mean k", 0},
                  {"kept", 1, Form::percent},
                  {"kept / oracle", 1, Form::percent},
                  {"recall", 1, Form::percent}},
      .paper_columns = {"WikiText-103", "C4"}};
  constexpr std::size_t kOwnDense = 2;
  const std::vector<std::vector<std::string>> paper = {
      {"6.03", "7.82"}, {"6.02", "7.79"}, {"5.76", "7.45"}, {"5.70", "7.38"}};
  std::string sizes;
  for (std::size_t i = 0; i < systems().size(); ++i) {
    const std::string& system = systems()[i];
    Row row{system, {}, paper[i]};
    row.ours = {figures.cell(system, "eval-1", "perplexity"), figures.cell(system, "eval-2", "perplexity"),
                figures.cell(system, "eval-dense", "perplexity")};
    for (const char* value : {"k_mean", "kept", "kept_over_oracle", "oracle_recall"})
      row.ours.push_back(figures.cell(system, "eval-1", value));
    const Cell size = figures.first_seed(system, "eval-1", "parameters");
    if (size.run()) {
      sizes += concat(sizes.empty() ? "" : ", ", system, " ", fixed(size.mean() / 1e6, 2), " million");
    }
    table.rows.push_back(std::move(row));
  }
  std::vector<Claim> claims, goal;
  for (std::size_t text = 0; text < 2; ++text) {
    for (const char* other : {"standard", "sparse-only", "gated-only"})
      claims.push_back(less_perplexity_on(figures, table, text, "gsa", other));
    claims.push_back(less_perplexity_on(figures, table, text, "gated-only", "standard"));
    goal.push_back(less_perplexity_on(figures, table, text, "gsa", "gated-only"));
    goal.back().allowance = kAllowedLoss;
    goal.back().floor = 0;
    goal.push_back(less_perplexity_on(figures, table, text, "gsa", "standard"));
  }
  table.verdict = figures.judged(claims);
  table.goals.push_back({concat("This project's bar: gsa at most ", 100 * kAllowedLoss,
                                " % above gated-only, and below standard"),
                         figures.judged(goal)});
  for (const auto& [sparse, dense] : {std::pair("gsa", "gated-only"), std::pair("sparse-only", "standard")}) {
    const std::string note = split_note(table, figures.text(0), sparse, dense, kOwnDense);
    if (!note.empty()) table.notes.push_back(note);
  }
  if (const std::string note = open_gates_note(figures); !note.empty()) table.notes.push_back(note);
  if (!sizes.empty()) table.notes.push_back("Parameters: " + sizes + ".");
  table.charts.push_back(bar_chart("perplexity", "Perplexity", table, {0, 1}, "per token"));
  eval::LineChart base{.title = "Loss by step, before the systems part",
                       .x = {.label = kStepsFromScratch},
                       .y = {.label = "nats a token"}};
  base.series = {figures.losses("base-standard", "without gates"),
                 figures.losses("base-gated", "with gates")};
  table.charts.push_back({"loss-base", std::move(base)});
  // All read the same rows: what the rows make of the losses, which is far more, goes with the difference.
  eval::LineChart adapted{
      .title = concat("Loss by step beside standard's, the last ", grouped(s.warmup + s.sparse), " steps"),
      .x = {.label = "step"},
      .y = {.label = "nats a token"},
      .marks = {{0, "standard"}}};
  const eval::Series standard = figures.losses("standard", "standard", s.base_steps);
  for (std::size_t i = 0; i < systems().size(); ++i) {
    if (systems()[i] == standard.name) continue;
    adapted.series.push_back(difference(figures.losses(systems()[i], systems()[i], s.base_steps), standard));
    adapted.series.back().color = static_cast<int>(i);  // as in the other charts
  }
  const auto begin = static_cast<double>(s.base_steps), end = static_cast<double>(s.base_steps + s.warmup);
  adapted.spans.push_back({begin, end, "warm-up"});
  table.charts.push_back({"loss", std::move(adapted)});
  return table;
}

Table ruler_table(const Figures& figures) {
  const Scale& s = figures.scale();
  Table table{
      .id = "ruler",
      .title = "RULER by length",
      .about = concat("Mean score of ", s.ruler_tasks.size(), " tasks, ", s.ruler_samples,
                      " samples each; higher is better. * beyond the trained length of ", grouped(s.length),
                      " tokens, by YaRN.",
                      s.essays.empty()
                          ? " The tasks that RULER hides in essays are hidden in text of ours, so that "
                            "scores compare with each other only."
                          : "",
                      tasks_left_out(s)),
      .columns = {},
      .paper_columns = {"4K", "8K", "16K", "32K", "64K*", "128K*"}};
  const std::vector<std::vector<std::string>> paper = {{"88.9", "85.9", "83.2", "79.5", "37.5", "31.7"},
                                                       {"89.1", "86.5", "84.0", "80.2", "42.4", "36.8"},
                                                       {"90.6", "87.1", "84.6", "79.8", "66.6", "58.8"},
                                                       {"91.2", "88.5", "86.1", "82.3", "69.5", "62.2"}};
  for (const std::int64_t length : s.ruler_lengths)
    table.columns.push_back({grouped(length) + (length > s.length ? "*" : ""), 1});
  const std::int64_t longest = longest_near(s);
  const TasksAnswered answered = tasks_answered(figures, longest);
  const bool has_rest = !answered.by_none.empty() && !answered.by_some.empty();
  if (has_rest)
    table.columns.push_back({concat(grouped(longest), ", ", answered.by_some.size(), " tasks"), 1});
  for (std::size_t i = 0; i < systems().size(); ++i) {
    Row row{systems()[i], {}, paper[i]};
    for (const std::int64_t length : s.ruler_lengths)
      row.ours.push_back(figures.cell(systems()[i], ruler_step(s, length), concat(length)));
    if (has_rest)
      row.ours.push_back(mean_of_tasks(figures, systems()[i], "ruler", longest, answered.by_some));
    table.rows.push_back(std::move(row));
  }
  std::vector<Claim> claims;
  for (std::size_t j = 0; j < s.ruler_lengths.size(); ++j) {
    const std::int64_t length = s.ruler_lengths[j];
    const double tasks = ruler_tasks(figures, length);
    if (tasks < static_cast<double>(s.ruler_tasks.size())) {
      table.notes.push_back(concat("At ", grouped(length), " tokens ", tasks, " of the ",
                                   s.ruler_tasks.size(), " tasks were asked: means are of these."));
    }
    if (length == longest) {
      for (const std::string& note : {unanswered_note(answered, length), split_of_ruler(table, j)}) {
        if (!note.empty()) table.notes.push_back(note);
      }
    }
    for (const char* other : {"standard", "sparse-only", "gated-only"}) {
      const double floor = ruler_floor(figures, length, figure(table, "gsa", j), figure(table, other, j));
      claims.push_back(make_claim(table, concat("score at ", table.columns[j].name), "gsa", other, j,
                                  Sense::above, Unit::points, floor));
    }
  }
  table.verdict = figures.judged(claims);
  eval::LineChart chart{.title = "RULER by length",
                        .x = {.label = "tokens", .scale = eval::Scale::logarithmic},
                        .y = {.label = "score", .low = 0, .high = 100}};
  for (const Row& row : table.rows) {
    eval::Series series{.name = row.name, .points = true};
    for (std::size_t j = 0; j < s.ruler_lengths.size(); ++j) {
      series.x.push_back(static_cast<double>(s.ruler_lengths[j]));
      series.y.push_back(row.ours[j].mean());
    }
    chart.series.push_back(std::move(series));
  }
  if (s.ruler_lengths.back() > s.length) {
    chart.marks.push_back({static_cast<double>(s.length), "trained length", true});
  }
  table.charts.push_back({"ruler", std::move(chart)});
  for (const std::string& system : systems()) table.charts.push_back(ruler_by_task(figures, system));
  return table;
}

Table sinks_table(const Figures& figures) {
  Table table{
      .id = "sinks",
      .title = "Attention sinks and activations",
      .about = concat(
          "Mean share of attention that queries pay to the first token, which is the begin mark in every "
          "row of training, and what it would be if they paid all tokens alike (even); means of the output "
          "gate (G1) and the value gate (G2), which start at 0.5; the largest magnitude in the residual "
          "stream. On ",
          figures.text(0), "."),
      .columns = {{"first token", 1, Form::percent},
                  {"even", 2, Form::percent},
                  {"G1", 3},
                  {"G2", 3},
                  {"largest activation", 1}},
      .paper_columns = {"First-token attn", "Mean gate", "Max activation"}};
  const std::vector<std::vector<std::string>> paper = {
      {"46.7 %", "–", "1053"}, {"38.2 %", "–", "892"}, {"4.8 %", "0.116", "94"}, {"3.9 %", "0.108", "87"}};
  for (std::size_t i = 0; i < systems().size(); ++i) {
    Row row{systems()[i], {}, paper[i]};
    for (const char* value : {"first_token", "even_share", "output_gate", "value_gate", "largest"})
      row.ours.push_back(figures.cell(systems()[i], "eval-1", value));
    row.ours[1] = figures.first_seed(systems()[i], "eval-1", "even_share");  // depends on lengths alone
    table.rows.push_back(std::move(row));
  }
  const auto less = [&](const char* what, const char* left, const char* right, std::size_t column) {
    return make_claim(table, what, left, right, column, Sense::below, Unit::percent, kSinkFloor);
  };
  Claim gate = less("mean output gate", "gsa", "", 2);
  gate.right = "its start of 0.5";
  for (const auto& [seed, value] : gate.a.seeds) gate.b.seeds[seed] = 0.5;
  table.verdict = figures.judged({less("first token's share", "gsa", "standard", 0),
                                  less("first token's share", "gated-only", "standard", 0),
                                  less("largest activation", "gsa", "standard", 4),
                                  less("largest activation", "gated-only", "standard", 4), gate});
  Chart chart = bar_chart("sinks", "Attention on the first token", table, {0}, "share of attention");
  auto& bars = std::get<eval::BarChart>(chart.chart);
  bars.y.unit = eval::Unit::share;
  const double even = figure(table, "standard", 1).mean();
  if (std::isfinite(even)) bars.marks.push_back({even, "even"});
  table.charts.push_back(std::move(chart));
  return table;
}

}  // namespace gsa::paper
