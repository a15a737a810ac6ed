// decode on the CPU: the pages of each sequence are gathered, and select, attend and gate run on them. Right,
// not fast: it copies the cache.
#include <ATen/ops/arange.h>
#include <torch/library.h>

#include <limits>

#include "gsa/error.h"
#include "torch/decode_arguments.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

// The first `length` positions of a sequence, [1, length, ...], out of pages [pages, page_size, ...].
Tensor gather(const Tensor& pages, const Tensor& blocks, std::int64_t length) {
  const std::int64_t page = pages.size(1), used = (length + page - 1) / page;
  return pages.index_select(0, blocks.narrow(0, 0, used)).flatten(0, 1).narrow(0, 0, length).unsqueeze(0);
}

void check_blocks(const char* op, const Tensor& blocks, std::int64_t used, std::int64_t pages) {
  const std::int32_t* entry = blocks.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < used; ++i) {
    if (entry[i] < 0 || entry[i] >= pages) {
      bad_argument(op, "block_table", concat("pages in 0 .. ", pages - 1, " up to the length"),
                   concat(entry[i]));
    }
  }
}

Tensor3 decode_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                   const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                   const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                   std::int64_t max_length, std::optional<double> scale, double index_scale,
                   std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                   std::int64_t k_max, const OptTensor& mean_variance) {
  constexpr char op[] = "decode";
  const BoundDecode bound = bind_decode(op, {q,
                                             k,
                                             v,
                                             block_table,
                                             lengths,
                                             index_q,
                                             index_k,
                                             index_w,
                                             index_bias,
                                             gate,
                                             max_length,
                                             scale,
                                             index_scale,
                                             form,
                                             {budget, k_base, k_min, k_max, mean_variance}});
  static const auto select = find_operator<SelectFn>("gsa::select");
  static const auto attend = find_operator<AttendFn>("gsa::attend");
  static const auto apply_gate = find_operator<GateFn>("gsa::gate");
  bound.out.fill_(std::numeric_limits<double>::quiet_NaN());
  bound.lse.fill_(std::numeric_limits<double>::quiet_NaN());
  bound.k_t.zero_();
  const std::int64_t page = k.size(1);
  for (std::int64_t n = 0; n < q.size(0); ++n) {
    const std::int64_t length = bound.args.pages.length[n];
    check_range(op, "lengths", "a length", length, 0, max_length);
    const std::int64_t queries = std::min(q.size(1), length), skipped = q.size(1) - queries;
    if (queries == 0) continue;
    const Tensor blocks = bound.block_table[n];
    check_blocks(op, blocks, (length + page - 1) / page, k.size(0));
    const auto row = [&](const Tensor& x) { return x.narrow(0, n, 1).narrow(1, skipped, queries); };
    OptTensor mask;
    if (index_q) {
      auto [selected, k_t, variance, threshold, tie_cut] =
          select.call(row(*index_q), gather(*index_k, blocks, length), row(*index_w), index_bias, index_scale,
                      form, budget, k_base, k_min, k_max, mean_variance, {}, {}, {}, {});
      mask = selected;
      row(bound.k_t).copy_(k_t);
    } else {
      row(bound.k_t).copy_(at::arange(length - queries + 1, length + 1, at::kInt));
    }
    auto [out, lse] = attend.call(row(q), gather(k, blocks, length), gather(v, blocks, length), mask, scale,
                                  "ordered", {}, {}, {});
    row(bound.out).copy_(gate ? apply_gate.call(out, row(*gate)) : out);
    row(bound.lse).copy_(lse);
  }
  return {bound.out, bound.lse, bound.k_t};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CPU, m) { m.impl("decode", &decode_cpu); }

}  // namespace gsa::binding
