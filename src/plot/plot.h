// Charts as SVG text: lines, bars, histograms and heat maps, for a web page or as files of their own. Colours
// follow the reader's light or dark setting. No torch.
//
//   LineChart chart{.title = "Loss", .x = {.label = "step"}, .y = {.label = "nats a token"}};
//   chart.series.push_back({.name = "gsa", .x = steps, .y = losses});
//   write_file("loss.svg", to_svg(chart));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plot/scale.h"

namespace gsa::eval {

// Where a chart is going. A page that shows many carries plot_style() once.
enum class Placement { file, page };

// Rules for the classes that charts use, to stand in a <style> element of a page.
std::string plot_style();

constexpr int kPlotColors = 6;

struct PlotSize {
  int width = 480, height = 300;
};

struct Series {
  std::string name = "";               // in the legend, if it is not empty
  std::vector<double> x = {}, y = {};  // of equal length; a y that is not finite leaves a gap
  int color = -1;                      // 0 .. kPlotColors - 1; -1: by the series' number
  bool dashed = false;
  bool points = false;  // a dot at each value
};

struct PlotSpan {  // a shaded range of the x axis
  double from = 0, to = 0;
  std::string label = "";
};

struct PlotMark {  // a straight line across the chart
  double at = 0;
  std::string label = "";
  bool vertical = false;
};

struct LineChart {
  std::string title = "", description = "";  // the description is for readers who do not see the picture
  std::string caption = "";                  // below the title of a file: what it was measured on
  Axis x = {}, y = {};
  std::vector<Series> series = {};
  std::vector<PlotSpan> spans = {};
  std::vector<PlotMark> marks = {};
  PlotSize size = {};
};

// Groups of bars from 0, one bar a series.
struct BarChart {
  struct Bars {
    std::string name = "";
    std::vector<double> values = {};  // one a category; not finite: no bar
    int color = -1;
  };
  std::string title = "", description = "", caption = "";
  std::vector<std::string> categories = {};
  std::string x_label = "";
  Axis y = {};
  std::vector<Bars> series = {};
  std::vector<PlotMark> marks = {};  // horizontal ones
  bool values = true;                // written above the bars
  PlotSize size = {};
};

// Counts or shares in bins of a numeric axis; several series lie over each other.
struct Histogram {
  struct Bins {
    std::string name = "";
    std::vector<double> values = {};  // one a bin, 0 or more
    int color = -1;
  };
  std::string title = "", description = "", caption = "";
  Axis x = {}, y = {};
  std::vector<double> edges = {};  // ascending, one more than bins
  std::vector<Bins> series = {};
  std::vector<PlotMark> marks = {};
  PlotSize size = {};
};

// Rows of cells with their values, such as layers by heads.
struct HeatMap {
  std::string title = "", description = "", caption = "";
  std::string row_label = "", column_label = "";
  std::vector<std::string> rows = {}, columns = {};
  std::vector<std::vector<double>> values = {};  // [rows][columns]; not finite: an empty cell
  Unit unit = Unit::number;
  std::optional<double> low = std::nullopt,
                        high = std::nullopt;  // of the colours; absent: 0 and the greatest
  int color = 0;
  PlotSize size = {};
};

// Each throws gsa::Error where there is nothing to draw or sizes do not match.
std::string to_svg(const LineChart& chart, Placement placement = Placement::file);
std::string to_svg(const BarChart& chart, Placement placement = Placement::file);
std::string to_svg(const Histogram& chart, Placement placement = Placement::file);
std::string to_svg(const HeatMap& chart, Placement placement = Placement::file);

// Even bins over the values, at most `bins`, with edges at round numbers. shares: of all values, per series.
struct Binned {
  std::vector<double> edges;
  std::vector<std::vector<double>> shares;
};
Binned bin_values(const std::vector<std::vector<double>>& series, int bins);

}  // namespace gsa::eval
