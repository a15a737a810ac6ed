// The thirteen tasks of RULER (Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context
// Language Models?", 2024), as the public definition has them: github.com/NVIDIA/RULER, scripts/synthetic.yaml
// and scripts/data/synthetic/constants.py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gsa::ruler {

enum class Kind { needles, variable_tracking, common_words, frequent_words, questions };
enum class Filler { noise, essays, needles };         // what needles are hidden in
enum class Content { words, numbers, uuids };         // what a needle's key or value is
enum class Metric { all, part };                      // string_match_all, string_match_part
enum class Source { none, essays, squad, hotpotqa };  // what a user has to bring

struct Task {
  const char* name;
  Kind kind;
  std::int64_t new_tokens;  // that the model may write
  Metric metric = Metric::all;
  Source source = Source::none;
  // Of needle tasks.
  Filler filler = Filler::noise;
  Content keys = Content::words, values = Content::numbers;
  std::size_t key_count = 1, values_of_key = 1, queries = 1;
};

std::span<const Task> all_tasks();
std::vector<std::string> task_names();
// Throws gsa::Error with the name that may have been meant.
const Task& task_by_name(const std::string& name);

const char* name_of(Metric metric);  // "string_match_all", "string_match_part"

}  // namespace gsa::ruler
