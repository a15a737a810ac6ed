// Evaluations for programs; what each figure means is said in the headers of the measures.
#pragma once

#include "core/json.h"
#include "eval/evaluate.h"

namespace gsa::eval {

// Measures that were not taken are absent; a mean over nothing is null.
OrderedJson to_json(const Report& report);

}  // namespace gsa::eval
