// What every chart is drawn with: the frame of an SVG picture, its texts and shapes. Private to plot*.cc.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "plot/plot.h"

namespace gsa::eval {

constexpr double kFontSize = 13;
constexpr double kLineHeight = 18;

double text_width(const std::string& text);  // about, in pixels

struct PlotTexts {
  const std::string &title, &description, &caption;
};

class Canvas {
 public:
  Canvas(PlotSize size, const PlotTexts& texts, Placement placement);

  // Attributes in the order given: {"class", "axis"}, {"x1", 3.5}, ... Numbers are written short.
  class Value {
   public:
    Value(const char* text) : text_(text) {}
    Value(std::string text) : text_(std::move(text)) {}
    Value(double number);
    const std::string& text() const { return text_; }

   private:
    std::string text_;
  };
  using Attributes = std::initializer_list<std::pair<const char*, Value>>;

  // tooltip: shown by browsers over the shape.
  void shape(const char* element, Attributes attributes, const std::string& tooltip = "");
  // place: start, middle or end.
  void text(double x, double y, const std::string& content, const char* place = "start",
            const char* css_class = "pl-text");
  void vertical_text(double x, double y, const std::string& content);

  // Names with their colours, in rows from the top; returns the height that they took. One alone needs none.
  double legend(double top, const std::vector<std::pair<std::string, int>>& entries);

  std::string finish();

  PlotSize size() const { return size_; }

 private:
  PlotSize size_;
  std::string out_;
};

std::string color_class(const char* prefix, int color);  // pl-s0 (stroke), pl-f0 (fill)

// The inner rectangle of a chart with axes, and the axes on it.
struct Frame {
  double left, top, right, bottom;
};

// Lines and labels of both axes. Categories: no ticks on x.
void draw_y_axis(Canvas& canvas, const Frame& frame, const PlacedAxis& y, const std::string& label);
void draw_x_axis(Canvas& canvas, const Frame& frame, const PlacedAxis& x, const std::string& label);
// lines: of the labels between it and the axis.
void draw_x_label(Canvas& canvas, const Frame& frame, const std::string& label, std::size_t lines = 1);
void draw_marks(Canvas& canvas, const Frame& frame, const PlacedAxis* x, const PlacedAxis& y,
                const std::vector<PlotMark>& marks);

// Room for the labels of ticks and axes around a frame, below a legend of some height. x_lines: of x's labels.
Frame frame_for(const Canvas& canvas, double legend_bottom, const std::vector<std::string>& y_texts,
                bool y_label, bool x_label, std::size_t x_lines = 1);

// A text broken at its spaces into lines of at most `width`; a word that is wider stays whole.
std::vector<std::string> wrapped(const std::string& text, double width);

}  // namespace gsa::eval
