// Axes: where the ticks stand, and where a value comes to stand on the page.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gsa::eval {

enum class Scale { linear, logarithmic };
enum class Unit { number, share };  // a share is written in percent

struct Axis {
  std::string label = "";
  Scale scale = Scale::linear;
  Unit unit = Unit::number;
  // Where the axis begins and ends. Absent: at round numbers around the data.
  std::optional<double> low = std::nullopt, high = std::nullopt;
  bool whole = false;  // ticks at whole numbers only, as for layers; of linear axes
};

// An axis that lies on the page from `begin` to `end` (pixels, in either direction).
class PlacedAxis {
 public:
  // data_low, data_high: the extent of the data; ticks: about how many.
  PlacedAxis(const Axis& axis, double data_low, double data_high, double begin, double end, int ticks);

  double operator()(double value) const;  // values outside the axis come to stand at its ends
  const std::vector<double>& ticks() const { return ticks_; }
  std::string text(double value) const;  // a tick's label
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double raw(double value) const;

  Axis axis_;
  double low_ = 0, high_ = 1, begin_, end_;
  int decimals_ = -1;  // of ticks' labels; -1: as short as the number is
  std::vector<double> ticks_;
};

// 1, 2 or 5 times a power of ten, so that `count` steps or fewer cover the range.
double round_step(double range, int count);

}  // namespace gsa::eval
