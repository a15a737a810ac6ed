// How a prediction is scored: as the public definition does, by whether the answers stand in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ruler/task.h"

namespace gsa::ruler {

// Without white space at its ends, every control character as a line end.
std::string cleaned(std::string_view prediction);

// Lower case of ASCII and of the common Latin, Greek and Cyrillic letters that take two bytes: no accented Greek, none
// of the rarer letters, which must match as they are.
std::string lower(std::string_view text);

// In 0 .. 1. all: the share of the answers that stand in the prediction; part: 1 where any of them does.
// Upper and lower case are the same.
double score(Metric metric, std::string_view prediction, const std::vector<std::string>& answers);

// The mean of scores as RULER writes it: 0 .. 100, two decimals. Of none: NaN.
double percentage(const std::vector<double>& scores);

}  // namespace gsa::ruler
