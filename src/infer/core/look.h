// Where a model looked when it read one token. No torch header.
#pragma once

#include <cstdint>
#include <vector>

namespace gsa::infer {

struct LayerLook {
  std::int64_t k_t = 0;                 // keys that the token attends to
  std::vector<std::int32_t> positions;  // of these keys, ascending
  std::vector<float> weights;           // of softmax over these keys, mean over heads; they add up to 1
  // Of the attention that all visible keys would get, what these keys have; mean over heads.
  double kept_mass = 1;
  double value_gate = 1, output_gate = 1;  // mean of the gate's sigmoid for this token; 1 without such a gate
};

struct Look {
  std::int64_t position = 0;  // of the token
  bool sparse = false;        // false: every key was taken (a dense model, or below dense_below)
  std::vector<LayerLook> layers;
};

}  // namespace gsa::infer
