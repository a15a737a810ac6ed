#include "eval/charts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gsa/error.h"
#include "plot/markup.h"
#include "plot/plot.h"

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

struct Drawn {
  std::string title, svg;
};

template <typename Chart>
Drawn drawn(Chart& chart, const std::string& caption) {
  chart.caption = caption;
  return {chart.title, to_svg(chart)};
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

Drawn first_token(const Sinks& sinks, const std::string& caption) {
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
  return drawn(map, caption);
}

Drawn gates(const Sinks& sinks, const std::string& caption) {
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
  return drawn(chart, caption);
}

Drawn residual(const Sinks& sinks, const std::string& caption) {
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
  return drawn(chart, caption);
}

Drawn kept_mass_chart(const SelectionQuality& quality, const std::string& caption) {
  std::vector<std::vector<double>> values;
  for (const LayerSelection& layer : quality.layers) values.push_back(layer.kept_mass);
  HeatMap map = by_layer_and_head(std::move(values));
  map.title = "Dense attention's mass on the selected keys";
  map.description = "Share of each head's dense attention that falls on the keys that the indexer selects.";
  map.low = 0;
  map.high = 1;
  return drawn(map, caption);
}

Drawn oracle(const SelectionQuality& quality, const std::string& caption) {
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
  return drawn(chart, caption);
}

Drawn key_histogram(const SelectionQuality& quality, const std::string& caption) {
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
  return drawn(chart, caption);
}

Drawn keys_by_layer(const SelectionQuality& quality, const std::string& caption) {
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
  return drawn(chart, caption);
}

Drawn unions(const SelectionQuality& quality, const std::string& caption) {
  LineChart chart{.title = "Keys of a tile of queries over keys of one",
                  .description = "Union of the keys that neighbouring queries select, over k.",
                  .x = {.label = "layer", .whole = true},
                  .y = {.label = "union / k", .low = 1}};
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    chart.series.push_back(over_layers(concat(kTiles[i], " queries").c_str(), quality.layers,
                                       [i](const LayerSelection& layer) { return layer.union_over_k[i]; }));
  }
  return drawn(chart, caption);
}

Drawn agreement_chart(const char* title, const char* description, LayerPairs pairs,
                      const std::string& caption) {
  HeatMap map = by_layer_and_head(std::move(pairs));
  map.title = title;
  map.description = description;
  map.row_label = "layer that is asked";
  map.column_label = "layer whose keys are looked for";
  map.low = 0;
  map.high = 1;
  return drawn(map, caption);
}

Drawn perplexity(const std::vector<Report>& reports, const std::string& caption) {
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
  return drawn(chart, caption);
}

}  // namespace

std::vector<NamedChart> charts_of(const std::vector<Report>& reports, const std::string& caption) {
  std::vector<NamedChart> charts;
  if (reports.size() > 1 && reports.front().perplexity) {
    Drawn chart = perplexity(reports, caption);
    charts.push_back({"perplexity", std::move(chart.title), std::move(chart.svg)});
  }
  for (const Report& report : reports) {
    const bool several = reports.size() > 1;
    const std::string at =
        several && !caption.empty() ? concat(caption, ", windows of ", report.length) : caption;
    const auto add = [&](const char* name, Drawn chart) {
      charts.push_back({several ? concat(name, "-", report.length) : name,
                        several ? concat(chart.title, ", windows of ", report.length) : chart.title,
                        std::move(chart.svg)});
    };
    if (report.sinks) {
      add("first-token", first_token(*report.sinks, at));
      const LayerSinks& layer = report.sinks->layers.front();
      if (layer.value_gate || layer.output_gate) add("gates", gates(*report.sinks, at));
      if (report.sinks->largest() > 0) add("residual", residual(*report.sinks, at));
    }
    if (report.selection) {
      const SelectionQuality& quality = *report.selection;
      add("kept-mass", kept_mass_chart(quality, at));
      if (std::isfinite(quality.kept_over_oracle_mean())) add("oracle", oracle(quality, at));
      add("key-histogram", key_histogram(quality, at));
      add("keys-by-layer", keys_by_layer(quality, at));
      const bool tiles = std::isfinite(quality.layers.front().union_over_k.front());
      if (tiles) add("unions", unions(quality, at));
    }
    if (report.agreement && std::isfinite(report.agreement->selections.front().front())) {
      add("agreement", agreement_chart("Keys that layers have in common",
                                       "Share of the keys that one layer selects which another selects, too.",
                                       report.agreement->selections, at));
      add("agreement-oracles",
          agreement_chart("Best keys that layers have in common",
                          "Share of the keys that one layer's attention likes best which are another's, too.",
                          report.agreement->oracles, at));
    }
  }
  return charts;
}

std::string index_page(const std::vector<NamedChart>& charts, const std::string& caption) {
  std::string page =
      concat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", xml_escaped(caption),
             "</title>\n<style>:root{color-scheme:light dark}body{font:15px system-ui,sans-serif;margin:24px}"
             "img{max-width:100%;margin:0 16px 16px 0}</style></head>\n<body><h1>",
             xml_escaped(caption), "</h1>\n");
  for (const NamedChart& chart : charts) {
    page += concat("<img src=\"", chart.name, ".svg\" alt=\"", xml_escaped(chart.title), "\">\n");
  }
  return page + "</body></html>\n";
}

}  // namespace gsa::eval
