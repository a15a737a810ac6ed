#include "paper/verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/number_text.h"
#include "gsa/error.h"

namespace gsa::paper {
namespace {

// As many decimals as show three digits.
std::string with_digits(double value) {
  const double size = std::abs(value);
  return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.1 ? 3 : 4);
}

std::string difference(const Claim& claim, double a, double b) {
  const char* const side = a < b ? "below" : "above";
  if (a == b) return concat(claim.left, " equal to ", claim.right);
  switch (claim.unit) {
    case Claim::Unit::percent:
      return concat(claim.left, " ", with_digits(100 * std::abs(a / b - 1)), " % ", side, " ", claim.right);
    case Claim::Unit::points:
      return concat(claim.left, " ", with_digits(std::abs(a - b)), " ", side, " ", claim.right);
    case Claim::Unit::times:
      return concat(claim.left, " ", with_digits(a / b), " times ", claim.right);
  }
  bad_argument("paper", "unit", "percent, points or times", concat(static_cast<int>(claim.unit)));
}

// Of the difference of two means over seeds; 0 where either has one seed only.
double standard_error(const Cell& a, const Cell& b) {
  const double da = a.deviation(), db = b.deviation();
  if (!std::isfinite(da) || !std::isfinite(db)) return 0;
  return std::sqrt(da * da / static_cast<double>(a.values.size()) +
                   db * db / static_cast<double>(b.values.size()));
}

const char* opening(Outcome outcome) {
  switch (outcome) {
    case Outcome::holds:
      return "Holds";
    case Outcome::fails:
      return "Does not hold";
    case Outcome::open:
      return "Cannot be told at this scale";
    case Outcome::not_run:
      return "Not run yet";
  }
  bad_argument("paper", "outcome", "one of four", concat(static_cast<int>(outcome)));
}

const char* aside(Outcome outcome) {
  switch (outcome) {
    case Outcome::holds:
      return " (holds)";
    case Outcome::fails:
      return " (does not hold)";
    case Outcome::open:
      return " (cannot be told)";
    case Outcome::not_run:
      return " (not run yet)";
  }
  bad_argument("paper", "outcome", "one of four", concat(static_cast<int>(outcome)));
}

}  // namespace

double Cell::mean() const {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Cell::deviation() const {
  if (values.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double middle = mean();
  double sum = 0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

Finding judge(const Claim& claim) {
  if (!claim.a.run() || !claim.b.run()) {
    return {Outcome::not_run, concat(claim.what, ": ", claim.left, " against ", claim.right)};
  }
  const double a = claim.a.mean(), b = claim.b.mean();
  const std::string text = concat(claim.what, ": ");
  if (std::isnan(a) || std::isnan(b)) {
    return {Outcome::open,
            concat(text, claim.left, " against ", claim.right, ", one of which has no figure")};
  }
  if (std::isinf(a) || std::isinf(b)) {  // of a training that diverged
    const std::string both = concat(text, claim.left, " and ", claim.right, " diverged");
    if (std::isinf(a) && std::isinf(b)) return {Outcome::open, both};
    const bool good = (a < b) == (claim.sense == Claim::Sense::below);
    return {good ? Outcome::holds : Outcome::fails,
            concat(text, std::isinf(a) ? claim.left : claim.right, " diverged, ",
                   std::isinf(a) ? claim.right : claim.left, " did not")};
  }
  const double gain = claim.sense == Claim::Sense::below ? b - a : a - b;
  const double floor = claim.unit == Claim::Unit::points ? claim.floor : claim.floor * std::abs(b);
  const double noise = std::max(floor, 2 * standard_error(claim.a, claim.b));
  const Outcome outcome = gain > noise ? Outcome::holds : gain < -noise ? Outcome::fails : Outcome::open;
  return {outcome, text + difference(claim, a, b)};
}

Verdict verdict_of(const std::vector<Claim>& claims, bool tells) {
  std::vector<Finding> findings;
  std::size_t seeds = 0;
  for (const Claim& claim : claims) {
    findings.push_back(judge(claim));
    Outcome& outcome = findings.back().outcome;
    if (outcome != Outcome::not_run) seeds = std::max({seeds, claim.a.values.size(), claim.b.values.size()});
    if (!tells && outcome != Outcome::not_run) outcome = Outcome::open;
  }
  const auto any = [&](Outcome outcome) {
    return std::any_of(findings.begin(), findings.end(),
                       [&](const Finding& f) { return f.outcome == outcome; });
  };
  Verdict verdict;
  verdict.outcome = any(Outcome::fails)   ? Outcome::fails
                    : any(Outcome::open)  ? Outcome::open
                    : any(Outcome::holds) ? Outcome::holds
                                          : Outcome::not_run;
  verdict.sentence = opening(verdict.outcome);
  if (verdict.outcome == Outcome::not_run) {
    verdict.sentence += ".";
    return verdict;
  }
  const char* between = seeds == 1 ? " (one seed): " : ": ";
  // What decided stands first.
  for (const bool decided : {true, false}) {
    for (const Finding& finding : findings) {
      if ((finding.outcome == verdict.outcome) != decided) continue;
      verdict.sentence += between + finding.text + (decided ? "" : aside(finding.outcome));
      between = "; ";
    }
  }
  verdict.sentence += ".";
  return verdict;
}

}  // namespace gsa::paper
