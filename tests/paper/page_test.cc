// Results from what commands leave behind, and tables and pages from made-up results.
#include "paper/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/errors.h"
#include "plot/xml.h"

namespace gsa::paper {
namespace {

// A world in which everything is as the paper says.
Results paper_world(const Scale& scale, std::int64_t seeds) {
  Results results;
  const double perplexity[] = {6.03, 6.02, 5.76, 5.70}, first[] = {0.467, 0.382, 0.048, 0.039};
  for (const Step& step : make_plan({.scale = scale, .seeds = seeds})) {
    Values& values = results[step.name];
    std::size_t system = 3;
    for (std::size_t i = 0; i < 4; ++i) {
      if (step.name.find("/" + systems()[i] + "/") != std::string::npos ||
          step.name.find("-" + systems()[i] + "/") != std::string::npos)
        system = i;
    }
    const double jitter = step.name.starts_with("seed-2") ? 0.01 : 0;
    const double rank = static_cast<double>(system);
    switch (step.kind) {
      case Kind::data:
        break;
      case Kind::training:
        values = {{"loss", 3 - 0.1 * rank},
                  {"loss_spikes", step.name.find("rate") != std::string::npos ? 12 - 4 * rank : 0},
                  {"tokens_per_second", 1000 + 10 * rank}};
        break;
      case Kind::evaluation:
        values = {{"perplexity", perplexity[system] + jitter},
                  {"first_token", first[system]},
                  {"largest", 1000 - 300 * rank},
                  {"k_mean", 64},
                  {"kept", 0.9},
                  {"kept_over_oracle", 0.97},
                  {"oracle_recall", 0.8}};
        if (system >= 2) values["output_gate"] = values["value_gate"] = 0.11;
        if (step.name.find("/k-16/") != std::string::npos) values["perplexity"] = 5.89;
        if (step.name.find("/g1/") != std::string::npos) values["perplexity"] = 5.79;
        if (step.name.find("/g2/") != std::string::npos) values["perplexity"] = 5.85;
        if (step.name.find("/no-gates/") != std::string::npos) values["perplexity"] = 6.02;
        break;
      case Kind::ruler:
        for (const std::int64_t length : scale.ruler_lengths) values[concat(length)] = 50 + 10 * rank;
        break;
      case Kind::speed:
        values = {{"prefill", 100 + 100 * rank}, {"decode", 10 + 10 * rank}, {"cache", 512}};
        break;
    }
  }
  return results;
}

const Table& table(const std::vector<Table>& tables, const std::string& id) {
  for (const Table& candidate : tables) {
    if (candidate.id == id) return candidate;
  }
  throw std::runtime_error("no table " + id);
}

TableOptions smoke(std::int64_t seeds) {
  Scale scale = scale_by_name("smoke");
  scale.ruler_samples = 200;  // as one answer says nothing
  scale.tells = true;
  return {.scale = scale, .seeds = seeds};
}

TEST(PaperTables, InThePapersOrder) {
  std::vector<std::string> ids;
  for (const Table& t : make_tables(smoke(1), {})) ids.push_back(t.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"perplexity", "ruler", "sinks", "stability", "throughput", "gates",
                                           "k", "indexer"}));
}

TEST(PaperTables, NothingRunSaysSo) {
  for (const Table& t : make_tables(smoke(2), {})) {
    EXPECT_EQ(t.verdict.outcome, Outcome::not_run) << t.id;
    EXPECT_TRUE(t.charts.empty()) << t.id;
    for (const Row& row : t.rows) {
      ASSERT_EQ(row.ours.size(), t.columns.size()) << t.id;
      for (std::size_t i = 0; i < row.ours.size(); ++i) EXPECT_EQ(shown(row.ours[i], t.columns[i]), "–");
    }
  }
}

TEST(PaperTables, ThePapersWorldHolds) {
  const TableOptions options = smoke(2);
  const std::vector<Table> tables = make_tables(options, paper_world(options.scale, 2));
  for (const char* id : {"perplexity", "ruler", "sinks", "stability", "throughput", "gates"}) {
    EXPECT_EQ(table(tables, id).verdict.outcome, Outcome::holds)
        << id << ": " << table(tables, id).verdict.sentence;
  }
  // Forms and budgets are all alike in that world.
  EXPECT_EQ(table(tables, "indexer").verdict.outcome, Outcome::open);
  const Table& perplexity = table(tables, "perplexity");
  EXPECT_EQ(shown(perplexity.rows[0].ours[0], perplexity.columns[0]), "6.035 ± 0.007");
  EXPECT_NE(perplexity.verdict.sentence.find("gsa 5.47 % below standard, 1.04 % below gated-only (stories)"),
            std::string::npos)
      << perplexity.verdict.sentence;
  EXPECT_EQ(shown(table(tables, "sinks").rows[3].ours[0], table(tables, "sinks").columns[0]), "3.9 ± 0.0 %");
}

TEST(PaperTables, AWorldWhereGsaLosesIsToldSo) {
  const TableOptions options = smoke(1);
  Results results = paper_world(options.scale, 1);
  results["seed-1/gsa/eval-1"]["perplexity"] = 6.2;
  const Table perplexity = table(make_tables(options, results), "perplexity");
  EXPECT_EQ(perplexity.verdict.outcome, Outcome::fails);
  EXPECT_TRUE(perplexity.verdict.sentence.starts_with("Does not hold (one seed): gsa 2.82 % above standard"))
      << perplexity.verdict.sentence;
}

TEST(PaperTables, FewAnswersTellLittle) {
  TableOptions options = smoke(1);
  const Results results = paper_world(options.scale, 1);
  options.scale.ruler_samples = 1;
  EXPECT_EQ(table(make_tables(options, results), "ruler").verdict.outcome, Outcome::open);
}

TEST(PaperTables, SeedsThatDifferMuchLeaveAblationsOpen) {
  const TableOptions options = smoke(2);
  Results results = paper_world(options.scale, 2);
  EXPECT_EQ(table(make_tables(options, results), "gates").verdict.outcome, Outcome::holds);
  // What all systems have alike is the seed's.
  for (const std::string& system : systems()) results["seed-2/" + system + "/eval-1"]["perplexity"] *= 1.1;
  EXPECT_EQ(table(make_tables(options, results), "gates").verdict.outcome, Outcome::holds);
  results["seed-2/standard/eval-1"]["perplexity"] += 0.2;
  results["seed-2/gsa/eval-1"]["perplexity"] -= 0.2;
  EXPECT_EQ(table(make_tables(options, results), "gates").verdict.outcome, Outcome::open);
}

TEST(PaperTables, AScaleThatTeachesNothingTellsNothing) {
  TableOptions options = smoke(2);
  options.scale.tells = false;
  for (const Table& t : make_tables(options, paper_world(options.scale, 2))) {
    EXPECT_EQ(t.verdict.outcome, Outcome::open) << t.id;
    EXPECT_EQ(t.verdict.sentence.find("holds"), std::string::npos) << t.verdict.sentence;
  }
}

TEST(PaperTables, ADivergedRunIsNamed) {
  const TableOptions options = smoke(1);
  Results results = paper_world(options.scale, 1);
  results["seed-1/rate-4-standard/train"]["diverged"] = 1;
  const Table stability = table(make_tables(options, results), "stability");
  EXPECT_EQ(shown(stability.rows[0].ours[5], stability.columns[5]), "diverged");
  EXPECT_NE(stability.verdict.sentence.find("standard diverged, gsa did not"), std::string::npos);
}

TEST(PaperPage, BothPagesHaveAllFiguresAndWhoseTheyAre) {
  PageOptions options{
      .tables = smoke(2), .data = "stories <made> by rule", .machine = "", .done = 3, .steps = 90};
  const std::vector<Table> tables = make_tables(options.tables, paper_world(options.tables.scale, 2));
  const std::string html = html_page(options, tables), markdown = markdown_page(options, tables);
  for (const Table& t : tables) {
    for (const Row& row : t.rows) {
      for (std::size_t i = 0; i < row.ours.size(); ++i) {
        EXPECT_NE(html.find(shown(row.ours[i], t.columns[i])), std::string::npos) << t.id;
        EXPECT_NE(markdown.find(shown(row.ours[i], t.columns[i])), std::string::npos) << t.id;
      }
    }
    for (const Chart& chart : t.charts)
      EXPECT_NE(markdown.find("(charts/" + chart.name + ".svg)"), std::string::npos) << chart.name;
  }
  for (const char* text :
       {"paper: WikiText-103", "ours: stories", "| gsa |", "3 of 90 steps of all tables are done."})
    EXPECT_NE(markdown.find(text), std::string::npos) << text;
  EXPECT_NE(html.find("stories &lt;made&gt; by rule"), std::string::npos);
  EXPECT_NE(html.find("paper, 1.7B"), std::string::npos);
  EXPECT_EQ(chart_files(tables).size(), 8u);
  for (const auto& [name, svg] : chart_files(tables)) EXPECT_TRUE(svg.starts_with("<svg")) << name;
}

TEST(PaperPage, NothingRunIsAPageToo) {
  const PageOptions options{.tables = smoke(1), .data = "none", .machine = "m", .done = 0, .steps = 5};
  const std::string html = html_page(options, make_tables(options.tables, {}));
  EXPECT_NE(html.find("Not run yet."), std::string::npos);
  EXPECT_NE(html.find("Machine: m."), std::string::npos);
}

TEST(PaperResults, OfATraining) {
  const Values values = training_values(
      R"({"kind": "note", "step": 0, "text": "x"}
{"kind": "step", "step": 1, "loss": 4.0, "seconds": 2, "tokens_per_second": 10, "spikes": 0}
{"kind": "step", "step": 2, "loss": 9.0, "seconds": 1, "tokens_per_second": 20, "spikes": 1, "spike": "loss 9 above 5"}
{"kind": "step", "step": 3, "kl": [1], "seconds": 1, "tokens_per_second": 30, "spikes": 2, "spike": "KL 1 above 0.5"}
{"kind": "step", "step": 4, "loss": 3.5, "seconds": 1, "tokens_per_second": 40, "spikes": 2}
{"kind": "validation", "step": 4, "loss": 3.25}
{"kind": "step", "st)");
  EXPECT_EQ(values, (Values{{"loss", 3.5},
                            {"loss_spikes", 1},
                            {"seconds", 5},
                            {"spikes", 2},
                            {"steps", 4},
                            {"tokens_per_second", 30},
                            {"validation", 3.25}}));
}

TEST(PaperResults, OfAnEvaluation) {
  const Values values = evaluation_values(Json::parse(R"({"parameters": 7, "reports": [{
    "perplexity": {"per_token": 2.5, "nats_per_token": 0.9},
    "sinks": {"first_token_mean": 0.3, "even_share": 0.01, "largest_activation": 12,
              "layers": [{"value_gate": 0.25, "output_gate": 0.5}, {"value_gate": 0.75, "output_gate": 0.25}]},
    "selection": {"kept_mass_mean": 0.9, "k_mean": 60, "oracle": {"kept_over_oracle_mean": 0.97, "recall_mean": null}}}]})"));
  EXPECT_EQ(values, (Values{{"parameters", 7},
                            {"perplexity", 2.5},
                            {"loss", 0.9},
                            {"first_token", 0.3},
                            {"even_share", 0.01},
                            {"largest", 12},
                            {"value_gate", 0.5},
                            {"output_gate", 0.375},
                            {"kept", 0.9},
                            {"k_mean", 60},
                            {"kept_over_oracle", 0.97}}));
}

TEST(PaperResults, OfRulerAndSpeed) {
  EXPECT_EQ(ruler_values(Json::parse(R"({"cells": [{"task": "vt", "length": 512, "score": 40.0}],
    "means": [{"length": 512, "mean": 40.0, "tasks": 1}, {"length": 1024, "mean": null, "tasks": 0}]})")),
            (Values{{"512", 40}, {"512 tasks", 1}, {"512 vt", 40}, {"1024 tasks", 0}}));
  EXPECT_EQ(
      speed_values("note: text\n{\"prompt\": 0, \"text\": \"x\"}\n{\"stats\": {\"prefill_tokens\": 500, "
                   "\"prefill_tokens_per_second\": 1000, \"decode_tokens_per_second\": 50, "
                   "\"cache_bytes_per_token\": 64}}\n"),
      (Values{{"prefill", 1000}, {"decode", 50}, {"prompt", 500}, {"cache", 64}}));
}

}  // namespace
}  // namespace gsa::paper
