// How well a model predicts a text.
//
//   per token    nats / predictions, perplexity its exponential
//   per byte     the same nats over the bytes of the text: comparable between tokenizers
//
// Every id but a document's first is predicted, the mark at its end included; marks have no bytes.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace gsa::eval {

struct Perplexity {
  double nats = 0;  // -log p, added up over the predictions
  std::int64_t predictions = 0;
  std::int64_t text_bytes = 0;

  double loss() const { return nats / static_cast<double>(predictions); }  // nats a token
  double per_token() const { return std::exp(loss()); }
  // NaN for a text of marks alone.
  double nats_per_byte() const {
    return text_bytes > 0 ? nats / static_cast<double>(text_bytes) : std::numeric_limits<double>::quiet_NaN();
  }
  double per_byte() const { return std::exp(nats_per_byte()); }
  double bits_per_byte() const { return nats_per_byte() / std::log(2.0); }
};

}  // namespace gsa::eval
