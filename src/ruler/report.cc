#include "ruler/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/number_text.h"
#include "gsa/error.h"
#include "plot/markup.h"
#include "plot/plot.h"
#include "ruler/metric.h"

namespace gsa::ruler {
namespace {

using eval::xml_escaped;

constexpr const char* kStyle =
    R"(:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1000px;padding:0 16px}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:1.8em}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid #8884}td.n,th.n{text-align:right}
.quiet{opacity:.7}.scroll{overflow-x:auto}svg{max-width:100%;height:auto}code{white-space:pre-wrap;overflow-wrap:anywhere}
)";

bool is_own_haystack(const Task& task, const OrderedJson& run) {
  return task.source == Source::essays && run.contains("haystack") &&
         run["haystack"].value("kind", "") == "own";
}

std::string in_short(const std::string& text) {
  constexpr std::size_t kShown = 240;
  if (text.size() <= kShown) return text;
  std::size_t end = kShown;  // not in the middle of a character
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + " …";
}

std::string title(const Report& report) {
  return concat("RULER: ", report.run.value("model", std::string("predictions")));
}

std::string score_text(double score) { return std::isfinite(score) ? fixed(score, 1) : "–"; }

std::string mean_name(const Report& report, std::int64_t length) {
  const std::int64_t scored = report.scored(length);
  return scored == static_cast<std::int64_t>(all_tasks().size()) ? "mean of all 13"
                                                                 : concat("mean of ", scored, " of 13");
}

std::string score_table(const Report& report) {
  std::string html = "<div class=\"scroll\"><table><tr><th>task</th>";
  for (const std::int64_t length : report.lengths())
    html += concat("<th class=\"n\">", grouped(length), "</th>");
  html += "<th class=\"n\">samples</th></tr>\n";
  for (const Task* task : report.tasks()) {
    html += concat("<tr><td>", label_of(*task, report.run), "</td>");
    std::set<std::size_t> samples;
    for (const std::int64_t length : report.lengths()) {
      const Cell* cell = report.cell(*task, length);
      html += concat("<td class=\"n\">", score_text(cell ? cell->score() : NAN), "</td>");
      if (cell && cell->skipped.empty()) samples.insert(cell->samples.size());
    }
    std::string counts;
    for (const std::size_t count : samples) counts += concat(counts.empty() ? "" : ", ", count);
    html += concat("<td class=\"n\">", counts, "</td></tr>\n");
  }
  html += "<tr><th>mean</th>";
  for (const std::int64_t length : report.lengths()) {
    html += concat("<th class=\"n\">", score_text(report.mean(length)), "<br><span class=\"quiet\">",
                   mean_name(report, length), "</span></th>");
  }
  return html + "<th></th></tr></table></div>\n";
}

std::string skipped_list(const Report& report) {
  std::string html;
  for (const Cell& cell : report.cells) {
    if (cell.skipped.empty()) continue;
    html += concat("<li>", cell.task->name, " at ", grouped(cell.length), ": ", xml_escaped(cell.skipped),
                   "</li>\n");
  }
  return html.empty() ? "" : concat("<h2>Not scored</h2>\n<ul>\n", html, "</ul>\n");
}

// One answer of each task, at the longest length that it has.
std::string examples(const Report& report) {
  std::string html =
      "<h2>The first sample of each task</h2>\n<div class=\"scroll\"><table><tr><th>task</th><th "
      "class=\"n\">length</th>"
      "<th>expected</th><th>the model wrote</th><th class=\"n\">score</th></tr>\n";
  for (const Task* task : report.tasks()) {
    const Cell* last = nullptr;
    for (const std::int64_t length : report.lengths()) {
      const Cell* cell = report.cell(*task, length);
      if (cell && !cell->samples.empty()) last = cell;
    }
    if (last == nullptr) continue;
    const Answered& sample = last->samples.front();
    std::string answers;
    for (const std::string& answer : sample.answers) answers += concat(answers.empty() ? "" : ", ", answer);
    html += concat("<tr><td>", task->name, "</td><td class=\"n\">", grouped(last->length), "</td><td>",
                   xml_escaped(in_short(answers)), "</td><td><code>",
                   xml_escaped(in_short(cleaned(sample.prediction))), "</code></td><td class=\"n\">",
                   fixed(100 * sample.score, 0), "</td></tr>\n");
  }
  return html + "</table></div>\n";
}

}  // namespace

std::vector<std::int64_t> Report::lengths() const {
  std::set<std::int64_t> found;
  for (const Cell& cell : cells) found.insert(cell.length);
  return {found.begin(), found.end()};
}

std::vector<const Task*> Report::tasks() const {
  std::set<const Task*> found;  // their order in memory is that of the definition
  for (const Cell& cell : cells) found.insert(cell.task);
  return {found.begin(), found.end()};
}

const Cell* Report::cell(const Task& task, std::int64_t length) const {
  for (const Cell& cell : cells) {
    if (cell.task == &task && cell.length == length) return &cell;
  }
  return nullptr;
}

std::int64_t Report::scored(std::int64_t length) const {
  return std::count_if(cells.begin(), cells.end(),
                       [&](const Cell& cell) { return cell.length == length && cell.skipped.empty(); });
}

double Report::mean(std::int64_t length) const {
  double sum = 0;
  for (const Cell& cell : cells) {
    if (cell.length == length && cell.skipped.empty()) sum += cell.score();
  }
  const std::int64_t count = scored(length);
  return count == 0 ? std::numeric_limits<double>::quiet_NaN()
                    : std::round(100 * sum / static_cast<double>(count)) / 100;
}

std::string label_of(const Task& task, const OrderedJson& run) {
  return concat(task.name, is_own_haystack(task, run) ? "*" : "");
}

std::string footnote(const Report& report) {
  for (const Task* task : report.tasks()) {
    if (!is_own_haystack(*task, report.run)) continue;
    return concat("* the haystack is '", report.run["haystack"].value("file", std::string()),
                  "', not the essays of the definition: not comparable with published figures");
  }
  return "";
}

OrderedJson to_json(const Report& report) {
  OrderedJson json;
  json["benchmark"] = "RULER";
  json["run"] = report.run;
  json["cells"] = OrderedJson::array();
  json["skipped"] = OrderedJson::array();
  for (const Cell& cell : report.cells) {
    OrderedJson entry{{"task", cell.task->name}, {"length", cell.length}};
    if (!cell.skipped.empty()) {
      entry["reason"] = cell.skipped;
      json["skipped"].push_back(std::move(entry));
      continue;
    }
    entry["score"] = cell.score();
    entry["metric"] = name_of(cell.task->metric);
    entry["samples"] = cell.samples.size();
    entry["empty_predictions"] = cell.empty();
    std::int64_t tokens = 0;
    for (const Answered& sample : cell.samples) tokens = std::max(tokens, sample.tokens);
    entry["longest_prompt_tokens"] = tokens;
    entry["new_tokens"] = cell.task->new_tokens;
    if (cell.task->source == Source::essays)
      entry["haystack"] = is_own_haystack(*cell.task, report.run) ? "own" : "essays";
    json["cells"].push_back(std::move(entry));
  }
  json["means"] = OrderedJson::array();
  for (const std::int64_t length : report.lengths()) {
    const double mean = report.mean(length);
    json["means"].push_back({{"length", length},
                             {"mean", std::isfinite(mean) ? OrderedJson(mean) : OrderedJson()},
                             {"tasks", report.scored(length)}});
  }
  return json;
}

std::string heat_map(const Report& report, bool page) {
  eval::HeatMap map{.title = title(report),
                    .description = "Scores of 0 to 100 by task and length; cells without a score are empty",
                    .caption = footnote(report).empty()
                                   ? "score, 0 to 100"
                                   : "score, 0 to 100; * not in the essays of the definition",
                    .column_label = "tokens of prompt and answer",
                    .low = 0,
                    .high = 100};
  bool any = false;
  for (const std::int64_t length : report.lengths()) map.columns.push_back(grouped(length));
  for (const Task* task : report.tasks()) {
    map.rows.push_back(label_of(*task, report.run));
    map.values.emplace_back();
    for (const std::int64_t length : report.lengths()) {
      const Cell* cell = report.cell(*task, length);
      const double score = cell ? cell->score() : NAN;
      map.values.back().push_back(std::isfinite(score) ? std::round(10 * score) / 10 : score);
      any |= std::isfinite(score);
    }
  }
  if (!any) return "";
  map.size = {.width = std::max(420, 150 + 76 * static_cast<int>(map.columns.size())),
              .height = 110 + 30 * static_cast<int>(map.rows.size())};
  return to_svg(map, page ? eval::Placement::page : eval::Placement::file);
}

std::string html_page(const Report& report) {
  const std::string note = footnote(report);
  return concat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>",
                xml_escaped(title(report)), "</title>\n<style>", kStyle, eval::plot_style(),
                "</style></head>\n<body><h1>", xml_escaped(title(report)), "</h1>\n",
                heat_map(report, /*page=*/true), "\n",
                note.empty() ? "" : concat("<p>", xml_escaped(note), "</p>\n"), score_table(report),
                skipped_list(report), examples(report), "<h2>The run</h2>\n<pre>",
                xml_escaped(report.run.dump(2)), "</pre>\n</body></html>\n");
}

}  // namespace gsa::ruler
