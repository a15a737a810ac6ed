#include "paper/tables.h"

#include <algorithm>
#include <cmath>

#include "core/number_text.h"
#include "paper/figures.h"

namespace gsa::paper {
namespace {

bool has_any(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

bool has_any(const Chart& chart) {
  const auto in = [](const auto& parts, const auto& values_of) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const auto& part) { return has_any(values_of(part)); });
  };
  if (const auto* lines = std::get_if<eval::LineChart>(&chart.chart)) {
    return in(lines->series, [](const eval::Series& series) { return series.y; });
  }
  if (const auto* map = std::get_if<eval::HeatMap>(&chart.chart)) {
    return in(map->values, [](const std::vector<double>& row) { return row; });
  }
  return in(std::get<eval::BarChart>(chart.chart).series,
            [](const eval::BarChart::Bars& bars) { return bars.values; });
}

}  // namespace

const std::string& Chart::title() const {
  return std::visit([](const auto& any) -> const std::string& { return any.title; }, chart);
}

std::vector<Table> make_tables(const TableOptions& options, const Results& results) {
  const Figures figures(options, results);
  std::vector<Table> tables = {perplexity_table(figures), ruler_table(figures),     ruler_gap_table(figures),
                               sinks_table(figures),      stability_table(figures), throughput_table(figures),
                               gates_table(figures),      k_table(figures),         indexer_table(figures)};
  for (Table& table : tables) std::erase_if(table.charts, [](const Chart& chart) { return !has_any(chart); });
  return tables;
}

std::string cell_text(const Cell& cell, const Column& column) {
  if (!cell.run()) return "–";
  const double mean = cell.mean(), deviation = cell.deviation();
  if (std::isinf(mean)) return "diverged";
  if (std::isnan(mean)) return "–";
  const double factor = column.form == Form::percent ? 100 : 1;
  // Three decimals are for numbers below 10; larger ones need fewer.
  const int fewer = column.decimals < 3 || mean < 10 ? 0 : mean < 100 ? 1 : 2;
  std::string text = fixed(factor * mean, column.decimals - fewer);
  if (std::isfinite(deviation)) text += " ± " + fixed(factor * deviation, column.decimals - fewer);
  if (column.form == Form::percent) text += " %";
  if (column.form == Form::times) text += "×";
  return text;
}

}  // namespace gsa::paper
