#include "eval/charts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "eval/plot.h"
#include "gsa/error.h"

namespace gsa::eval {
namespace {

std::vector<double> numbers(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i);
  return values;
}

std::vector<std::string> names(std::size_t count) {
  std::vector<std::string> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = concat(i);
  return values;
}

// One value a layer.
template <typename Layer, typename Value>
Series over_layers(const char* name, const std::vector<Layer>& layers, const Value& value) {
  Series series{.name = name, .x = numbers(layers.size()), .y = {}, .points = true};
  for (const Layer& layer : layers) series.y.push_back(value(layer));
  return series;
}

HeatMap by_layer_and_head(std::vector<std::vector<double>> values) {
  const std::size_t rows = values.size(), columns = values.front().size();
  return {.row_label = "layer",
          .column_label = "head",
          .rows = names(rows),
          .columns = names(columns),
          .values = std::move(values),
          .unit = Unit::share,
          .size = {.width = std::max(480, 90 + 44 * static_cast<int>(columns)),
                   .height = std::max(200, 110 + 26 * static_cast<int>(rows))}};
}

std::string first_token(const Sinks& sinks) {
  std::vector<std::vector<double>> values;
  double greatest = 0.5;  // a map of small shares stays pale
  for (const LayerSinks& layer : sinks.layers) {
    values.push_back(layer.first_token);
    for (const double share : layer.first_token) greatest = std::max(greatest, share);
  }
  HeatMap map = by_layer_and_head(std::move(values));
  map.title = "Attention to the first token";
  map.description = "Share of each head's attention that goes to the first token of its sequence.";
  map.low = 0;
  map.high = greatest;
  return to_svg(map);
}

std::string gates(const Sinks& sinks) {
  LineChart chart{.title = "What the gates let through",
                  .description = "Mean of the value gate and of the output gate in each layer.",
                  .x = {.label = "layer", .whole = true},
                  .y = {.label = "mean of the gate", .low = 0, .high = 1}};
  if (sinks.layers.front().value_gate) {
    chart.series.push_back(
        over_layers("value gate (G2)", sinks.layers, [](const LayerSinks& l) { return *l.value_gate; }));
  }
  if (sinks.layers.front().output_gate) {
    chart.series.push_back(
        over_layers("output gate (G1)", sinks.layers, [](const LayerSinks& l) { return *l.output_gate; }));
  }
  return to_svg(chart);
}

std::string residual(const Sinks& sinks) {
  LineChart chart{.title = "Residual stream",
                  .description = "Largest magnitude and root mean square of the residual stream.",
                  .x = {.label = "blocks passed", .whole = true},
                  .y = {.label = "magnitude", .scale = Scale::logarithmic}};
  // A stream of zeros has no place on a logarithmic axis.
  const auto positive = [](double value) {
    return value > 0 ? value : std::numeric_limits<double>::quiet_NaN();
  };
  chart.series.push_back(over_layers("largest", sinks.residual,
                                     [&](const ResidualSize& size) { return positive(size.largest); }));
  chart.series.push_back(over_layers("root mean square", sinks.residual,
                                     [&](const ResidualSize& size) { return positive(size.rms); }));
  return to_svg(chart);
}

std::string kept_mass(const SelectionQuality& quality) {
  std::vector<std::vector<double>> values;
  for (const LayerSelection& layer : quality.layers) values.push_back(layer.kept_mass);
  HeatMap map = by_layer_and_head(std::move(values));
  map.title = "Dense attention's mass on the selected keys";
  map.description = "Share of each head's dense attention that falls on the keys that the indexer selects.";
  map.low = 0;
  map.high = 1;
  return to_svg(map);
}

std::string oracle(const SelectionQuality& quality) {
  LineChart chart{.title = "The selection beside the oracle's",
                  .description =
                      "Dense attention's mass on the selected keys and on the best keys, and the "
                      "share of the best keys that are selected, in each layer.",
                  .x = {.label = "layer", .whole = true},
                  .y = {.label = "share", .unit = Unit::share, .low = 0, .high = 1}};
  const std::pair<const char*, double (OracleTotals::*)() const> lines[] = {
      {"oracle's mass", &OracleTotals::oracle_mass},
      {"kept mass", &OracleTotals::kept_mass},
      {"oracle's keys found", &OracleTotals::recall}};
  for (const auto& [name, value] : lines) {
    chart.series.push_back(over_layers(name, quality.layers, [value = value](const LayerSelection& layer) {
      return (layer.oracle.*value)();
    }));
  }
  return to_svg(chart);
}

std::string key_histogram(const SelectionQuality& quality) {
  const KeyHistogram bins = histogram(quality, 40);
  std::vector<double> shares(bins.edges.size() - 1);
  for (const auto& layer : bins.counts) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      shares[i] += static_cast<double>(layer[i]) / static_cast<double>(quality.queries) /
                   static_cast<double>(quality.layers.size());
    }
  }
  Histogram chart{.title = "Keys a query attends to",
                  .description = "How often each number of selected keys occurs, all layers together.",
                  .x = {.label = "k_t", .whole = true},
                  .y = {.label = "share of queries", .unit = Unit::share},
                  .edges = bins.edges};
  chart.series.push_back({.name = "all layers", .values = std::move(shares)});
  return to_svg(chart);
}

std::string keys_by_layer(const SelectionQuality& quality) {
  LineChart chart{.title = "Keys a query attends to, by layer",
                  .description = "Tenth, median and ninetieth percentile of the number of selected keys.",
                  .x = {.label = "layer", .whole = true},
                  .y = {.label = "k_t", .low = 0}};
  const std::pair<const char*, double> quantiles[] = {{"90 %", 0.9}, {"median", 0.5}, {"10 %", 0.1}};
  for (const auto& [name, share] : quantiles) {
    chart.series.push_back(over_layers(name, quality.layers, [share = share](const LayerSelection& layer) {
      return static_cast<double>(layer.k_t.quantile(share));
    }));
  }
  return to_svg(chart);
}

std::string unions(const SelectionQuality& quality) {
  LineChart chart{.title = "Keys of a tile of queries over keys of one",
                  .description = "Union of the keys that neighbouring queries select, over k.",
                  .x = {.label = "layer", .whole = true},
                  .y = {.label = "union / k", .low = 1}};
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    chart.series.push_back(over_layers(concat(kTiles[i], " queries").c_str(), quality.layers,
                                       [i](const LayerSelection& layer) { return layer.union_over_k[i]; }));
  }
  return to_svg(chart);
}

std::string perplexity(const std::vector<Report>& reports) {
  LineChart chart{.title = "Perplexity by length of the window",
                  .description = "Perplexity per token when the model sees windows of a length.",
                  .x = {.label = "tokens of a window", .scale = Scale::logarithmic},
                  .y = {.label = "perplexity"}};
  Series series{.name = "per token", .points = true};
  for (const Report& report : reports) {
    series.x.push_back(static_cast<double>(report.length));
    series.y.push_back(report.perplexity->per_token());
  }
  chart.series.push_back(std::move(series));
  return to_svg(chart);
}

}  // namespace

std::vector<NamedChart> charts_of(const std::vector<Report>& reports) {
  std::vector<NamedChart> charts;
  if (reports.size() > 1 && reports.front().perplexity) charts.push_back({"perplexity", perplexity(reports)});
  for (const Report& report : reports) {
    const auto add = [&](const char* name, std::string svg) {
      charts.push_back({reports.size() > 1 ? concat(name, "-", report.length) : name, std::move(svg)});
    };
    if (report.sinks) {
      add("first-token", first_token(*report.sinks));
      const LayerSinks& layer = report.sinks->layers.front();
      if (layer.value_gate || layer.output_gate) add("gates", gates(*report.sinks));
      if (report.sinks->largest() > 0) add("residual", residual(*report.sinks));
    }
    if (report.selection) {
      const SelectionQuality& quality = *report.selection;
      add("kept-mass", kept_mass(quality));
      if (std::isfinite(quality.kept_over_oracle_mean())) add("oracle", oracle(quality));
      add("key-histogram", key_histogram(quality));
      add("keys-by-layer", keys_by_layer(quality));
      const bool tiles = std::isfinite(quality.layers.front().union_over_k.front());
      if (tiles) add("unions", unions(quality));
    }
  }
  return charts;
}

}  // namespace gsa::eval
