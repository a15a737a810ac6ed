// The results of a run for people and programs: JSON, a heat map of tasks by lengths, and a page.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "ruler/results.h"

namespace gsa::ruler {

struct Report {
  OrderedJson run;          // run.json: of what
  std::vector<Cell> cells;  // tasks in their order, each at all lengths

  std::vector<std::int64_t> lengths() const;  // ascending
  std::vector<const Task*> tasks() const;
  const Cell* cell(const Task& task, std::int64_t length) const;  // null: not asked for
  std::int64_t scored(std::int64_t length) const;                 // tasks with a score there
  // Over the tasks with a score; NaN where there is none. RULER's own mean only where all 13 have one.
  double mean(std::int64_t length) const;
};

// A task with the mark * where its haystack is not the definition's.
std::string label_of(const Task& task, const OrderedJson& run);
// What * means; empty where no task has it.
std::string footnote(const Report& report);

OrderedJson to_json(const Report& report);
// Empty where no cell has a score.
std::string heat_map(const Report& report, bool page);
std::string html_page(const Report& report);

}  // namespace gsa::ruler
