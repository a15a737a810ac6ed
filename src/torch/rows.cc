#include "torch/rows.h"

#include <optional>

namespace gsa::binding {

namespace {

// The step between tokens when the first `leading` dimensions are walked as one, if there is such a step.
std::optional<std::int64_t> token_stride(const Tensor& tensor, std::int64_t leading) {
  std::optional<std::int64_t> step;
  std::int64_t span = 0;  // what one step of the next dimension must be
  for (std::int64_t i = leading - 1; i >= 0; --i) {
    const std::int64_t size = tensor.size(i), stride = tensor.stride(i);
    if (size == 1) continue;
    if (!step) {
      step = stride;
    } else if (stride != span) {
      return std::nullopt;
    }
    span = stride * size;
  }
  return step.value_or(0);
}

BoundRows bind(const Tensor& tensor, std::int64_t trailing, bool last_contiguous) {
  const std::int64_t leading = tensor.dim() - trailing;
  const bool packed_last = !last_contiguous || tensor.size(-1) == 1 || tensor.stride(-1) == 1;
  const bool usable = tensor.numel() == 0 || (packed_last && token_stride(tensor, leading));
  const Tensor kept = usable ? tensor : tensor.contiguous();
  const std::int64_t step = kept.numel() == 0 ? 0 : token_stride(kept, leading).value();
  const std::int64_t head_step = last_contiguous && trailing == 1 ? 0 : kept.stride(leading);
  return {kept, {kept.const_data_ptr(), step, head_step}};
}

}  // namespace

BoundRows head_rows(const Tensor& tensor) { return bind(tensor, 2, true); }

BoundRows vector_rows(const Tensor& tensor) { return bind(tensor, 1, true); }

BoundRows scalar_rows(const Tensor& tensor) { return bind(tensor, 1, false); }

Rows result_rows(const Tensor& tensor, std::int64_t heads, std::int64_t size) {
  return {tensor.mutable_data_ptr(), heads * size, size};
}

ConstRows shifted(const ConstRows& rows, std::int64_t tokens, DType dtype) {
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  return {shifted(rows.data, tokens * rows.token_stride, bytes), rows.token_stride, rows.head_stride};
}

Rows shifted(const Rows& rows, std::int64_t tokens, DType dtype) {
  const std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  return {shifted(rows.data, tokens * rows.token_stride, bytes), rows.token_stride, rows.head_stride};
}

}  // namespace gsa::binding
