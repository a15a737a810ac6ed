#include "cli/eval_tables.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cli/text.h"
#include "gsa/error.h"

namespace gsa::cli {
namespace {

using namespace gsa::eval;

std::string decimals(double value, int digits) {
  return std::isfinite(value) ? fixed(value, digits) : symbol("–", "-");
}

std::string share_cell(double value) { return std::isfinite(value) ? percent(value) : symbol("–", "-"); }

std::string gate_cell(const std::optional<double>& mean) { return mean ? decimals(*mean, 3) : ""; }

// "12.3 % (5)": the extreme of the heads, and which head it is.
template <typename Better>
std::string extreme_head(const std::vector<double>& heads, const Better& better) {
  const auto at = std::min_element(heads.begin(), heads.end(), better);
  return concat(share_cell(*at), " (", at - heads.begin(), ")");
}

void print_perplexity(const std::vector<Report>& reports, std::ostream& out) {
  Table table(
      {"perplexity", "stride", "predictions", "nats a token", "per token", "per byte", "bits a byte"});
  table.line();
  for (const Report& report : reports) {
    const Perplexity& p = *report.perplexity;
    table.row({concat("windows of ", grouped(report.length)), grouped(report.stride), grouped(p.predictions),
               decimals(p.loss(), 4), scaled(p.per_token(), ""), decimals(p.per_byte(), 3),
               decimals(p.bits_per_byte(), 4)});
  }
  table.print(out);
}

void print_sinks(const Report& report, std::ostream& out) {
  const Sinks& sinks = *report.sinks;
  const bool gated = sinks.layers.front().value_gate || sinks.layers.front().output_gate;
  std::vector<std::string> heading = {concat("sinks at ", grouped(report.length)),
                                      "first token",
                                      "most (head)",
                                      "largest",
                                      "at token",
                                      "rms"};
  if (gated) heading.insert(heading.begin() + 3, {"value gate", "output gate"});
  Table table(heading);
  table.line();
  const auto row = [&](const std::string& name, const LayerSinks* layer, const ResidualSize& size) {
    std::vector<std::string> cells = {name, "", ""};
    if (layer != nullptr) {
      cells[1] = share_cell(layer->first_token_mean());
      cells[2] = extreme_head(layer->first_token, std::greater<>());
    }
    if (gated) {
      cells.push_back(layer != nullptr ? gate_cell(layer->value_gate) : "");
      cells.push_back(layer != nullptr ? gate_cell(layer->output_gate) : "");
    }
    cells.insert(cells.end(), {scaled(size.largest, ""), grouped(size.position), scaled(size.rms, "")});
    table.row(std::move(cells));
  };
  row("embedding", nullptr, sinks.residual.front());
  for (std::size_t i = 0; i < sinks.layers.size(); ++i) {
    row(concat("layer ", i), &sinks.layers[i], sinks.residual[i + 1]);
  }
  table.line();
  table.row({"all", share_cell(sinks.first_token_mean())});
  table.row({"even attention", share_cell(sinks.even_share)});
  table.print(out);
}

void print_selection(const Report& report, std::ostream& out) {
  const SelectionQuality& quality = *report.selection;
  std::vector<std::string> heading = {concat("selection at ", grouped(report.length)),
                                      "kept",
                                      "least (head)",
                                      "choosing",
                                      "theirs",
                                      "k mean",
                                      "10 %",
                                      "median",
                                      "90 %"};
  for (const std::int64_t tile : kTiles) heading.push_back(concat(symbol("∪ ", "U "), tile));
  Table table(heading);
  table.line();
  for (std::size_t i = 0; i < quality.layers.size(); ++i) {
    const LayerSelection& layer = quality.layers[i];
    std::vector<std::string> cells = {concat("layer ", i),
                                      share_cell(layer.kept_mass_mean()),
                                      extreme_head(layer.kept_mass, std::less<>()),
                                      share_cell(layer.choosing),
                                      share_cell(layer.kept_mass_of_choosing),
                                      scaled(layer.k_t.mean(), "")};
    for (const double quantile : {0.1, 0.5, 0.9}) cells.push_back(grouped(layer.k_t.quantile(quantile)));
    for (const double ratio : layer.union_over_k) cells.push_back(decimals(ratio, 2));
    table.row(std::move(cells));
  }
  table.line();
  table.row({"all", share_cell(quality.kept_mass_mean()), "", "", "", scaled(quality.k_mean(), "")});
  table.print(out);
}

void print_oracle(const Report& report, std::ostream& out) {
  const SelectionQuality& quality = *report.selection;
  Table table({concat("the oracle's at ", grouped(report.length)), "kept", "oracle", "kept / oracle",
               "recall", "queries"});
  table.line();
  for (std::size_t i = 0; i < quality.layers.size(); ++i) {
    const OracleTotals& oracle = quality.layers[i].oracle;
    table.row({concat("layer ", i), share_cell(oracle.kept_mass()), share_cell(oracle.oracle_mass()),
               share_cell(oracle.kept_over_oracle()), share_cell(oracle.recall()), grouped(oracle.queries)});
  }
  table.line();
  table.row({"mean", "", "", share_cell(quality.kept_over_oracle_mean()), share_cell(quality.recall_mean())});
  if (const auto worst = quality.worst_layer()) {
    table.row({concat("worst, layer ", *worst), "", "",
               share_cell(quality.layers[*worst].oracle.kept_over_oracle())});
  }
  table.print(out);
  out << "over queries that leave keys out";
  if (*report.oracle_queries > 0) {
    out << ", among " << grouped(*report.oracle_queries) << " of each window (--oracle-queries 0: all)";
  }
  out << '\n';
}

void print_agreement(const Report& report, std::ostream& out) {
  const Agreement& agreement = *report.agreement;
  Table table({concat("agreement at ", grouped(report.length)), "selections", "oracles", "queries"});
  table.line();
  for (std::size_t i = 1; i < agreement.selections.size(); ++i) {
    table.row({concat("layers ", i - 1, ", ", i), share_cell(agreement.selections[i - 1][i]),
               share_cell(agreement.oracles[i - 1][i]), grouped(agreement.queries[i - 1][i])});
  }
  table.line();
  table.row({"mean", share_cell(Agreement::neighbours_mean(agreement.selections)),
             share_cell(Agreement::neighbours_mean(agreement.oracles))});
  table.print(out);
  out << "share of the second layer's keys that the first has, over queries that leave keys out in both";
  if (report.agreement_queries > 0) {
    out << ", among " << grouped(report.agreement_queries) << " of each window (--agreement-queries 0: all)";
  }
  out << "; all pairs: --json, --plots\n";
}

}  // namespace

void print_reports(const std::vector<Report>& reports, std::ostream& out) {
  if (reports.front().perplexity) {
    print_perplexity(reports, out);
    out << '\n';
  }
  for (const Report& report : reports) {
    if (report.sinks) {
      print_sinks(report, out);
      out << '\n';
    }
    if (report.selection) {
      print_selection(report, out);
      out << '\n';
    }
    if (report.oracle_queries) {
      print_oracle(report, out);
      out << '\n';
    }
    if (report.agreement) {
      print_agreement(report, out);
      out << '\n';
    }
  }
}

}  // namespace gsa::cli
