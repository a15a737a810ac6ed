// The paper's tables with our figures in them: pure functions of the results.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "paper/results.h"
#include "paper/verdict.h"
#include "plot/plot.h"

namespace gsa::paper {

struct Column {
  enum class Form { number, percent, times };  // a share times 100 with %; with ×

  std::string name;
  int decimals = 2;
  Form form = Form::number;
};

struct Row {
  std::string name;
  std::vector<Cell> ours;          // one a column
  std::vector<std::string> paper;  // one a column of the paper's; none: not in the paper
};

struct Chart {
  std::string name;  // of its file, without .svg
  std::variant<eval::LineChart, eval::BarChart, eval::HeatMap> chart;

  const std::string& title() const;
};

// A relation with a sentence of its own: what this project asks of itself, or what must not decide the table.
struct Goal {
  std::string name;
  Verdict verdict;
};

struct Table {
  std::string id;     // "perplexity"
  std::string title;  // "Perplexity"
  std::string about;  // what is measured, in a sentence or two
  std::vector<Column> columns;
  std::vector<std::string> paper_columns = {};  // none: the paper has no such table
  std::vector<Row> rows = {};
  std::vector<std::string> notes = {};  // what the figures say beside the verdict, a sentence each
  Verdict verdict = {};
  std::vector<Goal> goals = {};
  std::vector<Chart> charts = {};
};

struct TableOptions {
  Scale scale;
  std::int64_t seeds = 1;
  std::string texts[2] = {"stories", "code"};  // what data/validation-1 and -2 are
};

// In the paper's order. What has not been run is empty.
std::vector<Table> make_tables(const TableOptions& options, const Results& results);

// 5.70 ± 0.02; fewer decimals than three for numbers from 10 on; "–" where it was not run, "diverged" for infinity.
std::string cell_text(const Cell& cell, const Column& column);

}  // namespace gsa::paper
