#include "plot/scale.h"

#include <algorithm>
#include <cmath>

#include "core/number_text.h"
#include "gsa/error.h"
#include "plot/markup.h"

namespace gsa::eval {
namespace {

std::vector<double> linear_ticks(double low, double high, double step) {
  std::vector<double> ticks;
  // Counted, not added up: no error gathers. The hair keeps an end that is a tick itself.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    ticks.push_back(i * step);
  return ticks;
}

// Powers of ten; where they are few, 2 and 5 times them as well.
std::vector<double> logarithmic_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  const double decades = std::log10(high / low);
  const int every = std::max(1, static_cast<int>(std::ceil(decades / count)));
  for (int power = static_cast<int>(std::floor(std::log10(low) + 1e-9));
       std::pow(10, power) <= high * (1 + 1e-9); power += every) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, power);
      if (factor != 1 && decades * 3 > count) continue;
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

// As many decimals as tell neighbouring ticks apart.
int decimals_of(double step, Unit unit) {
  const double shown = unit == Unit::share ? 100 * step : step;
  return std::max(0, static_cast<int>(-std::floor(std::log10(shown) + 1e-9)));
}

}  // namespace

double round_step(double range, int count) {
  const double rough = range / std::max(1, count);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

PlacedAxis::PlacedAxis(const Axis& axis, double data_low, double data_high, double begin, double end,
                       int ticks)
    : axis_(axis), begin_(begin), end_(end) {
  low_ = axis.low.value_or(data_low);
  high_ = axis.high.value_or(data_high);
  if (!(low_ <= high_) || !std::isfinite(low_) || !std::isfinite(high_)) {
    bad_argument("plot", "axis", "finite ends in ascending order", concat(low_, " .. ", high_));
  }
  if (axis.scale == Scale::logarithmic) {
    if (low_ <= 0) bad_argument("plot", "axis", "values above 0 on a logarithmic axis", concat(low_));
    if (low_ == high_) {
      low_ /= 2;
      high_ *= 2;
    }
    ticks_ = logarithmic_ticks(low_, high_, ticks);
    if (ticks_.size() < 2) {  // in between of them: even steps, or nobody could read the axis
      const double step = round_step(high_ - low_, ticks);
      ticks_ = linear_ticks(low_, high_, step);
      decimals_ = decimals_of(step, axis.unit);
    }
    return;
  }
  if (low_ == high_) {  // one value: an axis around it
    const double room = low_ == 0 ? 1 : std::abs(low_) / 2;
    if (!axis.low) low_ -= room;
    if (!axis.high || low_ == high_) high_ += room;
  }
  const double step = std::max(round_step(high_ - low_, ticks), axis.whole ? 1.0 : 0.0);
  if (!axis.low) low_ = std::floor(low_ / step + 1e-9) * step;
  if (!axis.high) high_ = std::ceil(high_ / step - 1e-9) * step;
  ticks_ = linear_ticks(low_, high_, step);
  decimals_ = decimals_of(step, axis.unit);
}

double PlacedAxis::raw(double value) const {
  if (axis_.scale == Scale::logarithmic) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

double PlacedAxis::operator()(double value) const {
  return begin_ + (end_ - begin_) * raw(std::clamp(value, low_, high_));
}

std::string PlacedAxis::text(double value) const {
  const double shown = axis_.unit == Unit::share ? 100 * value : value;
  const std::string unit = axis_.unit == Unit::share ? " %" : "";
  if (decimals_ < 0 || std::abs(shown) >= 9999.5) return short_number(shown) + unit;
  return fixed(shown == 0 ? 0.0 : shown, decimals_) + unit;  // no minus before zero
}

}  // namespace gsa::eval
