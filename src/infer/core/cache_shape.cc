#include "infer/core/cache_shape.h"

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
  if (index_int8 && index_head_size == 0) {
    bad_argument(kShapeOp, "index_int8", "false for a model that runs without an indexer", "true");
  }
}

std::int64_t CacheShape::bytes_per_token() const {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t rows = 2 * kv_heads * head_size * element;
  const std::int64_t index =
      index_int8 ? index_head_size + static_cast<std::int64_t>(sizeof(float)) : index_head_size * element;
  return checked_mul(layers, rows + index, kShapeOp, "layers");
}

CacheShape cache_shape(const nn::ModelConfig& config, const CacheShapeOptions& options) {
  const nn::AttentionConfig& attention = config.attention;
  const CacheShape shape{
      .layers = config.layers,
      .kv_heads = attention.kv_heads,
      .head_size = attention.head_size,
      .index_head_size = attention.sparse && options.selects ? attention.indexer.head_size : 0,
      .dtype = options.dtype,
      .index_int8 = options.index_int8,
      .page_size = options.page_size};
  shape.validate();
  return shape;
}

}  // namespace gsa::infer
