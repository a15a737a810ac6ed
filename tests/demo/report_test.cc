// The report says what was measured, in one page that needs nothing else; steps are fitted into the time.
#include "demo/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "core/json.h"
#include "demo/pace.h"
#include "gsa/error.h"
#include "plot/xml.h"

namespace gsa::demo {
namespace {

Curve falling(std::int64_t steps, double from, double to) {
  Curve curve;
  for (std::int64_t i = 1; i <= steps; ++i) {
    curve.step.push_back(static_cast<double>(i));
    curve.value.push_back(to + (from - to) * std::exp(-static_cast<double>(i) / 60));
  }
  return curve;
}

// Made-up numbers, each of which occurs once.
Results some_results() {
  Results r;
  r.settings = {.seed = 4711,
                .threads = 2,
                .processor = "A <processor> & more",
                .vocabulary = 1152,
                .train_tokens = 614400,
                .validation_tokens = 24576,
                .length = 512,
                .batch_tokens = 1024,
                .dense = 300,
                .warmup = 90,
                .sparse = 210,
                .learning_rate = 3e-3,
                .layers = 4,
                .d_model = 128,
                .heads = 4,
                .kv_heads = 2,
                .k_base = 64,
                .k_min = 16,
                .k_max = 128,
                .mean_visible = 256.5};
  r.questions = {{"Nora drank tea.", "Soon Nora drank", "tea", 487},
                 {"Ivo fed goats.", "Soon Ivo fed", "goats", 203}};
  r.chance = 1.0 / 16;
  r.seconds = 231;
  const auto fill = [&](ModelResults& m, const char* system, double loss) {
    m.system = system;
    m.folder = concat("out/", system, "/latest");
    m.parameters = 869504;
    m.seconds = 90;
    m.tokens_per_second = 6827;
    m.loss = falling(600, 6, loss);
    m.validation = {.step = {60, 300, 600}, .value = {2, 1.2, loss}};
    m.validation_loss = loss;
    m.perplexity = std::exp(loss);
    m.first_token = {
        {0.1, 0.2, 0.3, 0.05}, {0.6, 0.5, 0.01, 0.3}, {0.2, 0.2, 0.2, 0.2}, {0.7, 0.6, 0.4, 0.1}};
    m.first_token_mean = 0.29;
    m.even_share = 0.0133;
    m.largest_activation = {1, 2, 3, 4, 5};
    for (int i = 0; i < 8; ++i) {
      m.recall.push_back({.depth = i / 7.0,
                          .distance = 480.0 - 66 * i,
                          .questions = 24,
                          .recall = 0.7 + 0.04 * i,
                          .selected = 1});
    }
    m.replies = {{" tea", 0.93, true}, {" hens", 0.11, false}};
    m.samples = {{"Story: Ada", " drank tea.\n\x01\xff <b>"}};
  };
  fill(r.standard, "standard", 0.987);
  fill(r.gsa, "gsa", 1.234);
  r.gsa.parameters = 1062345;
  for (std::size_t i = 301; i <= 390; ++i) r.gsa.loss.value[i - 1] = std::nan("");
  r.gsa.kl.assign(4, Curve{.step = {301, 400, 600}, .value = {0.9, 0.4, 0.2}});
  r.gsa.value_gate = {0.41, 0.52, 0.63, 0.74};
  r.gsa.output_gate = {0.45, 0.56, 0.67, 0.78};
  r.gsa.kept_mass = {0.81, 0.82, 0.93, 0.94};
  r.gsa.k_mean = {50, 55, 60, 65};
  r.gsa.k_counts.assign(4, std::vector<std::int64_t>(129, 3));
  return r;
}

std::vector<std::string> pictures(const std::string& html) {
  std::vector<std::string> found;
  for (std::size_t at = 0; (at = html.find("<svg", at)) != std::string::npos;) {
    const std::size_t end = html.find("</svg>", at) + 6;
    found.push_back(html.substr(at, end - at));
    at = end;
  }
  return found;
}

bool has(const std::string& html, const std::string& text) { return html.find(text) != std::string::npos; }

TEST(DemoReport, has_every_plot_and_each_is_well_formed) {
  const std::string html = html_report(some_results(), "gsa");
  const std::vector<std::string> svgs = pictures(html);
  ASSERT_EQ(svgs.size(), 7u) << "loss, KL, recall, budget, two heat maps, gates";
  for (const std::string& svg : svgs) EXPECT_EQ(gsa::testing::read_xml(svg).error, "") << svg;
  for (const char* span : {">dense<", ">warm-up<", ">sparse<", ">layer 3<", ">chance<", ">k = 64<",
                           "value gate G2", "output gate G1"}) {
    EXPECT_TRUE(has(html, span)) << span;
  }
}

TEST(DemoReport, numbers_come_from_the_results) {
  const std::string html = html_report(some_results(), "tools/gsa");
  for (const char* text : {"0.987", "1.234", "worse than its standard twin", "1,062,345 (gates and indexer)",
                           "869,504", "A &lt;processor&gt; &amp; more", "seed 4711", "Nora drank tea.", "487",
                           "wrong, 11 % on the right word", "tools/gsa generate out/gsa/latest",
                           "--data out/data/validation", "29 %", "614,400", "58", "6 %"}) {
    EXPECT_TRUE(has(html, text)) << text;
  }
  Results other = some_results();
  std::swap(other.standard.validation_loss, other.gsa.validation_loss);
  EXPECT_TRUE(has(html_report(other, "gsa"), "better than its standard twin"));
  other.gsa.validation_loss = other.standard.validation_loss + 0.004;
  EXPECT_TRUE(has(html_report(other, "gsa"), "about as well as its standard twin"));
  for (Depth& depth : other.gsa.recall) depth.recall = 0.1;
  EXPECT_TRUE(has(html_report(other, "gsa"), "less often than"));
  for (Depth& depth : other.standard.recall) depth.recall = 0.05;
  EXPECT_TRUE(has(html_report(other, "gsa"), "Neither has learned to look back yet"));
}

TEST(DemoReport, needs_nothing_from_elsewhere) {
  const std::string html = html_report(some_results(), "gsa");
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  for (const char* outside : {"<script", "<link", "<img", "src=", "@import", "url(", "https:"})
    EXPECT_FALSE(has(html, outside)) << outside;
  EXPECT_TRUE(has(html, "prefers-color-scheme:dark"));
  EXPECT_TRUE(has(html, "width=device-width"));
}

TEST(DemoReport, what_a_model_writes_is_escaped) {
  const std::string html = html_report(some_results(), "gsa");
  EXPECT_TRUE(has(html, " drank tea.\n\xEF\xBF\xBD\xEF\xBF\xBD &lt;b&gt;"));
  EXPECT_FALSE(has(html, "\x01"));
}

TEST(DemoResults, json_has_both_models_and_their_means) {
  const Json json = Json::parse(some_results().to_json());
  EXPECT_EQ(json.at("gsa").at("k_mean").size(), 4u);
  EXPECT_FALSE(json.at("standard").contains("k_mean"));
  EXPECT_TRUE(json.at("gsa").at("loss").at("value").at(300).is_null()) << "no loss in the warm-up";
  EXPECT_NEAR(json.at("gsa").at("recall_mean").get<double>(), 0.84, 1e-9);
  EXPECT_EQ(json.at("settings").at("steps").at("warmup"), 90);
}

TEST(DemoResults, recall_counts_questions_and_distances) {
  ModelResults model;
  model.recall = {{.distance = 400, .questions = 30, .recall = 0.5},
                  {.distance = 50, .questions = 10, .recall = 1}};
  EXPECT_DOUBLE_EQ(model.mean_recall(), 25.0 / 40);
  EXPECT_DOUBLE_EQ(model.recall_beyond(64), 0.5);
  EXPECT_TRUE(std::isnan(model.recall_beyond(1000)));
}

TEST(DemoResults, thinning_keeps_means_and_gaps) {
  Curve curve = falling(1000, 5, 1);
  curve.value[500] = std::nan("");
  const Curve few = thinned(curve, 100);
  ASSERT_EQ(few.value.size(), 100u);
  EXPECT_NEAR(few.step[0], 5.5, 1e-12);
  EXPECT_TRUE(std::isnan(few.value[50]));
  EXPECT_NEAR(few.value[99], 1, 1e-3);
  EXPECT_EQ(thinned(few, 1000).value.size(), 100u);
}

TEST(DemoPace, phases_add_up) {
  for (const std::int64_t steps : {6, 20, 333, 1000}) {
    const Phases phases = phases_of(steps);
    EXPECT_EQ(phases.steps(), steps);
    EXPECT_GE(std::min({phases.dense, phases.warmup, phases.sparse}), 1);
    EXPECT_GT(phases.dense, phases.warmup);
  }
}

TEST(DemoPace, steps_fit_into_the_time) {
  const Pace pace{.standard = 0.1, .dense = 0.12, .warmup = 0.1, .sparse = 0.2};
  const std::int64_t steps = steps_within(200, pace);
  EXPECT_EQ(steps % 10, 0);
  EXPECT_LE(pace.seconds(phases_of(steps)), 200.5);
  EXPECT_GT(pace.seconds(phases_of(steps + 20)), 200);
  EXPECT_EQ(steps_within(0.1, pace), 20);

  double quickest = 0, lately = 0.1;
  for (const double seconds : {0.3, 0.1, 0.2}) Pace::take(quickest, seconds);
  EXPECT_EQ(quickest, 0.1);
  for (int i = 0; i < 200; ++i) Pace::follow(lately, 0.3);
  EXPECT_NEAR(lately, 0.3, 1e-3);

  const Phases phases{.dense = 10, .warmup = 4, .sparse = 6};
  EXPECT_NEAR(pace.seconds(phases), 2.0 + 1.2 + 0.4 + 1.2, 1e-12);
  EXPECT_NEAR(pace.seconds(phases, 20, 12), 0.2 + 1.2, 1e-12);
  EXPECT_NEAR(pace.seconds(phases, 20, 20), 0, 1e-12);
}

}  // namespace
}  // namespace gsa::demo
