// Evaluations as tables on a terminal.
#pragma once

#include <ostream>
#include <vector>

#include "eval/evaluate.h"

namespace gsa::cli {

// One report a length of the window.
void print_reports(const std::vector<eval::Report>& reports, std::ostream& out);

}  // namespace gsa::cli
