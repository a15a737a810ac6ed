#include "kernels/decode/decode_plan.h"

#include "gsa/error.h"

namespace gsa::cuda {

DecodeConfig choose_decode(const DecodeFacts& facts) {
  DecodeConfig config;
  config.dense = facts.dense;
  config.shared = facts.shared;
  config.keys = facts.dense ? facts.max_length : std::min(facts.max_length, facts.max_selected);
  config.splits = decoding::max_splits(facts.dense, static_cast<int>(config.keys));
  // Where rows cannot be read 16 bytes at a time, fewer sizes are compiled.
  config.padded_size = facts.head_size > 128 ? 256 : facts.head_size > 64 || !facts.aligned ? 128 : 64;
  config.pick_blocks = facts.dense || facts.shared ? 0 : facts.device.hopper() ? decoding::kHopperCluster : 1;
  return config;
}

std::string to_string(const DecodeConfig& config) {
  const int keys = decoding::split_keys(config.dense, static_cast<int>(config.keys));
  return concat("up to ", config.splits, config.splits == 1 ? " split of " : " splits of ", keys,
                config.dense    ? " keys, heads as "
                : config.shared ? " keys at given positions, heads as "
                                : " keys from a list, heads as ",
                config.padded_size,
                config.pick_blocks == 0 ? std::string() : concat(", ", config.pick_blocks, " blocks select"));
}

}  // namespace gsa::cuda
