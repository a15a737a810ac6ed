// Samples of query tiles for the tests of attend_lse and indexer_kl.
#pragma once

#include <cstdint>
#include <vector>

#include "problems.h"

namespace gsa::testing {

struct Sample {
  std::vector<std::int32_t> numbers;

  // An empty sample is no tile, not every tile.
  QueryTiles view() const {
    static const std::int32_t none = 0;
    return {numbers.empty() ? &none : numbers.data(), static_cast<std::int64_t>(numbers.size())};
  }
};

// The number of the tile that each query is in, by walking over the queries.
inline std::vector<std::int32_t> tile_of_query(const Batch& batch) {
  std::vector<std::int32_t> tile;
  std::int32_t number = -1;
  for (const reference::Span& span : batch.spans) {
    for (std::int64_t i = 0; i < span.queries; ++i) {
      number += i == 0 || (span.first + i) % kQueryTile == 0;
      tile.push_back(number);
    }
  }
  return tile;
}

// Every tile in one of `parts` samples, at random.
inline std::vector<Sample> partition(const Batch& batch, std::int64_t parts, std::uint64_t seed) {
  std::vector<Sample> samples(static_cast<std::size_t>(parts));
  const std::vector<std::int32_t> tile = tile_of_query(batch);
  Random random(seed);
  for (std::int32_t number = 0; !tile.empty() && number <= tile.back(); ++number) {
    samples[static_cast<std::size_t>(random.below(parts))].numbers.push_back(number);
  }
  return samples;
}

// Whether each query is in the sample.
inline std::vector<char> covered(const Batch& batch, const Sample& sample) {
  std::vector<char> result;
  for (const std::int32_t tile : tile_of_query(batch)) {
    result.push_back(std::ranges::find(sample.numbers, tile) != sample.numbers.end());
  }
  return result;
}

// The sample of sequence n alone.
inline Sample sample_of(const Batch& batch, const Sample& sample, std::size_t n) {
  Sample result;
  const std::vector<std::int32_t> tile = tile_of_query(batch);
  const std::int64_t begin = batch.q_begin(n), end = batch.q_begin(n + 1);
  for (const std::int32_t number : sample.numbers) {
    if (begin == end) break;
    const std::int32_t first = tile[static_cast<std::size_t>(begin)],
                       last = tile[static_cast<std::size_t>(end - 1)];
    if (number >= first && number <= last) result.numbers.push_back(number - first);
  }
  return result;
}

}  // namespace gsa::testing
