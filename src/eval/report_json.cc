#include "eval/report_json.h"

#include "gsa/error.h"

namespace gsa::eval {
namespace {

OrderedJson to_json(const Perplexity& perplexity) {
  OrderedJson json;
  json["per_token"] = perplexity.per_token();
  json["nats_per_token"] = perplexity.loss();
  json["per_byte"] = perplexity.per_byte();
  json["bits_per_byte"] = perplexity.bits_per_byte();
  json["nats"] = perplexity.nats;
  json["predictions"] = perplexity.predictions;
  json["text_bytes"] = perplexity.text_bytes;
  return json;
}

OrderedJson to_json(const Sinks& sinks) {
  OrderedJson json;
  json["first_token_mean"] = sinks.first_token_mean();
  json["even_share"] = sinks.even_share;
  json["largest_activation"] = sinks.largest();
  json["queries"] = sinks.queries;
  for (const LayerSinks& layer : sinks.layers) {
    OrderedJson entry;
    entry["first_token_mean"] = layer.first_token_mean();
    entry["first_token"] = layer.first_token;
    if (layer.value_gate) entry["value_gate"] = *layer.value_gate;
    if (layer.output_gate) entry["output_gate"] = *layer.output_gate;
    json["layers"].push_back(std::move(entry));
  }
  for (const ResidualSize& size : sinks.residual) {
    json["residual"].push_back(
        OrderedJson{{"largest", size.largest}, {"position", size.position}, {"rms", size.rms}});
  }
  return json;
}

OrderedJson to_json(const KeyCounts& k_t) {
  OrderedJson json;
  json["mean"] = k_t.mean();
  json["min"] = k_t.min();
  json["p10"] = k_t.quantile(0.1);
  json["p50"] = k_t.quantile(0.5);
  json["p90"] = k_t.quantile(0.9);
  json["max"] = k_t.max();
  return json;
}

OrderedJson to_json(const OracleTotals& totals) {
  OrderedJson json;
  json["queries"] = totals.queries;
  json["kept_mass"] = totals.kept_mass();
  json["oracle_mass"] = totals.oracle_mass();
  json["kept_over_oracle"] = totals.kept_over_oracle();
  json["recall"] = totals.recall();
  return json;
}

OrderedJson oracle_summary(const SelectionQuality& quality, std::int64_t queries_of_window) {
  OrderedJson json;
  json["queries_of_window"] = queries_of_window;
  json["kept_over_oracle_mean"] = quality.kept_over_oracle_mean();
  const std::optional<std::size_t> worst = quality.worst_layer();
  json["kept_over_oracle_worst"] =
      worst ? OrderedJson(quality.layers[*worst].oracle.kept_over_oracle()) : OrderedJson();
  json["worst_layer"] = worst ? OrderedJson(*worst) : OrderedJson();
  json["recall_mean"] = quality.recall_mean();
  return json;
}

OrderedJson to_json(const SelectionQuality& quality, std::optional<std::int64_t> oracle_queries) {
  OrderedJson json;
  json["kept_mass_mean"] = quality.kept_mass_mean();
  json["k_mean"] = quality.k_mean();
  json["queries"] = quality.queries;
  if (oracle_queries) json["oracle"] = oracle_summary(quality, *oracle_queries);
  const KeyHistogram bins = histogram(quality, 64);
  json["k_t_edges"] = bins.edges;
  for (std::size_t i = 0; i < quality.layers.size(); ++i) {
    const LayerSelection& layer = quality.layers[i];
    OrderedJson entry;
    entry["kept_mass_mean"] = layer.kept_mass_mean();
    entry["kept_mass"] = layer.kept_mass;
    entry["kept_mass_of_choosing"] = layer.kept_mass_of_choosing;
    entry["choosing"] = layer.choosing;
    if (oracle_queries) entry["oracle"] = to_json(layer.oracle);
    entry["k_t"] = to_json(layer.k_t);
    entry["k_t"]["counts"] = bins.counts[i];
    for (std::size_t t = 0; t < kTiles.size(); ++t) {
      entry["union_over_k"][concat(kTiles[t])] = layer.union_over_k[t];
    }
    json["layers"].push_back(std::move(entry));
  }
  return json;
}

OrderedJson to_json(const Agreement& agreement, std::int64_t queries_of_window) {
  OrderedJson json;
  json["queries_of_window"] = queries_of_window;
  json["selections_of_neighbours_mean"] = Agreement::neighbours_mean(agreement.selections);
  json["oracles_of_neighbours_mean"] = Agreement::neighbours_mean(agreement.oracles);
  json["selections"] = agreement.selections;  // [a][b]: share of layer b's keys that layer a has
  json["oracles"] = agreement.oracles;
  json["queries"] = agreement.queries;
  return json;
}

}  // namespace

OrderedJson to_json(const Report& report) {
  OrderedJson json;
  json["phase"] = nn::name_of(report.phase);
  json["length"] = report.length;
  json["stride"] = report.stride;
  json["windows"] = report.windows;
  json["tokens"] = report.tokens;
  json["predictions"] = report.predictions;
  json["seconds"] = report.seconds;
  if (report.perplexity) json["perplexity"] = to_json(*report.perplexity);
  if (report.sinks) json["sinks"] = to_json(*report.sinks);
  if (report.selection) json["selection"] = to_json(*report.selection, report.oracle_queries);
  if (report.agreement) json["agreement"] = to_json(*report.agreement, report.agreement_queries);
  return json;
}

}  // namespace gsa::eval
