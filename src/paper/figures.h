// Figures out of the results, and what all tables do with them. For the files tables*.cc only.
#pragma once

#include <string>
#include <vector>

#include "paper/tables.h"

namespace gsa::paper {

using Sense = Claim::Sense;
using Form = Column::Form;

// Differences of perplexity up to this share come and go with the seed at the scales that run here.
constexpr double kLossFloor = 0.005;
// Shares of attention and largest activations move more.
constexpr double kSinkFloor = 0.1;
constexpr double kTimeFloor = 0.05;

constexpr const char* kStepsFromScratch = "step (without the first twentieth)";

class Figures {
 public:
  Figures(const TableOptions& options, const Results& results) : options_(options), results_(results) {}

  const Scale& scale() const { return options_.scale; }
  const std::string& text(std::size_t index) const { return options_.texts[index]; }

  const double* find(const std::string& step, const std::string& value) const;
  // Over the seeds that have it.
  Cell cell(const std::string& run, const std::string& step, const std::string& value) const;
  // Of the first seed, which is all that ablations have: beside them the main tables' gsa has one seed too.
  Cell first_seed(const std::string& run, const std::string& step, const std::string& value) const;
  // Of the first seed's training, with `before` steps before it. Of one from scratch the first twentieth is left out,
  // where the loss falls so much that nothing would be seen of the rest.
  eval::Series losses(const std::string& run, const std::string& name, std::int64_t before = 0) const;

  Verdict judged(const std::vector<Claim>& claims) const { return verdict_of(claims, scale().tells); }
  // Ablations have one seed each: perplexity strays as that of the main tables does. It is the first column.
  Claim less_perplexity(const Table& table, const std::string& left, const std::string& right) const;

 private:
  const TableOptions& options_;
  const Results& results_;
};

// Of RULER's mean at a length: its step (lengths beyond the trained one have their own), and how many tasks it is of,
// since some do not fit into short ones; as planned where nothing is known of it.
std::string ruler_step(const Scale& scale, std::int64_t length);
double ruler_tasks(const Figures& figures, std::int64_t length);
// Of a run's scores in these tasks, seed by seed. step: "ruler", or another one that asks RULER.
Cell mean_of_tasks(const Figures& figures, const std::string& run, const std::string& step,
                   std::int64_t length, const std::vector<std::string>& tasks);
// Twice the standard error of a difference of two shares of so many answers, in points; a point at least.
double ruler_floor(const Figures& figures, std::int64_t length, const Cell& a, const Cell& b);

const Cell& figure(const Table& table, const std::string& row, std::size_t column);

// The spread is that of the column.
Claim make_claim(const Table& table, const std::string& what, const std::string& left,
                 const std::string& right, std::size_t column, Sense sense, Unit unit, double floor);

// Seed by seed.
Cell ratio(const Cell& a, const Cell& b);

// One series a column, of the rows' means.
Chart bar_chart(const std::string& name, const std::string& title, const Table& table,
                const std::vector<std::size_t>& columns, const std::string& unit);

// ---- the tables

Table perplexity_table(const Figures& figures);
Table ruler_table(const Figures& figures);
Table ruler_gap_table(const Figures& figures);
Table sinks_table(const Figures& figures);
Table stability_table(const Figures& figures);
Table throughput_table(const Figures& figures);
Table gates_table(const Figures& figures);
Table k_table(const Figures& figures);
Table indexer_table(const Figures& figures);

}  // namespace gsa::paper
