#include "paper/page.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/number_text.h"
#include "gsa/error.h"
#include "gsa/version.h"
#include "plot/markup.h"

namespace gsa::paper {
namespace {

using eval::xml_escaped;

constexpr const char* kStyle =
    R"(:root{color-scheme:light dark;--quiet:#5b6675;--line:#8884;--ours:#2463c41a;--good:#11806f;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--quiet:#9aa7b8;--ours:#6fa8ff22;--good:#4fd0b5;--bad:#ff8a80}}
body{font:16px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1080px;padding:0 16px}
h1{font-size:1.7rem;line-height:1.2}h2{font-size:1.25rem;margin:2em 0 .4em}p{max-width:80ch;margin:.4em 0}
.quiet{color:var(--quiet);font-size:.9rem}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;margin:.6em 0}
td,th{padding:4px 10px 4px 6px;text-align:right;border-bottom:1px solid var(--line)}td{white-space:nowrap}
th{vertical-align:bottom;max-width:7em;line-height:1.25}td:first-child,th:first-child{text-align:left}
.o{background:var(--ours)}.p{color:var(--quiet)}th[colspan]{text-align:center}
.verdict{border-left:4px solid var(--quiet);padding-left:10px}.holds{border-color:var(--good)}
.fails{border-color:var(--bad)}li{margin:.3em 0}
.charts{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start}figure{margin:.6em 0;max-width:100%}
figcaption{font-weight:600;font-size:.9rem}svg{max-width:100%;height:auto}
)";

constexpr const char* kTitle = "The paper's tables, at a scale that runs here";

const char* css_class(Outcome outcome) {
  return outcome == Outcome::holds ? " holds" : outcome == Outcome::fails ? " fails" : "";
}

std::string how_it_is_judged(std::int64_t seeds) {
  constexpr const char* kWorkedOut = " The sentences are worked out from the figures.";
  if (seeds == 1) {
    return concat("Figures come from one seed: a relation holds where the difference is larger than a floor ",
                  "(docs/paper.md).", kWorkedOut);
  }
  const auto systems_count = static_cast<std::int64_t>(systems().size());
  return concat(
      "± is the standard deviation over ", seeds,
      " seeds; figures without it come from one. Systems of a seed see the same rows in the same order, so "
      "that differences are taken seed by seed. A relation holds where their mean is larger than a floor "
      "(docs/paper.md) and than chance explains: Student's t at 95 %, with one spread for all systems of a "
      "column, which ",
      systems_count, " systems give ", (systems_count - 1) * (seeds - 1),
      " degrees of freedom where two alone would have ", seeds - 1, ".", kWorkedOut);
}

// That makes this page, but for the folder.
std::string command_of(const PageOptions& o) {
  return concat("gsa paper --scale ", o.tables.scale.name,
                o.tables.seeds > 1 ? concat(" --seeds ", o.tables.seeds) : "",
                o.options.empty() ? "" : " " + o.options);
}

// Paragraphs that both pages begin with.
std::vector<std::string> introduction(const PageOptions& o) {
  const Scale& s = o.tables.scale;
  std::string model;
  for (const std::string& setting : s.model) model += (model.empty() ? "" : ", ") + setting;
  std::vector<std::string> paragraphs = {
      concat("Made by gsa ", GSA_VERSION, " (", command_of(o),
             "). The paper's figures stand beside ours for the "
             "relations between systems: its models have 1.7B parameters and 400B tokens, so that absolute "
             "figures do not compare. ",
             how_it_is_judged(o.tables.seeds),
             s.tells ? "" : " At this scale models learn next to nothing: no sentence decides anything."),
      concat("Models: ", model, "; rows of ", grouped(s.length),
             " tokens, each with the begin mark in front; ", grouped(s.batch_tokens),
             " tokens a step. standard and gated-only learn ", grouped(s.base_steps), " steps at rate ",
             s.rate, ", then ", grouped(s.warmup + s.sparse), " more at ", s.adapt_rate,
             ". sparse-only and gsa start from the same models after the first ", grouped(s.base_steps),
             " and learn as many more with an indexer: ", grouped(s.warmup),
             " of warm-up, in which only the indexer learns, and ", grouped(s.sparse),
             " sparse ones; sparse-only with k = ", grouped(s.fixed_k()),
             ", gsa with k_base = ", grouped(s.k()), " (mean k is in the table)."),
      "Data: " + o.data};
  if (!o.machine.empty()) paragraphs.push_back("Machine: " + o.machine + ".");
  if (!o.dates.empty()) paragraphs.push_back("Measured: " + o.dates + ".");
  if (o.done < o.steps) {
    paragraphs.push_back(concat(o.done, " of ", o.steps, " steps of all tables are done."));
  }
  return paragraphs;
}

constexpr const char* kDownstream =
    "The paper's second table (MMLU, GSM8K, HumanEval, HellaSwag, C-Eval) is left out: models of this size "
    "guess there.";

// What is worked out of a table: a name, which the table's own has not, and a verdict.
std::vector<Goal> sentences(const Table& table) {
  std::vector<Goal> all = {{"", table.verdict}};
  all.insert(all.end(), table.goals.begin(), table.goals.end());
  return all;
}

std::string svg_of(const Chart& chart, eval::Placement placement) {
  return std::visit([&](const auto& what) { return eval::to_svg(what, placement); }, chart.chart);
}

std::string html_table(const Table& table) {
  const auto ours = table.columns.size(), paper = table.paper_columns.size();
  std::string html =
      concat("<div class=\"scroll\"><table>\n<tr><th></th><th class=\"o\" colspan=\"", ours, "\">ours</th>");
  if (paper > 0) html += concat("<th class=\"p\" colspan=\"", paper, "\">paper, 1.7B</th>");
  html += "</tr>\n<tr><th></th>";
  for (const Column& column : table.columns)
    html += concat("<th class=\"o\">", xml_escaped(column.name), "</th>");
  for (const std::string& name : table.paper_columns)
    html += concat("<th class=\"p\">", xml_escaped(name), "</th>");
  html += "</tr>\n";
  for (const Row& row : table.rows) {
    html += concat("<tr><td>", xml_escaped(row.name), "</td>");
    for (std::size_t i = 0; i < ours; ++i) {
      html += concat("<td class=\"o\">", xml_escaped(cell_text(row.ours.at(i), table.columns[i])), "</td>");
    }
    for (std::size_t i = 0; i < paper; ++i) {
      html += concat("<td class=\"p\">", i < row.paper.size() ? xml_escaped(row.paper[i]) : "", "</td>");
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string markdown_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '_' || c == '<' || c == '`') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Markdown would take a line that begins with it for a list, a heading, a quotation or a table; and units stay with
// their numbers.
bool may_begin_a_line(const std::string& word) {
  const std::size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
  const bool number = digits > 0 && digits + 1 == word.size() && (word.back() == '.' || word.back() == ')');
  return !number && word.find_first_of("-+*#>=|~%") != 0;
}

// Prose in lines of at most so many characters, as everywhere in this project; indent: of all but the first line.
std::string wrapped(const std::string& text, const std::string& indent = "") {
  constexpr std::size_t kMaxWidth = 120;
  std::vector<std::string> parts;  // between which a line may end
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (parts.empty() || may_begin_a_line(word)) {
      parts.push_back(word);
    } else {
      parts.back() += " " + word;
    }
  }
  std::string lines;
  std::size_t width = 0;
  for (const std::string& part : parts) {
    const std::size_t size = width_of(part);
    if (width > 0 && width + 1 + size > kMaxWidth) {
      lines += "\n" + indent;
      width = indent.size();
    } else if (width > 0) {
      lines += " ";
      ++width;
    }
    lines += part;
    width += size;
  }
  return lines + "\n";
}

std::string markdown_table(const Table& table) {
  std::string text = "| |", rule = "|---|";
  const auto head = [&](const char* whose, const std::string& name) {
    text += concat(" ", whose, ": ", markdown_escaped(name), " |");
    rule += "---:|";
  };
  for (const Column& column : table.columns) head("ours", column.name);
  for (const std::string& name : table.paper_columns) head("paper", name);
  text += "\n" + rule + "\n";
  for (const Row& row : table.rows) {
    text += concat("| ", markdown_escaped(row.name), " |");
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      text += concat(" ", markdown_escaped(cell_text(row.ours.at(i), table.columns[i])), " |");
    }
    for (std::size_t i = 0; i < table.paper_columns.size(); ++i) {
      text += concat(" ", i < row.paper.size() ? markdown_escaped(row.paper[i]) : "", " |");
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string text_repeated(const Results& results) {
  const auto data = results.find("data");
  if (data == results.end() || !data->second.contains("text_rows")) return "";
  const double rows = data->second.at("text_rows"), different = data->second.at("text_rows_different");
  return concat(
      " The text fills ", grouped(std::llround(rows)), " rows of the training set with ",
      grouped(std::llround(different)), " different ones: ",
      rows <= different ? "none comes again" : concat("each comes ", fixed(rows / different, 1), " times"),
      ".");
}

std::string html_page(const PageOptions& options, const std::vector<Table>& tables) {
  std::string html = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>",
      kTitle, "</title>\n<style>\n", kStyle, eval::plot_style(), "</style>\n</head>\n<body>\n<h1>", kTitle,
      "</h1>\n");
  for (const std::string& paragraph : introduction(options))
    html += concat("<p>", xml_escaped(paragraph), "</p>\n");
  html += "<h2>In short</h2>\n<ul>\n";
  for (const Table& table : tables) {
    for (const auto& [name, verdict] : sentences(table)) {
      html += concat("<li><b>", xml_escaped(name.empty() ? table.title : name), ".</b> ",
                     xml_escaped(verdict.sentence), "</li>\n");
    }
  }
  html += concat("</ul>\n<p class=\"quiet\">", kDownstream, "</p>\n");
  for (const Table& table : tables) {
    html += concat("<h2 id=\"", table.id, "\">", xml_escaped(table.title), "</h2>\n<p class=\"quiet\">",
                   xml_escaped(table.about), "</p>\n", html_table(table));
    for (const auto& [name, verdict] : sentences(table)) {
      html += concat("<p class=\"verdict", css_class(verdict.outcome), "\">",
                     name.empty() ? "" : concat("<b>", xml_escaped(name), ".</b> "),
                     xml_escaped(verdict.sentence), "</p>\n");
    }
    for (const std::string& note : table.notes) html += concat("<p>", xml_escaped(note), "</p>\n");
    if (table.charts.empty()) continue;
    html += "<div class=\"charts\">\n";
    for (const Chart& chart : table.charts) {
      html += concat("<figure><figcaption>", xml_escaped(chart.title()), "</figcaption>\n",
                     svg_of(chart, eval::Placement::page), "</figure>\n");
    }
    html += "</div>\n";
  }
  return html + "</body>\n</html>\n";
}

std::string markdown_page(const PageOptions& options, const std::vector<Table>& tables) {
  std::string text = concat("# ", kTitle, "\n\n");
  for (const std::string& paragraph : introduction(options))
    text += wrapped(markdown_escaped(paragraph)) + "\n";
  text += "## In short\n\n";
  for (const Table& table : tables) {
    for (const auto& [name, verdict] : sentences(table)) {
      text += wrapped(concat("- **", markdown_escaped(name.empty() ? table.title : name), ".** ",
                             markdown_escaped(verdict.sentence)),
                      "  ");
    }
  }
  text += "\n" + wrapped(kDownstream);
  for (const Table& table : tables) {
    text += concat("\n## ", markdown_escaped(table.title), "\n\n", wrapped(markdown_escaped(table.about)),
                   "\n", markdown_table(table));
    for (const auto& [name, verdict] : sentences(table)) {
      text += "\n" + wrapped(concat(name.empty() ? "" : concat("**", markdown_escaped(name), ".** "),
                                    markdown_escaped(verdict.sentence)));
    }
    for (const std::string& note : table.notes) text += "\n" + wrapped(markdown_escaped(note));
    for (const Chart& chart : table.charts)
      text += concat("\n![", markdown_escaped(chart.title()), "](charts/", chart.name, ".svg)\n");
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> chart_files(const std::vector<Table>& tables) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const Table& table : tables) {
    for (const Chart& chart : table.charts)
      files.emplace_back("charts/" + chart.name + ".svg", svg_of(chart, eval::Placement::file));
  }
  return files;
}

}  // namespace gsa::paper
