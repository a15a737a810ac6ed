// Whether a relation that the paper claims shows in our figures: worked out from them, never written by hand.
#pragma once

#include <string>
#include <vector>

namespace gsa::paper {

// A figure of a table: one value a seed.
struct Cell {
  std::vector<double> values = {};  // none: not run

  bool run() const { return !values.empty(); }
  double mean() const;       // NaN where there is none
  double deviation() const;  // sample standard deviation of the seeds; NaN with fewer than two
};

enum class Outcome { holds, fails, open, not_run };

// "A's figure is below (or above) B's."
struct Claim {
  enum class Sense { below, above };
  enum class Unit { percent, points, times };  // how the difference is told: of B, as it is, A over B

  std::string what;         // "perplexity on text 1"
  std::string left, right;  // "gsa", "standard"
  Cell a, b;
  Sense sense = Sense::below;
  Unit unit = Unit::percent;
  // Differences up to this say nothing, whatever the seeds' spread: a share of B, or points with Unit::points.
  double floor = 0;
};

struct Finding {
  Outcome outcome = Outcome::not_run;
  std::string text;  // "perplexity on text 1: gsa 3.2 % below standard"
};

// It holds (or fails) where the difference is larger than the floor and than twice its standard error over seeds; in
// between it is open. With one seed there is no such error, and the floor alone decides.
Finding judge(const Claim& claim);

struct Verdict {
  Outcome outcome = Outcome::not_run;
  std::string sentence;
};

// One sentence for a table. One claim that fails makes it fail; it holds where all that were run hold. tells: false
// leaves everything open, whatever the figures, since the models have learned next to nothing.
Verdict verdict_of(const std::vector<Claim>& claims, bool tells = true);

}  // namespace gsa::paper
