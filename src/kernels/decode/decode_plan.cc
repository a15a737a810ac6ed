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

// Of the ring of tiles of 16 keys, of all warps.
int ring_bytes(const DecodeScoreShape& shape, bool bytes) {
  constexpr int kTileKeys = 16;
  const int tile = kTileKeys * (16 * shape.steps) * (bytes ? 1 : 2) + (bytes ? kTileKeys * 4 : 0);
  return shape.warps * shape.stages * tile;
}

// Queries of a block that scores: as many as fit beside the keys, but at least one.
void choose_score_block(const DecodeFacts& facts, DecodeConfig& config) {
  const DecodeScoreShape shape = score_shape(config.scores, facts.index_bytes);
  const auto bytes_for = [&](int queries) {
    const decoding::ScoreLayout layout(shape.steps,
                                       decoding::padded_columns(static_cast<int>(facts.index_heads)), queries,
                                       config.far_queries, ring_bytes(shape, facts.index_bytes));
    return static_cast<std::size_t>(layout.bytes);
  };
  constexpr std::size_t kComfortable = 96 * 1024;  // two blocks a multiprocessor
  config.score_queries = static_cast<int>(std::min<std::int64_t>(facts.queries, decoding::kScoreQueries));
  while (config.score_queries > 1 && bytes_for(config.score_queries) > kComfortable) --config.score_queries;
  config.far_queries = bytes_for(config.score_queries) > facts.device.shared_memory;
  config.score_bytes = bytes_for(config.score_queries);
}

// Stages of the ring of a block that attends: room for two blocks a multiprocessor, and no more than the device has.
int ring_stages(const DecodeFacts& facts, int padded_size) {
  constexpr std::size_t kBlockBytes = 112 * 1024;  // half of what a multiprocessor of sm_90 has
  const std::size_t room = std::min(facts.device.shared_memory, kBlockBytes);
  int stages = decoding::kMaxStages;
  const auto bytes_for = [&](int count) {
    return static_cast<std::size_t>(decoding::AttendLayout(padded_size, count).bytes);
  };
  while (stages > 2 && bytes_for(stages) > room) --stages;
  return stages;
}

const char* describe_splits(bool dense, std::int64_t keys) {
  if (!dense) return "128 at any length";
  return keys > 64 * 1024   ? "rows of more than 65536"
         : keys > 16 * 1024 ? "rows of up to 65536"
                            : "rows of up to 16384";
}

}  // namespace

DecodeConfig choose_decode(const DecodeFacts& facts) {
  DecodeConfig config;
  config.dense = facts.dense;
  config.shared = facts.shared;
  config.keys = facts.dense ? facts.max_length : std::min(facts.max_length, facts.max_selected);
  config.splits = decoding::max_splits(facts.dense, static_cast<int>(config.keys));
  config.why_splits = describe_splits(facts.dense, config.keys);
  // Where rows cannot be read 16 bytes at a time, fewer sizes are compiled.
  config.padded_size = facts.head_size > 128 ? 256 : facts.head_size > 64 || !facts.aligned ? 128 : 64;
  config.why_padded = facts.head_size > 128  ? "more than 128"
                      : facts.head_size > 64 ? "65 to 128"
                      : !facts.aligned       ? "rows that do not begin at multiples of 16 bytes"
                                             : "up to 64";
  config.stages = ring_stages(facts, config.padded_size);
  config.scores = choose_scores(facts);
  if (config.scores != DecodeScores::none) choose_score_block(facts, config);
  config.pick_blocks = facts.dense || facts.shared ? 0 : facts.device.hopper() ? decoding::kHopperCluster : 1;
  config.why_pick = facts.device.hopper() ? "a cluster on Hopper" : "no clusters";
  return config;
}

std::string to_string(const DecodeConfig& config) {
  const int keys = decoding::split_keys(config.dense, static_cast<int>(config.keys));
  return concat(
      "up to ", config.splits, config.splits == 1 ? " split of " : " splits of ", keys,
      config.dense    ? " keys ("
      : config.shared ? " keys at given positions ("
                      : " keys from a list (",
      config.why_splits, "), heads as ", config.padded_size, " (", config.why_padded, "), ", config.stages,
      " stages",
      config.pick_blocks == 0
          ? std::string()
          : concat(", ", config.pick_blocks,
                   config.pick_blocks == 1 ? " block selects (" : " blocks select (", config.why_pick, ")"),
      describe_scores(config.scores),
      config.score_queries > 1 ? concat(", ", config.score_queries, " queries a block") : std::string(),
      config.far_queries ? ", queries in global memory" : "");
}

}  // namespace gsa::cuda
