#include "kernels/decode/decode_plan.h"

#include "gsa/error.h"

namespace gsa::cuda {
namespace {

DecodeScores choose_scores(const DecodeFacts& facts) {
  if (facts.index_heads == 0) return DecodeScores::none;
  if (!facts.index_aligned) return DecodeScores::unaligned;
  if (facts.index_size <= 64 && decoding::padded_columns(static_cast<int>(facts.index_heads)) == 4) {
    const std::int64_t segments = (facts.max_length + decoding::kScoreSegment - 1) / decoding::kScoreSegment;
    const bool few = segments * facts.sequences <= 3 * facts.device.multiprocessors;
    return few ? DecodeScores::wide : DecodeScores::narrow;
  }
  if (facts.index_bytes) return DecodeScores::keys_256;
  return facts.index_size <= 64    ? DecodeScores::any_heads
         : facts.index_size <= 128 ? DecodeScores::keys_128
                                   : DecodeScores::keys_256;
}

const char* describe_scores(DecodeScores scores) {
  switch (scores) {
    case DecodeScores::none:
      return "";
    case DecodeScores::wide:
      return ", scores in large blocks: four heads of up to 64, few segments";
    case DecodeScores::narrow:
      return ", scores in small blocks: four heads of up to 64, many segments";
    case DecodeScores::any_heads:
      return ", scores of any heads: keys of up to 64";
    case DecodeScores::keys_128:
      return ", scores of any heads: keys of up to 128";
    case DecodeScores::keys_256:
      return ", scores of any heads: keys of up to 256";
    case DecodeScores::unaligned:
      return ", scores by single elements: keys that do not begin at multiples of 16 bytes";
  }
  return "";
}

}  // namespace

DecodeConfig choose_decode(const DecodeFacts& facts) {
  DecodeConfig config;
  config.dense = facts.dense;
  config.shared = facts.shared;
  config.keys = facts.dense ? facts.max_length : std::min(facts.max_length, facts.max_selected);
  config.splits = decoding::max_splits(facts.dense, static_cast<int>(config.keys));
  // Where rows cannot be read 16 bytes at a time, fewer sizes are compiled.
  config.padded_size = facts.head_size > 128 ? 256 : facts.head_size > 64 || !facts.aligned ? 128 : 64;
  config.scores = choose_scores(facts);
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
                config.pick_blocks == 0 ? std::string() : concat(", ", config.pick_blocks, " blocks select"),
                describe_scores(config.scores));
}

}  // namespace gsa::cuda
