#include "paper/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gsa/error.h"

namespace gsa::paper {

const double* Figures::find(const std::string& step, const std::string& value) const {
  const auto found = results_.find(step);
  if (found == results_.end()) return nullptr;
  const auto number = found->second.find(value);
  return number == found->second.end() ? nullptr : &number->second;
}

Cell Figures::cell(const std::string& run, const std::string& step, const std::string& value) const {
  Cell result;
  for (std::int64_t seed = 1; seed <= options_.seeds; ++seed) {
    const double* number = find(concat(seed_name(seed), "/", run, "/", step), value);
    if (number != nullptr) result.seeds[seed] = *number;
  }
  return result;
}

Cell Figures::first_seed(const std::string& run, const std::string& step, const std::string& value) const {
  const double* number = find(concat(seed_name(1), "/", run, "/", step), value);
  return number != nullptr ? Cell{*number} : Cell{};
}

eval::Series Figures::losses(const std::string& run, const std::string& name, std::int64_t before) const {
  eval::Series series{.name = name};
  const auto found = results_.find(concat(seed_name(1), "/", run, "/train"));
  if (found == results_.end()) return series;
  const std::vector<CurvePoint> curve = curve_of(found->second);
  std::int64_t apart = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 1; i < curve.size(); ++i) apart = std::min(apart, curve[i].step - curve[i - 1].step);
  const std::int64_t first = before == 0 && !curve.empty() ? curve.back().step / 20 : 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].step <= first) continue;
    // A phase without loss, such as warm-up, leaves a gap.
    if (i > 0 && curve[i].step - curve[i - 1].step > 2 * apart) {
      series.x.push_back(static_cast<double>(before + curve[i].step));
      series.y.push_back(std::nan(""));
    }
    series.x.push_back(static_cast<double>(before + curve[i].step));
    series.y.push_back(curve[i].loss);
  }
  return series;
}

Claim Figures::less_perplexity(const Table& table, const std::string& left, const std::string& right) const {
  Claim claim = make_claim(table, "perplexity", left, right, 0, Sense::below, Unit::percent, kLossFloor);
  std::vector<Cell> rows;
  for (const std::string& system : systems()) rows.push_back(cell(system, "eval-1", "perplexity"));
  claim.spread = spread_of(rows, Unit::percent);
  return claim;
}

std::string ruler_step(const Scale& scale, std::int64_t length) {
  return length > scale.length ? concat("ruler-", length) : "ruler";
}

Cell mean_of_tasks(const Figures& figures, const std::string& run, const std::string& step,
                   std::int64_t length, const std::vector<std::string>& tasks) {
  std::map<std::int64_t, double> sums, counts;
  for (const std::string& task : tasks) {
    for (const auto& [seed, score] : figures.cell(run, step, concat(length, " ", task)).seeds) {
      sums[seed] += score;
      counts[seed] += 1;
    }
  }
  Cell mean;
  for (const auto& [seed, sum] : sums) mean.seeds[seed] = sum / counts[seed];
  return mean;
}

double ruler_tasks(const Figures& figures, std::int64_t length) {
  auto tasks = static_cast<double>(figures.scale().ruler_tasks.size());
  for (const std::string& system : systems()) {
    const Cell counted = figures.cell(system, ruler_step(figures.scale(), length), concat(length, " tasks"));
    for (const auto& [seed, count] : counted.seeds) tasks = std::min(tasks, count);
  }
  return tasks;
}

double ruler_floor(const Figures& figures, std::int64_t length, const Cell& a, const Cell& b) {
  const double answers = ruler_tasks(figures, length) * static_cast<double>(figures.scale().ruler_samples);
  const double share = std::clamp((a.mean() + b.mean()) / 200, 0.0, 1.0);
  const double error = 200 * std::sqrt(2 * share * (1 - share) / answers);
  return std::isfinite(error) ? std::max(1.0, error) : 1;
}

const Cell& figure(const Table& table, const std::string& row, std::size_t column) {
  static const Cell none;
  for (const Row& candidate : table.rows) {
    if (candidate.name == row) return candidate.ours.at(column);
  }
  return none;
}

Claim make_claim(const Table& table, const std::string& what, const std::string& left,
                 const std::string& right, std::size_t column, Sense sense, Unit unit, double floor) {
  std::vector<Cell> rows;
  for (const Row& row : table.rows) rows.push_back(row.ours.at(column));
  return {.what = what,
          .left = left,
          .right = right,
          .a = figure(table, left, column),
          .b = figure(table, right, column),
          .sense = sense,
          .unit = unit,
          .floor = floor,
          .spread = spread_of(rows, unit)};
}

Cell ratio(const Cell& a, const Cell& b) {
  Cell result;
  for (const auto& [seed, value] : a.seeds) {
    if (b.seeds.contains(seed)) result.seeds[seed] = value / b.seeds.at(seed);
  }
  return result;
}

Chart bar_chart(const std::string& name, const std::string& title, const Table& table,
                const std::vector<std::size_t>& columns, const std::string& unit) {
  eval::BarChart chart{.title = title, .y = {.label = unit}};
  for (const Row& row : table.rows) chart.categories.push_back(row.name);
  for (const std::size_t column : columns) {
    eval::BarChart::Bars series{.name = columns.size() > 1 ? table.columns[column].name : ""};
    for (const Row& row : table.rows) series.values.push_back(row.ours[column].mean());
    chart.series.push_back(std::move(series));
  }
  return {name, std::move(chart)};
}

}  // namespace gsa::paper
