#include "plot/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gsa/error.h"
#include "plot/canvas.h"
#include "plot/markup.h"

namespace gsa::eval {
namespace {

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

template <typename AnySeries>
int color_of(const AnySeries& series, std::size_t index) {
  const int color = series.color >= 0 ? series.color : static_cast<int>(index);
  return color % kPlotColors;
}

template <typename AnySeries>
std::vector<std::pair<std::string, int>> legend_of(const std::vector<AnySeries>& series) {
  std::vector<std::pair<std::string, int>> entries;
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (!series[i].name.empty()) entries.emplace_back(series[i].name, color_of(series[i], i));
  }
  return entries;
}

// A chart's title stands in its file; on a page the heading above it says it.
double top_of(Placement placement, const std::string& caption) {
  if (placement == Placement::page) return 2;
  return caption.empty() ? 32 : 48;
}

std::vector<std::string> tick_texts(const PlacedAxis& axis) {
  std::vector<std::string> texts;
  for (const double tick : axis.ticks()) texts.push_back(axis.text(tick));
  return texts;
}

// About one tick for this many pixels.
int tick_count(double pixels, double each) { return std::max(2, static_cast<int>(pixels / each)); }

// The frame depends on how wide the labels of y are, these on y's ticks, and those only on the frame's
// height.
struct Axes {
  Frame frame;
  PlacedAxis x, y;
};

Axes place_axes(const Canvas& canvas, double legend_bottom, const Axis& x, const Extent& x_data,
                const Axis& y, const Extent& y_data, std::size_t x_lines = 1) {
  const Frame rough = frame_for(canvas, legend_bottom, {}, !y.label.empty(), !x.label.empty(), x_lines);
  const int y_ticks = tick_count(rough.bottom - rough.top, 36);
  const PlacedAxis placed_y(y, y_data.low, y_data.high, rough.bottom, rough.top, y_ticks);
  const Frame frame =
      frame_for(canvas, legend_bottom, tick_texts(placed_y), !y.label.empty(), !x.label.empty(), x_lines);
  const int x_ticks = tick_count(frame.right - frame.left, 56);
  // Where x has data only, it goes from its first to its last value: no empty margin at the sides.
  Axis exact = x;
  exact.low = x.low.value_or(x_data.low);
  exact.high = x.high.value_or(x_data.high);
  return {frame, PlacedAxis(exact, *exact.low, *exact.high, frame.left, frame.right, x_ticks), placed_y};
}

// Neighbours differ in their shade; labels come after all of it, and may reach into the next span.
void draw_spans(Canvas& canvas, const Axes& axes, const std::vector<PlotSpan>& spans) {
  const auto visible = [&](const PlotSpan& span) { return axes.x(span.to) > axes.x(span.from); };
  for (std::size_t i = 0; i < spans.size(); i += 2) {
    if (!visible(spans[i])) continue;
    canvas.shape("rect", {{"class", "pl-span"},
                          {"x", axes.x(spans[i].from)},
                          {"y", axes.frame.top},
                          {"width", axes.x(spans[i].to) - axes.x(spans[i].from)},
                          {"height", axes.frame.bottom - axes.frame.top}});
  }
  for (const PlotSpan& span : spans) {
    if (!visible(span)) continue;
    canvas.text((axes.x(span.from) + axes.x(span.to)) / 2, axes.frame.top + 13, span.label, "middle",
                "pl-quiet");
  }
}

void draw_series(Canvas& canvas, const Axes& axes, const Series& series, int color) {
  std::string path;
  bool pen_down = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.y[i]) || !std::isfinite(series.x[i])) {
      pen_down = false;
      continue;
    }
    path += concat(pen_down ? "L" : "M", Canvas::Value(axes.x(series.x[i])).text(), ' ',
                   Canvas::Value(axes.y(series.y[i])).text());
    pen_down = true;
  }
  const std::string css = concat("pl-line ", color_class("pl-s", color), series.dashed ? " pl-dash" : "");
  canvas.shape("path", {{"class", css}, {"d", path}}, series.name);
  if (!series.points) return;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.y[i]) || !std::isfinite(series.x[i])) continue;
    canvas.shape("circle",
                 {{"class", color_class("pl-f", color)},
                  {"cx", axes.x(series.x[i])},
                  {"cy", axes.y(series.y[i])},
                  {"r", 3.5}},
                 concat(series.name, series.name.empty() ? "" : ": ", axes.y.text(series.y[i])));
  }
}

}  // namespace

std::string to_svg(const LineChart& chart, Placement placement) {
  Extent x, y;
  for (const Series& series : chart.series) {
    if (series.x.size() != series.y.size()) {
      bad_argument("plot", "series", concat("as many y as x in '", series.name, "' (", series.x.size(), ")"),
                   concat(series.y.size()));
    }
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      x.take(series.x[i]);
      y.take(series.y[i]);
    }
  }
  if (x.empty() || y.empty()) bad_argument("plot", "series", "at least one finite point", "none");
  for (const PlotSpan& span : chart.spans) {
    x.take(span.from);
    x.take(span.to);
  }
  for (const PlotMark& mark : chart.marks) (mark.vertical ? x : y).take(mark.at);
  Canvas canvas(chart.size, {chart.title, chart.description, chart.caption}, placement);
  const double top = top_of(placement, chart.caption);
  const double bottom = top + canvas.legend(top, legend_of(chart.series));
  const Axes axes = place_axes(canvas, bottom, chart.x, x, chart.y, y);
  draw_spans(canvas, axes, chart.spans);
  draw_y_axis(canvas, axes.frame, axes.y, chart.y.label);
  draw_x_axis(canvas, axes.frame, axes.x, chart.x.label);
  draw_marks(canvas, axes.frame, &axes.x, axes.y, chart.marks);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    draw_series(canvas, axes, chart.series[i], color_of(chart.series[i], i));
  }
  return canvas.finish();
}

namespace {

// Of shares without their unit, which the axis has: bars are narrow.
std::string bar_label(const BarChart& chart, double value) {
  return short_number(chart.y.unit == Unit::share ? 100 * value : value);
}

bool is_plain(const std::string& label) {
  return label.find_first_not_of("-.0123456789") == std::string::npos;
}

std::size_t decimals_in(const std::string& label) {
  const std::size_t point = label.find('.');
  return point == std::string::npos || !is_plain(label) ? 0 : label.size() - point - 1;
}

// 4.00 beside 3.98. Labels with a letter stay: 12K, 1e-05.
std::string with_decimals(const std::string& label, std::size_t decimals) {
  const std::size_t own = decimals_in(label);
  if (own >= decimals || !is_plain(label)) return label;
  return label + (own == 0 ? "." : "") + std::string(decimals - own, '0');
}

}  // namespace

std::string to_svg(const BarChart& chart, Placement placement) {
  Extent y;
  y.take(0);
  bool any = false;
  for (const BarChart::Bars& bars : chart.series) {
    if (bars.values.size() != chart.categories.size()) {
      bad_argument("plot", "series", concat(chart.categories.size(), " values in '", bars.name, "'"),
                   concat(bars.values.size()));
    }
    for (const double value : bars.values) {
      y.take(value);
      any |= std::isfinite(value);
    }
  }
  if (!any) bad_argument("plot", "series", "at least one finite value", "none");
  for (const PlotMark& mark : chart.marks) y.take(mark.at);
  Canvas canvas(chart.size, {chart.title, chart.description, chart.caption}, placement);
  const double top = top_of(placement, chart.caption);
  const double bottom = top + canvas.legend(top, legend_of(chart.series)) + (chart.values ? 8 : 0);
  const double groups = static_cast<double>(chart.categories.size());
  std::size_t decimals = 0;
  for (const BarChart::Bars& bars : chart.series) {
    for (const double value : bars.values) {
      const std::string label = bar_label(chart, value);
      if (std::abs(value) >= 1) decimals = std::max(decimals, decimals_in(label));
    }
  }
  // How wide a group is depends on the labels of y, and these on how high the chart is.
  Axes axes = place_axes(canvas, bottom, {.label = chart.x_label}, {0, groups}, chart.y, y);
  std::vector<std::vector<std::string>> names;
  std::size_t lines = 1;
  for (const std::string& name : chart.categories) {
    names.push_back(wrapped(name, (axes.frame.right - axes.frame.left) / groups - 6));
    lines = std::max(lines, names.back().size());
  }
  if (lines > 1) axes = place_axes(canvas, bottom, {.label = chart.x_label}, {0, groups}, chart.y, y, lines);
  draw_y_axis(canvas, axes.frame, axes.y, chart.y.label);
  const double group = (axes.frame.right - axes.frame.left) / groups;
  const double width = group * 0.76 / static_cast<double>(chart.series.size());
  for (std::size_t c = 0; c < chart.categories.size(); ++c) {
    const double left = axes.frame.left + group * (static_cast<double>(c) + 0.12);
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      const double value = chart.series[s].values[c];
      if (!std::isfinite(value)) continue;
      const double at = axes.y(value), zero = axes.y(0), x = left + width * static_cast<double>(s);
      const std::string text = chart.y.unit == Unit::share ? short_percent(value) : short_number(value);
      canvas.shape("rect",
                   {{"class", color_class("pl-f", color_of(chart.series[s], s))},
                    {"x", x + 1},
                    {"y", std::min(at, zero)},
                    {"width", std::max(1.0, width - 2)},
                    {"height", std::abs(zero - at)},
                    {"rx", 2.0}},
                   concat(chart.series[s].name, ", ", chart.categories[c], ": ", text));
      const std::string label = with_decimals(bar_label(chart, value), decimals);
      if (chart.values && text_width(label) < width + 8) {
        canvas.text(x + width / 2, std::min(at, zero) - 4, label, "middle", "pl-quiet");
      }
    }
    for (std::size_t i = 0; i < names[c].size(); ++i) {
      canvas.text(left + group * 0.38, axes.frame.bottom + 18 + kLineHeight * static_cast<double>(i),
                  names[c][i], "middle", "pl-quiet");
    }
  }
  canvas.shape("line", {{"class", "pl-axis"},
                        {"x1", axes.frame.left},
                        {"x2", axes.frame.right},
                        {"y1", axes.y(0)},
                        {"y2", axes.y(0)}});
  draw_x_label(canvas, axes.frame, chart.x_label, lines);
  draw_marks(canvas, axes.frame, nullptr, axes.y, chart.marks);
  return canvas.finish();
}

std::string to_svg(const Histogram& chart, Placement placement) {
  if (chart.edges.size() < 2 ||
      !std::is_sorted(chart.edges.begin(), chart.edges.end(), std::less_equal<>())) {
    bad_argument("plot", "edges", "two or more, strictly ascending", concat(chart.edges.size()));
  }
  if (chart.series.empty()) bad_argument("plot", "series", "at least one", "none");
  Extent y;
  y.take(0);
  for (const Histogram::Bins& bins : chart.series) {
    if (bins.values.size() + 1 != chart.edges.size()) {
      bad_argument("plot", "series", concat(chart.edges.size() - 1, " values in '", bins.name, "'"),
                   concat(bins.values.size()));
    }
    for (const double value : bins.values) y.take(value);
  }
  Extent x{chart.edges.front(), chart.edges.back()};
  for (const PlotMark& mark : chart.marks) (mark.vertical ? x : y).take(mark.at);
  Canvas canvas(chart.size, {chart.title, chart.description, chart.caption}, placement);
  const double top = top_of(placement, chart.caption);
  const double bottom = top + canvas.legend(top, legend_of(chart.series));
  const Axes axes = place_axes(canvas, bottom, chart.x, x, chart.y, y);
  draw_y_axis(canvas, axes.frame, axes.y, chart.y.label);
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const std::string zero = Canvas::Value(axes.y(0)).text();
    std::string path = concat("M", Canvas::Value(axes.x(chart.edges.front())).text(), ' ', zero);
    for (std::size_t i = 0; i + 1 < chart.edges.size(); ++i) {
      path += concat("V", Canvas::Value(axes.y(chart.series[s].values[i])).text(), "H",
                     Canvas::Value(axes.x(chart.edges[i + 1])).text());
    }
    path += concat("V", zero, "Z");
    const int color = color_of(chart.series[s], s);
    canvas.shape("path",
                 {{"class", concat("pl-area ", color_class("pl-s", color), ' ', color_class("pl-f", color))},
                  {"d", path}},
                 chart.series[s].name);
  }
  draw_x_axis(canvas, axes.frame, axes.x, chart.x.label);
  draw_marks(canvas, axes.frame, &axes.x, axes.y, chart.marks);
  return canvas.finish();
}

std::string to_svg(const HeatMap& chart, Placement placement) {
  if (chart.rows.empty() || chart.columns.empty()) bad_argument("plot", "rows", "rows and columns", "none");
  bool matches = chart.values.size() == chart.rows.size();
  for (const auto& row : chart.values) matches &= row.size() == chart.columns.size();
  if (!matches) {
    bad_argument("plot", "values", concat(chart.rows.size(), " rows of ", chart.columns.size()),
                 "other sizes");
  }
  Extent all;
  for (const auto& row : chart.values) {
    for (const double value : row) all.take(value);
  }
  if (all.empty()) bad_argument("plot", "values", "at least one finite value", "none");
  const double low = chart.low.value_or(std::min(0.0, all.low)), high = chart.high.value_or(all.high);
  Canvas canvas(chart.size, {chart.title, chart.description, chart.caption}, placement);
  const Frame frame = frame_for(canvas, top_of(placement, chart.caption), chart.rows,
                                !chart.row_label.empty(), !chart.column_label.empty());
  const double width = (frame.right - frame.left) / static_cast<double>(chart.columns.size());
  const double height = (frame.bottom - frame.top) / static_cast<double>(chart.rows.size());
  for (std::size_t r = 0; r < chart.rows.size(); ++r) {
    const double y = frame.top + height * static_cast<double>(r);
    canvas.text(frame.left - 6, y + height / 2 + 4.5, chart.rows[r], "end", "pl-quiet");
    for (std::size_t c = 0; c < chart.columns.size(); ++c) {
      const double value = chart.values[r][c], x = frame.left + width * static_cast<double>(c);
      if (!std::isfinite(value)) continue;
      const double strength = high > low ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0;
      const std::string text = chart.unit == Unit::share ? short_percent(value) : short_number(value);
      canvas.shape("rect",
                   {{"class", color_class("pl-f", chart.color)},
                    {"fill-opacity", 0.06 + 0.94 * strength},
                    {"x", x + 1.5},
                    {"y", y + 1.5},
                    {"width", std::max(1.0, width - 3)},
                    {"height", std::max(1.0, height - 3)},
                    {"rx", 3.0}},
                   concat(chart.row_label, ' ', chart.rows[r], ", ", chart.column_label, ' ',
                          chart.columns[c], ": ", text));
      if (text_width(text) < width - 2 && height > kFontSize + 2) {
        canvas.text(x + width / 2, y + height / 2 + 4.5, text, "middle",
                    strength > 0.5 ? "pl-on" : "pl-text");
      }
    }
  }
  for (std::size_t c = 0; c < chart.columns.size(); ++c) {
    canvas.text(frame.left + width * (static_cast<double>(c) + 0.5), frame.bottom + 18, chart.columns[c],
                "middle", "pl-quiet");
  }
  if (!chart.row_label.empty()) canvas.vertical_text(20, (frame.top + frame.bottom) / 2, chart.row_label);
  draw_x_label(canvas, frame, chart.column_label);
  return canvas.finish();
}

Binned bin_values(const std::vector<std::vector<double>>& series, int bins) {
  Extent all;
  for (const auto& values : series) {
    for (const double value : values) all.take(value);
  }
  if (all.empty() || bins < 1) bad_argument("plot", "series", "values to put into bins", "none");
  const double step = all.high > all.low ? round_step(all.high - all.low, std::max(1, bins - 1)) : 1;
  const double first = std::floor(all.low / step);
  const auto count = static_cast<std::size_t>(std::floor(all.high / step) - first + 1);
  Binned result;
  for (std::size_t i = 0; i <= count; ++i) result.edges.push_back((first + static_cast<double>(i)) * step);
  for (const auto& values : series) {
    std::vector<double> shares(count, 0);
    double finite = 0;
    for (const double value : values) finite += std::isfinite(value);
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      const auto bin = static_cast<std::size_t>(std::floor(value / step) - first);
      shares[std::min(bin, count - 1)] += 1 / finite;
    }
    result.shares.push_back(std::move(shares));
  }
  return result;
}

}  // namespace gsa::eval
