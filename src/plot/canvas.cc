#include "plot/canvas.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/number_text.h"
#include "gsa/error.h"
#include "plot/markup.h"

namespace gsa::eval {
namespace {

constexpr double kMargin = 10;

// Two decimals: a tenth of a pixel is seen on sharp screens, more only makes files long.
std::string pixels(double value) {
  std::string trimmed = fixed(value, 2);
  trimmed.erase(trimmed.find_last_not_of('0') + 1);
  if (trimmed.back() == '.') trimmed.pop_back();
  return trimmed == "-0" ? "0" : trimmed;
}

}  // namespace

std::string plot_style() {
  struct Theme {
    const char *text, *quiet, *grid, *span, *paper;
    const char* colors[kPlotColors];
  };
  // Colours of a theme differ in lightness too, so that they stay apart for the colour-blind.
  constexpr Theme kLight = {"#1c2430", "#5b6675",
                            "#e3e7ed", "#eef2f7",
                            "#ffffff", {"#2463c4", "#d4621c", "#11806f", "#a63c86", "#8f6d00", "#66738a"}};
  constexpr Theme kDark = {"#e6eaf0", "#9aa7b8",
                           "#2c3542", "#1d2632",
                           "#12171e", {"#6fa8ff", "#ff9a57", "#4fd0b5", "#ee8dcb", "#e0bd4a", "#a3b0c4"}};
  const auto variables = [](const Theme& theme) {
    std::string text =
        concat("--pl-text:", theme.text, ";--pl-quiet:", theme.quiet, ";--pl-grid:", theme.grid,
               ";--pl-span:", theme.span, ";--pl-paper:", theme.paper);
    for (int i = 0; i < kPlotColors; ++i) text += concat(";--pl-", i, ":", theme.colors[i]);
    return text;
  };
  std::string css =
      concat(".pl{", variables(kLight), "}\n@media(prefers-color-scheme:dark){.pl{", variables(kDark), "}}\n",
             R"(.pl{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.pl-text{fill:var(--pl-text)}.pl-quiet{fill:var(--pl-quiet)}.pl-title{fill:var(--pl-text);font-weight:600;font-size:15px}
.pl-on{fill:var(--pl-paper)}.pl-halo{fill:var(--pl-quiet);paint-order:stroke;stroke:var(--pl-paper);stroke-width:3px}
.pl-grid{stroke:var(--pl-grid);stroke-width:1}.pl-axis{stroke:var(--pl-quiet);stroke-width:1}
.pl-span{fill:var(--pl-span)}.pl-mark{stroke:var(--pl-quiet);stroke-width:1.2;stroke-dasharray:4 3}
.pl-line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.pl-dash{stroke-dasharray:6 4}
.pl-area{fill-opacity:.28;stroke-width:1.5;stroke-linejoin:round}
)");
  for (int i = 0; i < kPlotColors; ++i) {
    css += concat(".pl-s", i, "{stroke:var(--pl-", i, ")}.pl-f", i, "{fill:var(--pl-", i, ")}");
  }
  return css + "\n";
}

std::string color_class(const char* prefix, int color) { return concat(prefix, color % kPlotColors); }

double text_width(const std::string& text) {
  // Characters of UTF-8, at the mean width of the usual fonts.
  const auto characters = std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return 0.56 * kFontSize * static_cast<double>(characters);
}

// The end of a text, which tells paths apart, where the whole is too wide.
static std::string fitting_end(std::string text, double width) {
  if (text_width(text) <= width) return text;
  while (text_width("…" + text) > width) {
    do text.erase(0, 1);
    while (!text.empty() && (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80);
  }
  return "…" + text;
}

Canvas::Value::Value(double number) : text_(pixels(number)) {}

Canvas::Canvas(PlotSize size, const PlotTexts& texts, Placement placement) : size_(size) {
  const auto& [title, description, caption] = texts;
  if (size.width < 120 || size.height < 80) {
    bad_argument("plot", "size", "at least 120 x 80 pixels", concat(size.width, " x ", size.height));
  }
  out_ = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pl\" viewBox=\"0 0 ", size.width, ' ',
                size.height, "\" width=\"", size.width, "\" height=\"", size.height,
                "\" role=\"img\" aria-label=\"", xml_escaped(title), "\">\n<title>", xml_escaped(title),
                "</title>\n");
  if (!description.empty()) out_ += concat("<desc>", xml_escaped(description), "</desc>\n");
  if (placement == Placement::file) {
    out_ +=
        concat("<style>", plot_style(), "</style>\n<rect width=\"100%\" height=\"100%\" class=\"pl-on\"/>\n");
    text(kMargin, 22, title, "start", "pl-title");
    if (!caption.empty())
      text(kMargin, 40, fitting_end(caption, size.width - 2 * kMargin), "start", "pl-quiet");
  }
}

void Canvas::shape(const char* element, Attributes attributes, const std::string& tooltip) {
  out_ += concat('<', element);
  for (const auto& [name, value] : attributes)
    out_ += concat(' ', name, "=\"", xml_escaped(value.text()), '"');
  out_ += tooltip.empty() ? "/>\n" : concat("><title>", xml_escaped(tooltip), "</title></", element, ">\n");
}

void Canvas::text(double x, double y, const std::string& content, const char* place, const char* css_class) {
  out_ += concat("<text class=\"", css_class, "\" x=\"", pixels(x), "\" y=\"", pixels(y), "\" text-anchor=\"",
                 place, "\">", xml_escaped(content), "</text>\n");
}

void Canvas::vertical_text(double x, double y, const std::string& content) {
  out_ += concat("<text class=\"pl-quiet\" transform=\"translate(", pixels(x), ' ', pixels(y),
                 ") rotate(-90)\" text-anchor=\"middle\">", xml_escaped(content), "</text>\n");
}

double Canvas::legend(double top, const std::vector<std::pair<std::string, int>>& entries) {
  if (entries.size() < 2) return 0;
  constexpr double kSwatch = 14, kGap = 16;
  double x = kMargin, y = top;
  for (const auto& [name, color] : entries) {
    const double width = kSwatch + 6 + text_width(name);
    if (x > kMargin && x + width > size_.width - kMargin) {
      x = kMargin;
      y += kLineHeight;
    }
    shape("rect", {{"class", color_class("pl-f", color)},
                   {"x", x},
                   {"y", y + 4},
                   {"width", kSwatch},
                   {"height", 10.0},
                   {"rx", 2.0}});
    text(x + kSwatch + 6, y + 13.5, name);
    x += width + kGap;
  }
  return y + kLineHeight + 4 - top;
}

std::string Canvas::finish() {
  out_ += "</svg>\n";
  return std::move(out_);
}

std::vector<std::string> wrapped(const std::string& text, double width) {
  std::vector<std::string> lines = {""};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::string& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (text_width(line + " " + word) <= width) {
      line += " " + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

Frame frame_for(const Canvas& canvas, double legend_bottom, const std::vector<std::string>& y_texts,
                bool y_label, bool x_label, std::size_t x_lines) {
  double widest = 0;
  for (const std::string& text : y_texts) widest = std::max(widest, text_width(text));
  return {.left = kMargin + (y_label ? kLineHeight : 0) + widest + 6,
          .top = legend_bottom + 10,
          .right = canvas.size().width - kMargin - 8.0,
          .bottom = canvas.size().height - (x_label ? kLineHeight + 4 : 0) -
                    kLineHeight * static_cast<double>(x_lines) - 8.0};
}

void draw_y_axis(Canvas& canvas, const Frame& frame, const PlacedAxis& y, const std::string& label) {
  for (const double tick : y.ticks()) {
    const double at = y(tick);
    canvas.shape("line",
                 {{"class", "pl-grid"}, {"x1", frame.left}, {"x2", frame.right}, {"y1", at}, {"y2", at}});
    canvas.text(frame.left - 6, at + 4.5, y.text(tick), "end", "pl-quiet");
  }
  if (!label.empty()) canvas.vertical_text(kMargin + 10, (frame.top + frame.bottom) / 2, label);
}

void draw_x_axis(Canvas& canvas, const Frame& frame, const PlacedAxis& x, const std::string& label) {
  canvas.shape("line", {{"class", "pl-axis"},
                        {"x1", frame.left},
                        {"x2", frame.right},
                        {"y1", frame.bottom},
                        {"y2", frame.bottom}});
  double free_from = 0;  // labels that would touch their neighbour are left out
  for (const double tick : x.ticks()) {
    const double at = x(tick);
    canvas.shape(
        "line",
        {{"class", "pl-axis"}, {"x1", at}, {"x2", at}, {"y1", frame.bottom}, {"y2", frame.bottom + 4}});
    const double half = text_width(x.text(tick)) / 2;
    if (at - half < free_from) continue;
    canvas.text(at, frame.bottom + 18, x.text(tick), "middle", "pl-quiet");
    free_from = at + half + 6;
  }
  draw_x_label(canvas, frame, label);
}

void draw_x_label(Canvas& canvas, const Frame& frame, const std::string& label, std::size_t lines) {
  if (label.empty()) return;
  const double below = frame.bottom + 18 + kLineHeight * static_cast<double>(lines);
  canvas.text((frame.left + frame.right) / 2, below, label, "middle", "pl-quiet");
}

void draw_marks(Canvas& canvas, const Frame& frame, const PlacedAxis* x, const PlacedAxis& y,
                const std::vector<PlotMark>& marks) {
  for (const PlotMark& mark : marks) {
    if (mark.vertical) {
      if (x == nullptr)
        bad_argument("plot", "marks", "horizontal ones where x has categories", "a vertical one");
      const double at = (*x)(mark.at);
      canvas.shape("line",
                   {{"class", "pl-mark"}, {"x1", at}, {"x2", at}, {"y1", frame.top}, {"y2", frame.bottom}});
      const bool left = at + 6 + text_width(mark.label) > frame.right;
      canvas.text(left ? at - 5 : at + 5, frame.top + 12, mark.label, left ? "end" : "start", "pl-halo");
    } else {
      const double at = y(mark.at);
      canvas.shape("line",
                   {{"class", "pl-mark"}, {"x1", frame.left}, {"x2", frame.right}, {"y1", at}, {"y2", at}});
      canvas.text(frame.right - 4, at - 5, mark.label, "end", "pl-halo");
    }
  }
}

}  // namespace gsa::eval
