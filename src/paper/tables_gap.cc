// Where RULER's scores of gsa come from: from the gates, from where they start, from the selection.
#include "core/number_text.h"
#include "gsa/error.h"
#include "paper/figures.h"

namespace gsa::paper {
namespace {

struct GapRow {
  const char *name, *run;
  bool without_selection = false;  // asked with its own dense attention
};

static_assert(kOpenGates == 0.9);  // as the names say
constexpr GapRow kGapRows[] = {{"standard", "standard"},
                               {"gated-only", "gated-only"},
                               {"gsa", "gsa"},
                               {"gsa without selection", "gsa", true},
                               {"gated-only from 0.9", "open-gated"},
                               {"gsa from 0.9", "open"},
                               {"gsa from 0.9 without selection", "open", true}};

// A relation at the longest trained length, whose floor is the sampling error of its scores.
Claim score_claim(const Figures& figures, const Table& table, std::size_t column, const std::string& left,
                  const std::string& right) {
  const double floor = ruler_floor(figures, longest_near(figures.scale()), figure(table, left, column),
                                   figure(table, right, column));
  return make_claim(table, concat("score at ", table.columns[column].name), left, right, column, Sense::above,
                    Unit::points, floor);
}

}  // namespace

Table ruler_gap_table(const Figures& figures) {
  const Scale& s = figures.scale();
  const std::int64_t longest = longest_near(s);
  Table table{.id = "ruler-gap",
              .title = "RULER: gates, their start, selection",
              .about = concat(
                  "What the scores of gsa are made of, which the paper has no table of. Gates start at ",
                  kPaperGates, ", or at ", kOpenGates,
                  " as those of new models of this project do. Without selection: the same "
                  "model asked with its own dense attention. On RULER's own prompts of ",
                  grouped(longest),
                  " tokens, with the answers behind them: how many keys a query has (k), the share of dense "
                  "attention's mass on them (kept), how much that is of what the best choice of as many keys "
                  "would keep (oracle), and how many keys of that choice are among them (recall)."),
              .columns = {}};
  std::size_t at = 0;  // the column of the longest trained length
  for (const std::int64_t length : s.ruler_lengths) {
    if (length > s.length) continue;
    at = table.columns.size();
    table.columns.push_back({grouped(length), 1});
  }
  table.columns.push_back({"perplexity, " + figures.text(0), 3});
  const std::vector<Column> of_selection = {{"mean k", 0},
                                            {"kept", 1, Form::percent},
                                            {"kept / oracle", 1, Form::percent},
                                            {"recall", 1, Form::percent}};
  table.columns.insert(table.columns.end(), of_selection.begin(), of_selection.end());
  for (const GapRow& line : kGapRows) {
    Row row{line.name, {}, {}};
    for (const std::int64_t length : s.ruler_lengths) {
      if (length <= s.length)
        row.ours.push_back(
            figures.cell(line.run, line.without_selection ? "ruler-dense" : "ruler", concat(length)));
    }
    row.ours.push_back(
        figures.cell(line.run, line.without_selection ? "eval-dense" : "eval-1", "perplexity"));
    for (const char* value : {"k_mean", "kept", "kept_over_oracle", "oracle_recall"})
      row.ours.push_back(line.without_selection ? Cell{} : figures.cell(line.run, "eval-ruler", value));
    table.rows.push_back(std::move(row));
  }
  if (longest == 0) return table;
  const auto above = [&](const char* left, const char* right) {
    return score_claim(figures, table, at, left, right);
  };
  // A score may fall by what its sampling error is.
  const auto no_loss = [&](const char* left, const char* right) {
    Claim claim = above(left, right);
    claim.allowance = claim.floor;
    claim.floor = 0;
    return claim;
  };
  // The paper's own relation, with gates that start open.
  table.verdict =
      figures.judged({above("gsa from 0.9", "standard"), above("gated-only from 0.9", "standard")});
  table.goals.push_back(
      {concat("Gates that start at ", kOpenGates, " answer more than gates from ", kPaperGates),
       figures.judged({above("gsa from 0.9", "gsa"), above("gated-only from 0.9", "gated-only")})});
  table.goals.push_back({"Selection costs no more than the scores' sampling error",
                         figures.judged({no_loss("gsa", "gsa without selection"),
                                         no_loss("gsa from 0.9", "gsa from 0.9 without selection")})});
  return table;
}

}  // namespace gsa::paper
