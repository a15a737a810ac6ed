// Whether a relation that the paper claims shows in our figures: worked out from them, never written by hand.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace gsa::paper {

// A figure of a table: one value a seed.
struct Cell {
  std::map<std::int64_t, double> seeds = {};  // none: not run

  Cell() = default;
  Cell(std::initializer_list<double> values);  // of seeds 1, 2, ...

  bool run() const { return !seeds.empty(); }
  double mean() const;       // NaN where there is none
  double deviation() const;  // sample standard deviation of the seeds; NaN with fewer than two
};

// How a difference of A and B is told and measured: A over B less one, A less B, A over B.
enum class Unit { percent, points, times };

// Seed by seed, of the seeds that both have: as a share with percent and times. NaN where there are none.
double mean_difference(const Cell& a, const Cell& b, Unit unit);

// How far a figure of one seed strays by chance, as a share with percent and times.
struct Spread {
  double deviation = 0;
  std::int64_t freedom = 0;  // degrees of; 0: not known
};

// One spread of all rows of a column. Seeds share the order of their data, which moves all rows alike, so that each
// row's mean and each seed's are taken out first: r rows of s seeds leave (r - 1)(s - 1) degrees of freedom, where the
// differences of two rows alone would leave s - 1. Of rows with two seeds or more, and of the seeds that all of these
// have.
Spread spread_of(const std::vector<Cell>& rows, Unit unit);

// Student's t: beyond it, either way, lie 5 %.
double t_quantile(std::int64_t freedom);

enum class Outcome { holds, fails, open, incomplete, not_run };

// "A's figure is below (or above) B's."
struct Claim {
  enum class Sense { below, above };

  std::string what;         // "perplexity on text 1"
  std::string left, right;  // "gsa", "standard"
  Cell a, b;
  Sense sense = Sense::below;
  Unit unit = Unit::percent;
  // Differences up to this say nothing, whatever the seeds' spread: a share of B, or points with Unit::points.
  double floor = 0;
  Spread spread = {};
  double allowance = 0;  // A may be that much on the wrong side; in the floor's unit
};

struct Finding {
  Outcome outcome = Outcome::not_run;
  std::string what, left, relation;  // "text 1", "gsa is", "3.20 % below standard"
  std::size_t seeds = 0;             // that both have

  std::string text() const;  // "gsa is 3.20 % below standard (text 1)"
};

// Differences are taken seed by seed, of the seeds that both have. It holds (or fails) where their mean is larger than
// the floor and than t times its standard error by the spread; in between it is open. Where the spread is not known,
// as with one seed, the floor alone decides.
Finding judge(const Claim& claim);

struct Verdict {
  Outcome outcome = Outcome::not_run;
  std::string sentence = "";
};

// One sentence for a table. One claim that fails makes it fail; it holds where all hold, and is incomplete where some
// were not run. tells: false leaves everything open, whatever the figures, since the models have learned next to
// nothing.
Verdict verdict_of(const std::vector<Claim>& claims, bool tells = true);

}  // namespace gsa::paper
