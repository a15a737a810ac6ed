// Reports for programs and as charts.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "eval/charts.h"
#include "eval/report_json.h"
#include "nn/small_models.h"
#include "plot/xml.h"

namespace gsa::eval {
namespace {

using gsa::testing::read_xml;

Report report_of(const nn::AttentionConfig& attention, std::int64_t length) {
  nn::ModelConfig config = nn::testing::small_model(nn::testing::small(attention));
  config.vocab_size = 258;
  nn::Model model = nn::testing::make_model(config);
  std::string text;
  for (int i = 0; i < 40; ++i) text += "lamp " + std::to_string(i * 7 % 13) + " ";
  const auto documents = text_documents({text}, data::byte_tokenizer());
  return evaluate(model, *documents,
                  {.sinks = true, .selection = attention.sparse, .windows = {.length = length}});
}

std::set<std::string> names_of(const std::vector<NamedChart>& charts) {
  std::set<std::string> names;
  for (const NamedChart& chart : charts) names.insert(chart.name);
  return names;
}

TEST(Charts, ShowEverythingThatAReportHolds) {
  const std::vector<NamedChart> gsa = charts_of({report_of(nn::AttentionConfig::gsa(), 100)});
  EXPECT_EQ(names_of(gsa), (std::set<std::string>{"first-token", "gates", "residual", "kept-mass", "oracle",
                                                  "key-histogram", "keys-by-layer", "unions"}));
  EXPECT_EQ(names_of(charts_of({report_of(nn::AttentionConfig::standard(), 100)})),
            (std::set<std::string>{"first-token", "residual"}));
  const auto both =
      charts_of({report_of(nn::AttentionConfig::gsa(), 50), report_of(nn::AttentionConfig::gsa(), 100)});
  EXPECT_EQ(both.size(), 2 * gsa.size() + 1);
  EXPECT_TRUE(names_of(both).contains("perplexity"));
  EXPECT_TRUE(names_of(both).contains("kept-mass-50"));
  for (const NamedChart& chart : both) EXPECT_EQ(read_xml(chart.svg).error, "") << chart.name;
  // Three layers by four heads.
  const auto map = std::find_if(gsa.begin(), gsa.end(), [](const auto& c) { return c.name == "kept-mass"; });
  EXPECT_NE(map->svg.find("layer"), std::string::npos);
  EXPECT_GE(read_xml(map->svg).count("rect"), 12u);
}

TEST(Charts, LeaveOutUnionsWhereNoWindowHoldsATile) {
  const auto charts = names_of(charts_of({report_of(nn::AttentionConfig::gsa(), 12)}));
  EXPECT_FALSE(charts.contains("unions"));
  EXPECT_TRUE(charts.contains("kept-mass"));
}

TEST(Oracle, IsNullWhereNoQueryLeavesKeysOut) {
  const Report report = report_of(nn::AttentionConfig::gsa(), 4);  // the smallest budget is 4
  EXPECT_FALSE(names_of(charts_of({report})).contains("oracle"));
  const OrderedJson json = OrderedJson::parse(to_json(report).dump())["selection"];
  EXPECT_TRUE(json["oracle"]["kept_over_oracle_mean"].is_null());
  EXPECT_TRUE(json["oracle"]["worst_layer"].is_null());
  EXPECT_TRUE(json["layers"][0]["oracle"]["oracle_mass"].is_null());
  EXPECT_EQ(json["layers"][0]["oracle"]["queries"], 0);
}

TEST(ReportJson, HasWhatWasMeasured) {
  const Report report = report_of(nn::AttentionConfig::gsa(), 40);
  const OrderedJson json = OrderedJson::parse(to_json(report).dump());
  EXPECT_EQ(json["length"], 40);
  EXPECT_EQ(json["phase"], "sparse");
  EXPECT_DOUBLE_EQ(json["perplexity"]["per_token"].get<double>(), report.perplexity->per_token());
  EXPECT_EQ(json["sinks"]["layers"].size(), 3u);
  EXPECT_EQ(json["sinks"]["layers"][1]["first_token"].size(), 4u);
  EXPECT_EQ(json["sinks"]["residual"].size(), 4u);
  const OrderedJson& oracle = json["selection"]["oracle"];
  EXPECT_EQ(oracle["queries_of_window"], 512);
  EXPECT_DOUBLE_EQ(oracle["kept_over_oracle_mean"].get<double>(), report.selection->kept_over_oracle_mean());
  EXPECT_DOUBLE_EQ(oracle["recall_mean"].get<double>(), report.selection->recall_mean());
  const OrderedJson& worst = json["selection"]["layers"][oracle["worst_layer"].get<std::size_t>()]["oracle"];
  EXPECT_EQ(oracle["kept_over_oracle_worst"], worst["kept_over_oracle"]);
  EXPECT_LE(worst["kept_over_oracle"].get<double>(), oracle["kept_over_oracle_mean"].get<double>());
  EXPECT_DOUBLE_EQ(worst["kept_mass"].get<double>() / worst["oracle_mass"].get<double>(),
                   worst["kept_over_oracle"].get<double>());
  EXPECT_GT(worst["queries"].get<std::int64_t>(), 0);
  EXPECT_GT(worst["recall"].get<double>(), 0);
  const OrderedJson& layer = json["selection"]["layers"][2];
  EXPECT_DOUBLE_EQ(layer["kept_mass"][3].get<double>(), report.selection->layers[2].kept_mass[3]);
  EXPECT_TRUE(layer["union_over_k"]["64"].is_null());  // no window holds 64 queries
  EXPECT_GT(layer["union_over_k"]["16"].get<double>(), 1);
  std::int64_t counted = 0;
  for (const auto& count : layer["k_t"]["counts"]) counted += count.get<std::int64_t>();
  EXPECT_EQ(counted, report.selection->queries);
  EXPECT_EQ(layer["k_t"]["counts"].size() + 1, json["selection"]["k_t_edges"].size());
  EXPECT_FALSE(to_json(report_of(nn::AttentionConfig::standard(), 40)).contains("selection"));
}

TEST(KeyHistogram, HasRoundEdgesAroundAllCounts) {
  SelectionQuality quality;
  quality.layers.resize(2);
  quality.layers[0].k_t.add(torch::tensor({17, 17, 18, 230}, at::kInt));
  quality.layers[1].k_t.add(torch::tensor({100, 256}, at::kInt));
  const KeyHistogram bins = histogram(quality, 10);
  EXPECT_LE(bins.edges.size(), 11u);
  EXPECT_LE(bins.edges.front(), 17);
  EXPECT_GT(bins.edges.back(), 256);
  for (std::size_t i = 0; i + 1 < bins.edges.size(); ++i) {
    EXPECT_EQ(bins.edges[i + 1] - bins.edges[i], 50);  // a round number
  }
  EXPECT_EQ(bins.counts[0], (std::vector<std::int64_t>{3, 0, 0, 0, 1, 0}));
  EXPECT_EQ(bins.counts[1], (std::vector<std::int64_t>{0, 0, 1, 0, 0, 1}));
}

}  // namespace
}  // namespace gsa::eval
