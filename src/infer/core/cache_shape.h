// What a cache keeps of a token, and what that costs. No torch header.
//
//   per layer   K    [kv_heads, head_size]   rotated
//               V'   [kv_heads, head_size]   after the value gate
//               kI   [index_head_size]       rotated; only in layers with an indexer
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/memory.h"
#include "gsa/dtype.h"
#include "model/model_config.h"

namespace gsa::infer {

struct CacheShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t index_head_size = 0;             // 0: no indexer, no indexer keys
  std::vector<std::int64_t> index_layers = {};  // that have an indexer, ascending; empty: all of them
  DType dtype = DType::bf16;    // of keys and values, and of indexer keys unless these are 8-bit
  bool index_int8 = false;      // indexer keys as int8 with a float32 scale a row
  std::int64_t page_size = 64;  // positions a page: a power of two, 8 .. 1024

  // Throws gsa::Error naming the field, what was expected and what came.
  void validate() const;

  bool has_index(std::int64_t layer) const;  // whether the layer keeps indexer keys
  std::int64_t index_layer_count() const;

  std::int64_t bytes_per_token() const;  // of all layers
  std::int64_t bytes_per_page() const { return page_size * bytes_per_token(); }
  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + page_size - 1) / page_size; }

  bool operator==(const CacheShape&) const = default;
};

struct CacheShapeOptions {
  DType dtype = DType::bf16;
  bool selects = true;  // false: the model runs dense, whatever its configuration, and keeps no indexer keys
  bool index_int8 = false;
  std::int64_t page_size = 64;
};

CacheShape cache_shape(const nn::ModelConfig& config, const CacheShapeOptions& options);

}  // namespace gsa::infer
