// Where a model looked, as JSON: the body of the server's /gsa/look, and the data of gsa inspect-text's page.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"
#include "data/tokenizer.h"
#include "infer/core/look.h"

namespace gsa::infer {

// {"position": 7, "sparse": true, "layers": [{"k_t": 2, "positions": [0, 7], "weights": [0.25, 0.75],
//   "kept_mass": 0.98, "value_gate": 0.5, "output_gate": 0.5}, ...]}
// Weights and shares have four significant digits: a look at a long text is large. Throws gsa::Error for a number that
// is not finite, which JSON cannot say.
OrderedJson look_json(const Look& look);

// A token's own text for people, in valid UTF-8: bytes that are no whole character as <0xE2>; none for a mark.
std::string token_text(const data::Tokenizer& tokenizer, std::int32_t id);

}  // namespace gsa::infer
