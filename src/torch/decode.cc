// decode on the CPU: checks what a CUDA device could not (lengths, pages), and calls the kernels.
#include "kernels/decode/decode.h"

#include <torch/library.h>

#include "gsa/error.h"
#include "torch/decode_arguments.h"
#include "torch/parallel.h"
#include "torch/signatures.h"

namespace gsa::binding {

namespace {

// Every length within bounds, and every block of a sequence a page that there is.
void check_pages(const char* op, const DecodeArgs& args, std::int64_t pages) {
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    const std::int64_t length = args.pages.length[n];
    check_range(op, "lengths", "a length", length, 0, args.max_length);
    const std::int32_t* blocks = args.pages.block_table + n * args.pages.blocks;
    for (std::int64_t i = 0; i * args.pages.page_size < length; ++i) {
      if (blocks[i] < 0 || blocks[i] >= pages) {
        bad_argument(op, "block_table",
                     concat("pages in 0 .. ", pages - 1, " up to the length of sequence ", n),
                     concat(blocks[i]));
      }
    }
  }
}

Tensor3 decode_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& block_table,
                   const Tensor& lengths, const OptTensor& index_q, const OptTensor& index_k,
                   const OptTensor& index_w, const OptTensor& index_bias, const OptTensor& gate,
                   std::int64_t max_length, std::optional<double> scale, double index_scale,
                   std::string_view form, std::string_view budget, std::int64_t k_base, std::int64_t k_min,
                   std::int64_t k_max, const OptTensor& mean_variance, const OptTensor& index_k_scale) {
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
                                             {budget, k_base, k_min, k_max, mean_variance},
                                             index_k_scale});
  check_pages(op, bound.args, k.size(0));
  decode(bound.args, TorchParallel());
  return {bound.out, bound.lse, bound.k_t};
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CPU, m) { m.impl("decode", &decode_cpu); }

}  // namespace gsa::binding
