#include "ruler/task.h"

#include "core/suggest.h"
#include "gsa/error.h"

namespace gsa::ruler {
namespace {

constexpr std::int64_t kNeedleTokens = 128;

constexpr Task needle_task(const char* name, Filler filler) {
  Task task{.name = name, .kind = Kind::needles, .new_tokens = kNeedleTokens, .filler = filler};
  if (filler == Filler::essays) task.source = Source::essays;
  return task;
}

constexpr Task with_uuids(Task task, bool keys) {
  task.values = Content::uuids;
  if (keys) task.keys = Content::uuids;
  return task;
}

constexpr Task with_counts(Task task, std::size_t keys, std::size_t values, std::size_t queries) {
  task.key_count = keys;
  task.values_of_key = values;
  task.queries = queries;
  return task;
}

constexpr Task kTasks[] = {
    needle_task("niah_single_1", Filler::noise),
    needle_task("niah_single_2", Filler::essays),
    with_uuids(needle_task("niah_single_3", Filler::essays), /*keys=*/false),
    with_counts(needle_task("niah_multikey_1", Filler::essays), 4, 1, 1),
    needle_task("niah_multikey_2", Filler::needles),
    with_uuids(needle_task("niah_multikey_3", Filler::needles), /*keys=*/true),
    with_counts(needle_task("niah_multivalue", Filler::essays), 1, 4, 1),
    with_counts(needle_task("niah_multiquery", Filler::essays), 4, 1, 4),
    {.name = "vt", .kind = Kind::variable_tracking, .new_tokens = 30},
    {.name = "cwe", .kind = Kind::common_words, .new_tokens = 120},
    {.name = "fwe", .kind = Kind::frequent_words, .new_tokens = 50},
    {.name = "qa_1",
     .kind = Kind::questions,
     .new_tokens = 32,
     .metric = Metric::part,
     .source = Source::squad},
    {.name = "qa_2",
     .kind = Kind::questions,
     .new_tokens = 32,
     .metric = Metric::part,
     .source = Source::hotpotqa},
};

}  // namespace

std::span<const Task> all_tasks() { return kTasks; }

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task& task : kTasks) names.emplace_back(task.name);
  return names;
}

const Task& task_by_name(const std::string& name) {
  for (const Task& task : kTasks) {
    if (name == task.name) return task;
  }
  const std::vector<std::string> names = task_names();
  bad_argument("ruler", "tasks", alternatives(names), with_suggestion(name, names));
}

const char* name_of(Metric metric) {
  return metric == Metric::all ? "string_match_all" : "string_match_part";
}

}  // namespace gsa::ruler
