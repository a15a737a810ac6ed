#include "demo/report.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/number_text.h"
#include "gsa/error.h"
#include "gsa/version.h"
#include "plot/markup.h"
#include "plot/plot.h"

namespace gsa::demo {
namespace {

using eval::BarChart;
using eval::HeatMap;
using eval::Histogram;
using eval::LineChart;
using eval::Placement;
using eval::Series;
using eval::short_number;
using eval::short_percent;
using eval::Unit;
using eval::xml_escaped;

constexpr int kStandardColor = 0, kGsaColor = 1;
constexpr std::size_t kCurvePoints = 160;

constexpr const char* kStyle =
    R"(:root{color-scheme:light dark;--bg:#f4f6f9;--card:#fff;--text:#1c2430;--quiet:#5b6675;--line:#dfe4ea;--standard:#2463c4;--gsa:#d4621c;--good:#11806f}
@media(prefers-color-scheme:dark){:root{--bg:#0c1016;--card:#12171e;--text:#e6eaf0;--quiet:#9aa7b8;--line:#2c3542;--standard:#6fa8ff;--gsa:#ff9a57;--good:#4fd0b5}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 48px}h1{font-size:1.7rem;line-height:1.2;margin:.2em 0 .3em}h2{font-size:1.2rem;margin:1.8em 0 .6em}
h3{font-size:1rem;margin:0 0 .2em}p{margin:.4em 0;max-width:75ch}.quiet,figcaption{color:var(--quiet);font-size:.9rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:12px;margin:18px 0}
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px;margin:0}
.card .name{color:var(--quiet);font-size:.85rem}.pair{display:flex;gap:18px;align-items:baseline;margin-top:2px}
.pair b{font-size:1.5rem;font-weight:650;font-variant-numeric:tabular-nums}.pair span{font-size:.8rem;color:var(--quiet);display:block}
.s{color:var(--standard)}.g{color:var(--gsa)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:14px}figure svg{width:100%;height:auto;display:block;margin-top:6px}
.two{display:grid;grid-template-columns:1fr 1fr;gap:8px}@media(max-width:600px){.two{grid-template-columns:1fr}.cards{grid-template-columns:1fr 1fr}.pair{gap:10px}.pair b{font-size:1.15rem}}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}th{font-weight:600;text-align:left}td,th{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right}.scroll{overflow-x:auto}.wide{min-width:620px}pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;overflow-x:auto;font-size:.85rem;line-height:1.5}
.sample{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;margin:8px 0}.sample .p{color:var(--quiet)}.ok{color:var(--good);font-weight:600}
)";

std::string whole_percent(double share) { return fixed(100 * share, 0) + " %"; }

// ---- pieces of the page

std::string card(const std::string& name, const std::string& standard, const std::string& gsa,
                 const std::string& note) {
  return concat("<div class=\"card\"><div class=\"name\">", xml_escaped(name),
                "</div><div class=\"pair\"><div><b class=\"s\">", xml_escaped(standard),
                "</b><span>standard</span></div><div><b class=\"g\">", xml_escaped(gsa),
                "</b><span>gsa</span></div></div><div class=\"quiet\">", xml_escaped(note), "</div></div>\n");
}

std::string figure(const std::string& heading, const std::string& svg, const std::string& caption) {
  return concat("<figure><h3>", xml_escaped(heading), "</h3>", svg, "<figcaption>", xml_escaped(caption),
                "</figcaption></figure>\n");
}

std::vector<eval::PlotSpan> shaded(const Settings& s) {
  const auto dense = static_cast<double>(s.dense), warmup = static_cast<double>(s.warmup);
  return {{0, dense, "dense"},
          {dense, dense + warmup, "warm-up"},
          {dense + warmup, static_cast<double>(s.steps()), "sparse"}};
}

Series line(const std::string& name, const Curve& curve, int color) {
  const Curve few = thinned(curve, kCurvePoints);
  return {.name = name, .x = few.step, .y = few.value, .color = color};
}

// ---- plots

std::string loss_plot(const Results& r) {
  LineChart chart{.title = "Training loss of both models",
                  .description = concat("Last value of standard ", fixed(r.standard.validation_loss, 3),
                                        ", of gsa ", fixed(r.gsa.validation_loss, 3), " on validation text"),
                  .x = {.label = "step"},
                  .y = {.label = "nats a token", .scale = eval::Scale::logarithmic}};
  chart.series = {line("standard", r.standard.loss, kStandardColor), line("gsa", r.gsa.loss, kGsaColor)};
  Series standard{.name = "",
                  .x = r.standard.validation.step,
                  .y = r.standard.validation.value,
                  .color = kStandardColor,
                  .dashed = true,
                  .points = true};
  Series gsa{.name = "",
             .x = r.gsa.validation.step,
             .y = r.gsa.validation.value,
             .color = kGsaColor,
             .dashed = true,
             .points = true};
  chart.series.push_back(std::move(standard));
  chart.series.push_back(std::move(gsa));
  chart.spans = shaded(r.settings);
  return to_svg(chart, Placement::page);
}

std::string kl_plot(const Results& r) {
  LineChart chart{.title = "KL of the indexer, by layer",
                  .x = {.label = "step"},
                  .y = {.label = "nats a query", .low = 0}};
  for (std::size_t i = 0; i < r.gsa.kl.size(); ++i) {
    chart.series.push_back(line(concat("layer ", i), r.gsa.kl[i], static_cast<int>(i) + 1));
  }
  chart.spans = shaded(r.settings);
  chart.x.low = static_cast<double>(r.settings.dense);
  return to_svg(chart, Placement::page);
}

std::string recall_plot(const Results& r) {
  LineChart chart{.title = "Recall of a needle by its distance",
                  .x = {.label = "tokens between the needle and the question"},
                  .y = {.label = "right answers", .unit = Unit::share, .low = 0, .high = 1}};
  const auto add = [&](const ModelResults& model, int color) {
    Series series{.name = model.system, .color = color, .points = true};
    for (const Depth& depth : model.recall) {
      series.x.push_back(depth.distance);
      series.y.push_back(depth.recall);
    }
    chart.series.push_back(std::move(series));
  };
  add(r.standard, kStandardColor);
  add(r.gsa, kGsaColor);
  Series selected{.name = "needle selected by gsa", .color = 2, .dashed = true, .points = true};
  for (const Depth& depth : r.gsa.recall) {
    selected.x.push_back(depth.distance);
    selected.y.push_back(depth.selected);
  }
  chart.series.push_back(std::move(selected));
  chart.marks = {{r.chance, "chance"},
                 {static_cast<double>(r.settings.k_base), concat("k = ", r.settings.k_base), true}};
  chart.x.low = 0;
  return to_svg(chart, Placement::page);
}

std::string sink_plot(const Results& r, const ModelResults& model, int color) {
  // One scale for both, so that the maps can be compared.
  double high = 0;
  for (const ModelResults* any : {&r.standard, &r.gsa}) {
    for (const auto& layer : any->first_token) {
      for (const double share : layer) high = std::max(high, std::isfinite(share) ? share : 0);
    }
  }
  HeatMap map{.title = concat(model.system, ": share of attention on the first token"),
              .row_label = "layer",
              .column_label = concat("head, ", model.system),
              .values = model.first_token,
              .unit = Unit::share,
              .low = 0,
              .high = std::max(high, 1e-6),
              .color = color,
              .size = {.width = 280, .height = 260}};
  for (std::size_t i = 0; i < model.first_token.size(); ++i) map.rows.push_back(concat(i));
  for (std::size_t i = 0; i < model.first_token.front().size(); ++i) map.columns.push_back(concat(i));
  return to_svg(map, Placement::page);
}

std::string budget_plot(const Results& r) {
  // Bins of equal width up to the largest budget.
  constexpr std::size_t kBins = 32;
  std::size_t largest = 1;
  for (const auto& counts : r.gsa.k_counts) largest = std::max(largest, counts.size());
  const std::size_t width = (largest + kBins - 1) / kBins, bins = (largest + width - 1) / width;
  Histogram chart{.title = "Keys that a query reads, k_t",
                  .x = {.label = "k_t"},
                  .y = {.label = "share of queries", .unit = Unit::share}};
  for (std::size_t i = 0; i <= bins; ++i) chart.edges.push_back(static_cast<double>(i * width));
  for (std::size_t layer = 0; layer < r.gsa.k_counts.size(); ++layer) {
    const auto& counts = r.gsa.k_counts[layer];
    Histogram::Bins shares{.name = concat("layer ", layer),
                           .values = std::vector<double>(bins, 0.0),
                           .color = static_cast<int>(layer) + 1};
    double all = 0;
    for (const std::int64_t count : counts) all += static_cast<double>(count);
    for (std::size_t k = 0; k < counts.size(); ++k)
      shares.values[k / width] += static_cast<double>(counts[k]) / all;
    chart.series.push_back(std::move(shares));
  }
  chart.marks = {{static_cast<double>(r.settings.k_base), concat("k = ", r.settings.k_base), true}};
  return to_svg(chart, Placement::page);
}

std::string layer_plot(const Results& r) {
  BarChart chart{.title = "Gates and kept attention mass by layer",
                 .x_label = "layer of gsa",
                 .y = {.unit = Unit::share, .low = 0, .high = 1}};
  for (std::size_t i = 0; i < r.gsa.kept_mass.size(); ++i) chart.categories.push_back(concat(i));
  chart.series = {{"attention mass kept", r.gsa.kept_mass, 2},
                  {"value gate G2", r.gsa.value_gate, 3},
                  {"output gate G1", r.gsa.output_gate, 4}};
  return to_svg(chart, Placement::page);
}

// ---- words that follow from the numbers

// Within this much, two losses are called equal: another seed moves them as far.
constexpr double kEqualLoss = 0.01;
constexpr double kEqualRecall = 0.03;

std::string compared(double gsa, double standard, double equal, const char* less, const char* more) {
  if (std::abs(gsa - standard) <= equal) return "about as well as";
  return gsa < standard ? less : more;
}

std::string verdict(const Results& r) {
  const ModelResults &s = r.standard, &g = r.gsa;
  std::string text =
      concat("On text that neither model has seen, gsa predicts ",
             compared(g.validation_loss, s.validation_loss, kEqualLoss, "better than", "worse than"),
             " its standard twin (", fixed(g.validation_loss, 3), " against ", fixed(s.validation_loss, 3),
             " nats a token), reading ", fixed(g.mean_k(), 0), " of the ", fixed(r.settings.mean_visible, 0),
             " keys that a query sees on average. ");
  const double far = static_cast<double>(r.settings.k_base);
  const double gsa_far = g.recall_beyond(far), standard_far = s.recall_beyond(far);
  text += concat("Asked for a word that stood more than ", r.settings.k_base, " tokens back, gsa finds it ",
                 compared(standard_far, gsa_far, kEqualRecall, "more often than", "less often than"),
                 " the twin (", whole_percent(gsa_far), " against ", whole_percent(standard_far),
                 "; guessing gives ", whole_percent(r.chance), "). ");
  if (std::max(gsa_far, standard_far) < 2 * r.chance) {
    text += "Neither has learned to look back yet: give it more --minutes. ";
  }
  text += concat("The first token takes ", short_percent(s.first_token_mean), " of standard's attention and ",
                 short_percent(g.first_token_mean), " of gsa's (", short_percent(s.even_share),
                 " would be its even share).");
  return text;
}

std::string cards(const Results& r) {
  const ModelResults &s = r.standard, &g = r.gsa;
  return concat(
      "<div class=\"cards\">\n",
      card("Validation loss, nats a token", fixed(s.validation_loss, 3), fixed(g.validation_loss, 3),
           concat("perplexity ", fixed(s.perplexity, 2), " and ", fixed(g.perplexity, 2))),
      card("Recall of a needle, all depths", whole_percent(s.mean_recall()), whole_percent(g.mean_recall()),
           concat("guessing: ", whole_percent(r.chance))),
      card("Keys that a query reads", fixed(r.settings.mean_visible, 0), fixed(g.mean_k(), 0),
           concat("gsa keeps ", whole_percent(g.mean_kept()), " of dense attention's mass")),
      card("Attention on the first token", short_percent(s.first_token_mean),
           short_percent(g.first_token_mean), concat("even share: ", short_percent(s.even_share))),
      "</div>\n");
}

std::string questions_table(const Results& r) {
  std::string html =
      "<div class=\"scroll\"><table class=\"wide\"><tr><th>somewhere in the text</th><th class=\"n\">tokens "
      "back</th><th>question</th><th>standard</th><th>gsa</th></tr>\n";
  const auto cell = [](const Reply& reply) {
    return concat("<td>", reply.right ? "<span class=\"ok\">" : "<span>", xml_escaped(reply.said),
                  "</span> <span class=\"quiet\">", reply.right ? "" : "wrong, ",
                  whole_percent(reply.probability), " on the right word</span></td>");
  };
  for (std::size_t i = 0; i < r.questions.size(); ++i) {
    const AskedQuestion& q = r.questions[i];
    html += concat("<tr><td>", xml_escaped(q.needle), "</td><td class=\"n\">", q.distance, "</td><td>",
                   xml_escaped(q.question), " …</td>", cell(r.standard.replies.at(i)),
                   cell(r.gsa.replies.at(i)), "</tr>\n");
  }
  return html + "</table></div>\n";
}

std::string samples(const Results& r) {
  std::string html;
  for (const ModelResults* model : {&r.standard, &r.gsa}) {
    for (const Sample& sample : model->samples) {
      html += concat("<div class=\"sample\"><b class=\"", model == &r.gsa ? "g" : "s", "\">",
                     xml_escaped(model->system), "</b> <span class=\"p\">", xml_escaped(sample.prompt),
                     "</span>", xml_escaped(sample.text), "</div>\n");
    }
  }
  return html;
}

std::string settings_table(const Results& r) {
  const Settings& s = r.settings;
  std::string html = "<div class=\"scroll\"><table>\n";
  const auto row = [&](const char* name, const std::string& value) {
    html += concat("<tr><th>", name, "</th><td>", xml_escaped(value), "</td></tr>\n");
  };
  row("models", concat(s.layers, " layers, width ", s.d_model, ", ", s.heads, "/", s.kv_heads,
                       " heads; standard ", grouped(r.standard.parameters), " parameters, gsa ",
                       grouped(r.gsa.parameters), " (gates and indexer)"));
  row("steps", concat(grouped(s.steps()), " each, of ", grouped(s.batch_tokens), " tokens in stories of ",
                      s.length, "; gsa: ", grouped(s.dense), " dense, ", grouped(s.warmup),
                      " warm-up (only its indexer learns), ", grouped(s.sparse),
                      " sparse; the twin learns the text in all of them"));
  row("budget", concat("k = ", s.k_base, ", from ", s.k_min, " to ", s.k_max));
  row("learning rate", concat(short_number(s.learning_rate), ", the same for both"));
  row("data",
      concat(grouped(s.train_tokens), " tokens of stories for training, ", grouped(s.validation_tokens),
             " for validation, vocabulary ", grouped(s.vocabulary), ", seed ", s.seed));
  row("speed", concat("standard ", fixed(r.standard.seconds, 0), " s (",
                      grouped(std::llround(r.standard.tokens_per_second)), " tokens/s), gsa ",
                      fixed(r.gsa.seconds, 0), " s (", grouped(std::llround(r.gsa.tokens_per_second)),
                      " tokens/s); everything ", fixed(r.seconds, 0), " s"));
  row("machine",
      concat(s.threads, s.threads == 1 ? " thread, " : " threads, ", s.processor, "; gsa " GSA_VERSION));
  return html + "</table></div>\n";
}

std::string commands(const Results& r, const std::string& program) {
  const AskedQuestion& q = r.questions.front();
  const std::string folder = r.gsa.folder;
  const std::string data = folder.substr(0, folder.rfind("/gsa/")) + "/data/validation";
  return concat(
      "<pre>",
      xml_escaped(concat(
          "# talk to the model that was trained here\n", program, " generate ", folder,
          " --prompt 'Story: ", q.needle, " ", q.question, "'\n", "# measure it again, with plots\n", program,
          " eval ", folder, " --data ", data, "\n", "# what would the paper's model cost at 128K?\n", program,
          " inspect --preset paper-1.7b --length 131072\n", "# the same phases on a text of yours\n", program,
          " tokenize book.txt --split blank-lines --output data/book\n", program,
          " train configs/tiny.toml --set data.train=data/book --set output.folder=runs/book\n",
          "# this demo, longer\n", program, " demo --minutes 15")),
      "</pre>\n");
}

}  // namespace

std::string html_report(const Results& r, const std::string& program) {
  std::string html = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>gsa "
      "demo</title>\n<style>",
      kStyle, eval::plot_style(), "</style>\n</head>\n<body>\n<main>\n");
  html += concat(
      "<h1>Gated sparse attention beside its dense twin</h1>\n<p class=\"quiet\">Two tiny language models, "
      "trained in ",
      fixed(r.seconds / 60, 1), " minutes on ", r.settings.threads,
      r.settings.threads == 1 ? " CPU thread" : " CPU threads",
      " by <code>gsa demo</code>: <b class=\"s\">standard</b> attends to everything, <b class=\"g\">gsa</b> "
      "reads only the keys that its indexer selects and passes values and outputs through gates.</p>\n<p>",
      xml_escaped(verdict(r)), "</p>\n", cards(r));

  html += "<div class=\"plots\">\n";
  html += figure("Loss", loss_plot(r),
                 "Lines: training, points: validation. In the warm-up gsa learns no text: only its indexer "
                 "learns, to predict attention.");
  html += figure(
      "Recall of a needle", recall_plot(r),
      concat("Right of the vertical line the needle is farther away than a query of gsa reads keys (",
             r.settings.k_base,
             "): its indexer has to choose it. Dashed: share of needles that at least one layer selected."));
  html += concat(
      "</div>\n<h2>Finding a needle</h2>\n<p>A story gives its hero one drink, one animal, one city, and so "
      "on. The "
      "needle tells one of them once; the question at the story's end can be answered only by looking "
      "back.</p>\n",
      questions_table(r));

  html += "<h2>The indexer at work</h2>\n<div class=\"plots\">\n";
  html += figure(
      "What it has yet to learn", kl_plot(r),
      "KL between dense attention and the softmax of the indexer's scores over their temperature (0.1), over "
      "all visible keys, each step of another sample of the queries: hence the jitter.");
  html += figure("Keys that a query reads", budget_plot(r),
                 "The budget k_t follows the variance of the indexer's scores; queries early in a text see "
                 "fewer keys than that.");
  html += "</div>\n<h2>Inside attention</h2>\n<div class=\"plots\">\n";
  html += figure("Attention on the first token",
                 concat("<div class=\"two\">", sink_plot(r, r.standard, kStandardColor),
                        sink_plot(r, r.gsa, kGsaColor), "</div>"),
                 "Mean over all queries, by layer and head, on one scale. A large share is an attention "
                 "sink: a place to put attention that is not needed.");
  html += figure("Gates, and attention mass kept", layer_plot(r),
                 "Gates start at 50 % and learn what to let through. Kept: the share of dense attention's "
                 "mass that falls on the selected keys.");
  html += concat("</div>\n<h2>What they write</h2>\n", samples(r), "<h2>Settings</h2>\n", settings_table(r),
                 "<h2>Go on from here</h2>\n", commands(r, program), "</main>\n</body>\n</html>\n");
  return html;
}

}  // namespace gsa::demo
