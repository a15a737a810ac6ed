// Charts of evaluations, as SVG.
#pragma once

#include <string>
#include <vector>

#include "eval/evaluate.h"

namespace gsa::eval {

struct NamedChart {
  // Of its file, without an ending: "first-token", or "first-token-4096" among several lengths.
  std::string name;
  std::string title;  // of the chart
  std::string svg;
};

// Of what the reports hold, each at another length: perplexity over the length where there are several; first
// token's share and kept mass by layer and head; the oracle's mass, gates, largest activations, k_t and
// unions by layer. caption: the model and the data, on every one of them.
std::vector<NamedChart> charts_of(const std::vector<Report>& reports, const std::string& caption = "");

// A page that shows them, as files beside it.
std::string index_page(const std::vector<NamedChart>& charts, const std::string& caption);

}  // namespace gsa::eval
