// Charts: well-formed whatever the labels say, complete, and with ticks where people expect them.
#include "plot/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gsa/error.h"
#include "plot/markup.h"
#include "plot/xml.h"

namespace gsa::eval {
namespace {

using gsa::testing::read_xml;
using gsa::testing::Xml;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const std::string kNasty = "<b> & \"quotes\" \x01 \xff \xed\xa0\x80";
const std::string kNastyEscaped =
    "&lt;b&gt; &amp; &quot;quotes&quot; \xEF\xBF\xBD \xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD";

LineChart two_lines() {
  LineChart chart{
      .title = "Loss", .description = "two models", .x = {.label = "step"}, .y = {.label = "nats"}};
  chart.series.push_back({.name = "standard", .x = {0, 1, 2, 3}, .y = {4, 3, 2.5, 2}});
  chart.series.push_back({.name = "gsa", .x = {0, 1, 2, 3}, .y = {4, kNan, 2, 1.5}, .points = true});
  chart.spans = {{0, 1, "dense"}, {1, 3, "sparse"}};
  chart.marks = {{1, "floor"}, {2, "switch", true}};
  return chart;
}

Xml checked(const std::string& svg) {
  Xml xml = read_xml(svg);
  EXPECT_EQ(xml.error, "") << svg;
  return xml;
}

TEST(Plot, line_chart_has_all_its_parts) {
  const Xml xml = checked(to_svg(two_lines()));
  ASSERT_GE(xml.elements.size(), 3u);
  EXPECT_EQ(xml.elements[0].name, "svg");
  EXPECT_EQ(xml.elements[0].attributes.at("role"), "img");
  EXPECT_EQ(xml.elements[1].name, "title");
  EXPECT_EQ(xml.elements[1].text, "Loss");
  EXPECT_EQ(xml.elements[2].name, "desc");
  for (const char* text : {"standard", "gsa", "step", "nats", "dense", "sparse", "floor", "switch"}) {
    EXPECT_TRUE(xml.has_text(text)) << text;
  }
  EXPECT_EQ(xml.of_class("pl-line").size(), 2u);
  EXPECT_EQ(xml.of_class("pl-mark").size(), 2u);
  EXPECT_EQ(xml.count("circle"), 3u) << "a value that is not finite has no point";
  // The gap: the path begins twice.
  const std::string path = xml.of_class("pl-line")[1]->attributes.at("d");
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 1);
}

TEST(Plot, higher_values_stand_higher) {
  LineChart chart{.title = "t"};
  chart.series.push_back({.name = "s", .x = {0, 1}, .y = {1, 2}, .points = true});
  const Xml xml = checked(to_svg(chart));
  std::vector<double> cx, cy;
  for (const auto& element : xml.elements) {
    if (element.name != "circle") continue;
    cx.push_back(std::stod(element.attributes.at("cx")));
    cy.push_back(std::stod(element.attributes.at("cy")));
  }
  ASSERT_EQ(cx.size(), 2u);
  EXPECT_LT(cx[0], cx[1]);
  EXPECT_GT(cy[0], cy[1]) << "y of a page grows downwards";
}

TEST(Plot, a_series_without_a_name_stays_out_of_the_legend) {
  LineChart chart = two_lines();
  const std::size_t swatches = checked(to_svg(chart, Placement::page)).of_class("pl-f0").size();
  chart.series.push_back({.x = {0, 1}, .y = {1, 1}, .color = 0});
  const Xml xml = checked(to_svg(chart, Placement::page));
  EXPECT_EQ(xml.of_class("pl-f0").size(), swatches);
  EXPECT_EQ(xml.of_class("pl-line").size(), 3u);
}

TEST(Plot, style_stands_in_a_file_and_not_on_a_page) {
  const std::string file = to_svg(two_lines()), page = to_svg(two_lines(), Placement::page);
  EXPECT_NE(file.find(plot_style()), std::string::npos);
  EXPECT_EQ(page.find("<style"), std::string::npos);
  EXPECT_NE(plot_style().find("prefers-color-scheme:dark"), std::string::npos);
}

TEST(Plot, text_is_escaped_everywhere) {
  LineChart lines = two_lines();
  lines.title = lines.description = lines.x.label = lines.y.label = kNasty;
  lines.series[0].name = lines.series[1].name = lines.spans[0].label = lines.marks[0].label = kNasty;
  EXPECT_TRUE(checked(to_svg(lines)).has_text(kNastyEscaped));
  BarChart bars;
  bars.title = bars.x_label = kNasty;
  bars.categories = {kNasty};
  bars.series.push_back({.name = kNasty, .values = {1}});
  EXPECT_TRUE(checked(to_svg(bars)).has_text(kNastyEscaped));
  HeatMap map;
  map.title = map.row_label = kNasty;
  map.rows = map.columns = {kNasty};
  map.values = {{1}};
  EXPECT_TRUE(checked(to_svg(map)).has_text(kNastyEscaped));
  Histogram histogram;
  histogram.title = kNasty;
  histogram.edges = {0, 1};
  histogram.series.push_back({.name = kNasty, .values = {1}});
  EXPECT_TRUE(checked(to_svg(histogram)).has_text(kNastyEscaped));
}

TEST(Plot, bars_reach_their_values) {
  BarChart chart;
  chart.title = "Recall";
  chart.categories = {"near", "far"};
  chart.y.unit = Unit::share;
  chart.y.low = 0;
  chart.y.high = 1;
  chart.series.push_back({.name = "standard", .values = {1.0, 0.5}});
  chart.series.push_back({.name = "gsa", .values = {kNan, 0.25}});
  chart.marks.push_back({0.02, "chance"});
  const Xml xml = checked(to_svg(chart, Placement::page));
  std::vector<double> heights;
  for (const auto& element : xml.elements) {
    if (element.name == "rect" && std::stod(element.attributes.at("y")) > 30)
      heights.push_back(std::stod(element.attributes.at("height")));
  }
  ASSERT_EQ(heights.size(), 3u) << "no bar for what is not finite";
  EXPECT_NEAR(heights[1] / heights[0], 0.5, 0.01);
  EXPECT_NEAR(heights[2] / heights[0], 0.25, 0.01);
  for (const char* text : {"near", "far", "chance", "50", "25", "100 %"})
    EXPECT_TRUE(xml.has_text(text)) << text;
}

TEST(Plot, values_of_bars_have_alike_decimals) {
  BarChart chart{.title = "perplexity", .categories = {"a", "b", "c", "d", "e"}};
  chart.series.push_back({.values = {3.98, 3.997, 0.5, 4.5, 1e-5}});
  const Xml xml = checked(to_svg(chart, Placement::page));
  for (const char* text : {"3.98", "4.00", "0.50", "4.50", "1e-05"}) EXPECT_TRUE(xml.has_text(text)) << text;
  chart.series[0].values = {12'345, 400, 3, 20, 0};
  const Xml large = checked(to_svg(chart, Placement::page));
  for (const char* text : {"12.3K", "400", "3", "20"}) EXPECT_TRUE(large.has_text(text)) << text;
}

// Names that are wider than their group would lie over each other.
TEST(Plot, names_of_bars_are_broken_at_spaces) {
  BarChart chart{.title = "forms",
                 .categories = {"sigmoid + inverse", "sigmoid + proportional", "ReLU", "all"}};
  chart.series.push_back({.values = {4, 3, 2, 1}});
  const auto lowest_bar = [](const Xml& xml) {
    double bottom = 0;
    for (const auto& element : xml.elements) {
      if (element.name == "rect")
        bottom = std::max(bottom,
                          std::stod(element.attributes.at("y")) + std::stod(element.attributes.at("height")));
    }
    return bottom;
  };
  const Xml xml = checked(to_svg(chart, Placement::page));
  for (const char* text : {"sigmoid +", "inverse", "proportional", "ReLU"})
    EXPECT_TRUE(xml.has_text(text)) << text;
  EXPECT_FALSE(xml.has_text("sigmoid + inverse"));
  double below = 0;
  for (const auto& element : xml.elements) {
    if (element.name == "text") below = std::max(below, std::stod(element.attributes.at("y")));
  }
  EXPECT_LE(below, chart.size.height - 4.0) << "the second line is on the picture";
  chart.size.width = 800;  // now they fit
  const Xml wide = checked(to_svg(chart, Placement::page));
  EXPECT_TRUE(wide.has_text("sigmoid + proportional"));
  EXPECT_GT(lowest_bar(wide), lowest_bar(xml)) << "and no room is left for lines that are not there";
}

TEST(Plot, heat_map_shades_by_value) {
  HeatMap chart;
  chart.title = "first token";
  chart.row_label = "layer";
  chart.column_label = "head";
  chart.rows = chart.columns = {"0", "1"};
  chart.values = {{0, 0.5}, {1, kNan}};
  chart.unit = Unit::share;
  chart.high = 1;
  const Xml xml = checked(to_svg(chart, Placement::page));
  std::vector<double> opacities;
  for (const auto& element : xml.elements) {
    if (element.name == "rect") opacities.push_back(std::stod(element.attributes.at("fill-opacity")));
  }
  ASSERT_EQ(opacities.size(), 3u);
  EXPECT_LT(opacities[0], opacities[1]);
  EXPECT_LT(opacities[1], opacities[2]);
  EXPECT_TRUE(xml.has_text("50 %"));
  EXPECT_TRUE(xml.has_text("layer 1, head 0: 100 %"));
}

TEST(Plot, what_cannot_be_drawn_is_an_error) {
  LineChart lines;
  EXPECT_THROW(to_svg(lines), Error) << "nothing";
  lines.series.push_back({.name = "s", .x = {1}, .y = {kNan}});
  EXPECT_THROW(to_svg(lines), Error) << "nothing finite";
  lines.series[0].x = {1, 2};
  lines.series[0].y = {1};
  EXPECT_THROW(to_svg(lines), Error) << "x without y";
  lines.series[0].y = {0, 1};
  EXPECT_NO_THROW(to_svg(lines));
  lines.y.scale = Scale::logarithmic;
  EXPECT_THROW(to_svg(lines), Error) << "the logarithm of 0";
  lines.y.scale = Scale::linear;
  lines.size = {10, 10};
  EXPECT_THROW(to_svg(lines), Error) << "too small";

  BarChart bars;
  bars.categories = {"a"};
  bars.series.push_back({.name = "s", .values = {1, 2}});
  EXPECT_THROW(to_svg(bars), Error) << "two values for one category";
  bars.series[0].values = {1};
  EXPECT_NO_THROW(to_svg(bars));
  bars.marks.push_back({1, "", true});
  EXPECT_THROW(to_svg(bars), Error) << "a vertical mark between categories";

  Histogram histogram;
  histogram.edges = {0, 0};
  histogram.series.push_back({.name = "s", .values = {1}});
  EXPECT_THROW(to_svg(histogram), Error) << "an empty bin";
  histogram.edges = {0, 1};
  EXPECT_NO_THROW(to_svg(histogram));

  HeatMap map;
  map.rows = {"a"};
  map.columns = {"b"};
  map.values = {{1, 2}};
  EXPECT_THROW(to_svg(map), Error) << "more values than columns";
  map.values = {{1}};
  EXPECT_NO_THROW(to_svg(map));
}

TEST(PlotScale, ticks_are_round_and_cover_the_data) {
  const PlacedAxis axis({}, 0.13, 4.7, 0, 100, 6);
  EXPECT_EQ(axis.ticks(), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(axis(0), 0);
  EXPECT_EQ(axis(5), 100);
  EXPECT_EQ(axis(9), 100) << "nothing is drawn beside the chart";
  EXPECT_EQ(axis.text(2), "2");

  const PlacedAxis fine({}, 1.001, 1.004, 100, 0, 4);
  EXPECT_EQ(fine.text(fine.ticks()[1]), "1.002");
  const PlacedAxis share({.unit = Unit::share, .low = 0, .high = 1}, 0.2, 0.3, 0, 1, 5);
  EXPECT_EQ(share.text(share.ticks().back()), "100 %");
  const PlacedAxis large({}, 0, 60000, 0, 1, 6);
  EXPECT_EQ(large.text(20000), "20K");
  const PlacedAxis single({}, 3, 3, 0, 1, 5);
  EXPECT_LT(single.low(), 3);
  EXPECT_GT(single.high(), 3);
}

TEST(PlotScale, logarithmic_ticks) {
  const PlacedAxis decades({.scale = Scale::logarithmic}, 1, 1000, 0, 300, 4);
  EXPECT_EQ(decades.ticks(), (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_NEAR(decades(10), 100, 1e-9);
  const PlacedAxis half({.scale = Scale::logarithmic}, 1, 8, 0, 300, 6);
  EXPECT_EQ(half.ticks(), (std::vector<double>{1, 2, 5}));
  EXPECT_EQ(PlacedAxis({.scale = Scale::logarithmic}, 1e-3, 1, 0, 1, 4).text(0.01), "0.01");
  // Between 2,000 and 5,000 there is neither: an axis without labels says nothing.
  const PlacedAxis within({.scale = Scale::logarithmic}, 2350, 3440, 0, 300, 6);
  EXPECT_EQ(within.ticks(), (std::vector<double>{2400, 2600, 2800, 3000, 3200, 3400}));
  EXPECT_EQ(within.text(2400), "2400");
  EXPECT_NEAR(within(2843.24), 150, 0.1) << "still logarithmic";
  const PlacedAxis narrow({.scale = Scale::logarithmic}, 4.131, 4.158, 0, 300, 6);
  EXPECT_EQ(narrow.text(narrow.ticks()[0]), "4.135");
}

TEST(Markup, numbers) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(1.2345), "1.23");
  EXPECT_EQ(short_number(300), "300");
  EXPECT_EQ(short_number(9999), "9999");
  EXPECT_EQ(short_number(12345), "12.3K");
  EXPECT_EQ(short_number(999960), "1M");
  EXPECT_EQ(short_number(-0.00001), "-1e-05");
  EXPECT_EQ(short_percent(0.1254), "12.5 %");
  EXPECT_EQ(short_percent(1), "100 %");
}

TEST(Plot, bins_hold_every_value_once) {
  const Binned binned = bin_values({{16, 17, 64, 128}, {16, kNan}}, 10);
  ASSERT_EQ(binned.shares.size(), 2u);
  EXPECT_LE(binned.edges.size(), 11u);
  EXPECT_LE(binned.edges.front(), 16);
  EXPECT_GT(binned.edges.back(), 128);
  double first = 0, second = 0;
  for (const double share : binned.shares[0]) first += share;
  for (const double share : binned.shares[1]) second += share;
  EXPECT_NEAR(first, 1, 1e-12);
  EXPECT_NEAR(second, 1, 1e-12);
  EXPECT_NEAR(binned.shares[0][0], 0.5, 1e-12) << "16 and 17";
  EXPECT_EQ(bin_values({{5, 5}}, 10).shares[0], (std::vector<double>{1}));
}

}  // namespace
}  // namespace gsa::eval
