#include "infer/core/cache_shape.h"

#include <algorithm>

#include "core/checked.h"
#include "gsa/error.h"

namespace gsa::infer {
namespace {

constexpr const char* kShapeOp = "infer::CacheShape";

void check_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) bad_argument(kShapeOp, field, concat(low, " .. ", high), concat(value));
}

}  // namespace

void CacheShape::validate() const {
  check_range("layers", layers, 1, 1 << 16);
  check_range("kv_heads", kv_heads, 1, 1 << 16);
  check_range("head_size", head_size, 1, 256);
  check_range("index_head_size", index_head_size, 0, 256);
  check_range("page_size", page_size, 8, 1024);
  if ((page_size & (page_size - 1)) != 0) {
    bad_argument(kShapeOp, "page_size", "a power of two in 8 .. 1024", concat(page_size));
  }
  for (std::size_t i = 0; i < index_layers.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : index_layers[i - 1] + 1, last = i == 0 ? 0 : layers - 1;
    if (index_head_size > 0 && index_layers[i] >= least && index_layers[i] <= last) continue;
    bad_argument(kShapeOp, "index_layers",
                 index_head_size == 0 ? "none without an indexer"
                                      : concat("0 and ascending numbers of layers up to ", layers - 1),
                 concat(index_layers[i], " in place ", i));
  }
  if (index_int8 && index_head_size == 0) {
    bad_argument(kShapeOp, "index_int8", "false for a model that runs without an indexer", "true");
  }
}

std::int64_t CacheShape::bytes_per_token() const {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t rows = 2 * kv_heads * head_size * element;
  const std::int64_t index =
      index_int8 ? index_head_size + static_cast<std::int64_t>(sizeof(float)) : index_head_size * element;
  return checked_mul(layers, rows, kShapeOp, "layers") + index_layer_count() * index;
}

bool CacheShape::has_index(std::int64_t layer) const {
  return index_head_size > 0 && (index_layers.empty() || std::ranges::binary_search(index_layers, layer));
}

std::int64_t CacheShape::index_layer_count() const {
  if (index_head_size == 0) return 0;
  return index_layers.empty() ? layers : static_cast<std::int64_t>(index_layers.size());
}

CacheShape cache_shape(const nn::ModelConfig& config, const CacheShapeOptions& options) {
  const nn::AttentionConfig& attention = config.attention;
  const bool selects = attention.sparse && options.selects;
  const CacheShape shape{.layers = config.layers,
                         .kv_heads = attention.kv_heads,
                         .head_size = attention.head_size,
                         .index_head_size = selects ? attention.indexer.head_size : 0,
                         .index_layers = selects ? config.index_layers : std::vector<std::int64_t>(),
                         .dtype = options.dtype,
                         .index_int8 = options.index_int8,
                         .page_size = options.page_size};
  shape.validate();
  return shape;
}

}  // namespace gsa::infer
