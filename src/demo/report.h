// The demo's report: one HTML page that needs nothing but itself. No torch header.
#pragma once

#include <string>

#include "demo/results.h"

namespace gsa::demo {

// program: how the reader calls gsa, for the commands at the end.
std::string html_report(const Results& results, const std::string& program);

}  // namespace gsa::demo
