#include "paper/verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "core/number_text.h"
#include "gsa/error.h"

namespace gsa::paper {
namespace {

// What is said of A beside B: "5.47 % below standard".
std::string difference_of_means(const Claim& claim, double by) {
  const auto tell = [&](const std::string& amount) {
    return concat(amount, by < 0 ? " below " : " above ", claim.right);
  };
  if (by == 0) return "equal to " + claim.right;
  switch (claim.unit) {
    case Unit::percent:
      return tell(three_digits(100 * std::abs(by)) + " %");
    case Unit::points:
      return tell(three_digits(std::abs(by)));
    case Unit::times:
      return concat(three_digits(1 + by), " times ", claim.right);
  }
  bad_argument("paper", "unit", "percent, points or times", concat(static_cast<int>(claim.unit)));
}

std::vector<std::int64_t> seeds_of_both(const Cell& a, const Cell& b) {
  std::vector<std::int64_t> both;
  for (const auto& [seed, value] : a.seeds) {
    if (b.seeds.contains(seed)) both.push_back(seed);
  }
  return both;
}

Cell logarithms(Cell cell) {
  for (auto& [seed, value] : cell.seeds) value = std::log(value);
  return cell;
}

const char* opening(Outcome outcome) {
  switch (outcome) {
    case Outcome::holds:
      return "Holds";
    case Outcome::fails:
      return "Does not hold";
    case Outcome::open:
      return "Cannot be told at this scale";
    case Outcome::incomplete:
      return "Not complete yet";
    case Outcome::not_run:
      return "Not run yet";
  }
  bad_argument("paper", "outcome", "one of five", concat(static_cast<int>(outcome)));
}

const char* aside(Outcome outcome) {
  switch (outcome) {
    case Outcome::holds:
      return "holds";
    case Outcome::fails:
      return "does not hold";
    case Outcome::open:
      return "cannot be told";
    case Outcome::incomplete:
      break;  // of tables
    case Outcome::not_run:
      return "not run yet";
  }
  bad_argument("paper", "outcome", "one of four", concat(static_cast<int>(outcome)));
}

// Neighbours of one quantity become one part: "gsa 5.47 % below standard, 1.04 % below gated-only (stories)".
// seeds: that the table has; a part of fewer says so.
std::string told_together(const std::vector<Finding>& findings, bool with_outcomes, std::size_t seeds) {
  std::string text;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& f = findings[i];
    const auto continues = [&](const Finding& other) {
      return other.what == f.what && other.outcome == f.outcome && other.seeds == f.seeds;
    };
    const bool first = i == 0 || !continues(findings[i - 1]);
    const bool last = i + 1 == findings.size() || !continues(findings[i + 1]);
    if (i > 0) text += first ? "; " : ", ";
    if (!f.left.empty() && (first || findings[i - 1].left != f.left)) text += f.left + " ";
    text += f.relation;
    if (last) {
      text += concat(" (", f.what, f.seeds == 1 && seeds > 1 ? "; one seed" : "",
                     with_outcomes ? concat("; ", aside(f.outcome)) : "", ")");
    }
  }
  return text;
}

}  // namespace

Cell::Cell(std::initializer_list<double> values) {
  std::int64_t seed = 0;
  for (const double value : values) seeds[++seed] = value;
}

double Cell::mean() const {
  if (seeds.empty()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const auto& [seed, value] : seeds) sum += value;
  return sum / static_cast<double>(seeds.size());
}

double Cell::deviation() const {
  if (seeds.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double middle = mean();
  double sum = 0;
  for (const auto& [seed, value] : seeds) sum += (value - middle) * (value - middle);
  return std::sqrt(sum / static_cast<double>(seeds.size() - 1));
}

double mean_difference(const Cell& a, const Cell& b, Unit unit) {
  Cell by;
  for (const std::int64_t seed : seeds_of_both(a, b)) {
    const double left = a.seeds.at(seed), right = b.seeds.at(seed);
    by.seeds[seed] = unit == Unit::points ? left - right : left / right - 1;
  }
  return by.mean();
}

double t_quantile(std::int64_t freedom) {
  constexpr double kQuantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                   2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                   2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (freedom < 1) bad_argument("paper", "freedom", "at least 1", concat(freedom));
  // Beyond the list its last one, which is a little too large.
  return kQuantiles[std::min<std::int64_t>(freedom, std::size(kQuantiles)) - 1];
}

Spread spread_of(const std::vector<Cell>& rows, Unit unit) {
  std::vector<const Cell*> used;
  std::optional<std::set<std::int64_t>> seeds;
  for (const Cell& row : rows) {
    const bool finite = std::all_of(row.seeds.begin(), row.seeds.end(), [&](const auto& entry) {
      return std::isfinite(entry.second) && (unit == Unit::points || entry.second > 0);
    });
    if (row.seeds.size() < 2 || !finite) continue;
    used.push_back(&row);
    std::set<std::int64_t> shared;
    for (const auto& [seed, value] : row.seeds) {
      if (!seeds || seeds->contains(seed)) shared.insert(seed);
    }
    seeds = std::move(shared);
  }
  if (used.size() < 2 || seeds->size() < 2) return {};
  // Logarithms: their differences are shares.
  const auto value = [&](const Cell& row, std::int64_t seed) {
    const double figure = row.seeds.at(seed);
    return unit == Unit::points ? figure : std::log(figure);
  };
  const auto r = static_cast<double>(used.size()), s = static_cast<double>(seeds->size());
  std::map<const Cell*, double> row_means;
  std::map<std::int64_t, double> seed_means;
  double mean = 0;
  for (const Cell* row : used) {
    for (const std::int64_t seed : *seeds) {
      row_means[row] += value(*row, seed) / s;
      seed_means[seed] += value(*row, seed) / r;
      mean += value(*row, seed) / (r * s);
    }
  }
  double squares = 0;
  for (const Cell* row : used) {
    for (const std::int64_t seed : *seeds) {
      const double rest = value(*row, seed) - row_means[row] - seed_means[seed] + mean;
      squares += rest * rest;
    }
  }
  const double freedom = (r - 1) * (s - 1);
  return {std::sqrt(squares / freedom), std::llround(freedom)};
}

std::string Finding::text() const { return told_together({*this}, /*with_outcomes=*/false, seeds); }

Finding judge(const Claim& claim) {
  Finding finding{.what = claim.what, .left = claim.left, .relation = "against " + claim.right};
  const std::vector<std::int64_t> both = seeds_of_both(claim.a, claim.b);
  if (both.empty()) return finding;
  finding.outcome = Outcome::open;
  finding.seeds = both.size();
  bool a_diverged = false, b_diverged = false;
  for (const std::int64_t seed : both) {
    a_diverged |= std::isinf(claim.a.seeds.at(seed));
    b_diverged |= std::isinf(claim.b.seeds.at(seed));
  }
  if (a_diverged || b_diverged) {  // of a training
    finding.left = "";
    finding.relation = a_diverged && b_diverged ? concat(claim.left, " and ", claim.right, " diverged")
                       : a_diverged             ? concat(claim.left, " diverged, ", claim.right, " did not")
                                                : concat(claim.right, " diverged, ", claim.left, " did not");
    // Infinity is above everything.
    const bool good = b_diverged == (claim.sense == Claim::Sense::below);
    if (a_diverged != b_diverged) finding.outcome = good ? Outcome::holds : Outcome::fails;
    return finding;
  }
  const double by = mean_difference(claim.a, claim.b, claim.unit);
  if (!std::isfinite(by)) {
    finding.relation += ", one of which has no figure";
    return finding;
  }
  finding.left += " is";
  finding.relation = difference_of_means(claim, by);
  const double sign = claim.sense == Claim::Sense::below ? -1 : 1;
  const double gain = claim.allowance + sign * by;
  // In the spread's unit, which is that of logarithms for shares.
  const double strength =
      claim.unit == Unit::points
          ? gain
          : sign * (mean_difference(logarithms(claim.a), logarithms(claim.b), Unit::points) -
                    std::log1p(-sign * claim.allowance));
  const double chance = claim.spread.freedom > 0 ? t_quantile(claim.spread.freedom) * claim.spread.deviation *
                                                       std::sqrt(2 / static_cast<double>(both.size()))
                                                 : 0;
  if (gain > claim.floor && strength > chance) finding.outcome = Outcome::holds;
  if (gain < -claim.floor && strength < -chance) finding.outcome = Outcome::fails;
  return finding;
}

Verdict verdict_of(const std::vector<Claim>& claims, bool tells) {
  std::vector<Finding> findings;
  std::size_t seeds = 0;
  for (const Claim& claim : claims) {
    findings.push_back(judge(claim));
    seeds = std::max(seeds, findings.back().seeds);
    Outcome& outcome = findings.back().outcome;
    if (!tells && outcome != Outcome::not_run) outcome = Outcome::open;
  }
  const auto count = [&](Outcome outcome) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& f) { return f.outcome == outcome; });
  };
  Verdict verdict;
  const auto missing = count(Outcome::not_run);
  verdict.outcome = count(Outcome::fails) > 0         ? Outcome::fails
                    : missing == std::ssize(findings) ? Outcome::not_run
                    : missing > 0                     ? Outcome::incomplete
                    : count(Outcome::open) > 0        ? Outcome::open
                                                      : Outcome::holds;
  verdict.sentence = opening(verdict.outcome);
  if (verdict.outcome != Outcome::not_run) {
    // What decided stands first.
    const auto others = std::stable_partition(findings.begin(), findings.end(),
                                              [&](const Finding& f) { return f.outcome == verdict.outcome; });
    const std::string decided = told_together({findings.begin(), others}, /*with_outcomes=*/false, seeds);
    const std::string rest = told_together({others, findings.end()}, /*with_outcomes=*/true, seeds);
    verdict.sentence += concat(seeds == 1 ? " (one seed): " : ": ", decided,
                               decided.empty() || rest.empty() ? "" : "; ", rest);
  }
  verdict.sentence += ".";
  return verdict;
}

}  // namespace gsa::paper
