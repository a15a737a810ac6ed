// decode. On the CPU it checks what a CUDA device could not (lengths, pages).
#include "kernels/decode/decode.h"

#include <torch/library.h>

#include "gsa/error.h"
#include "torch/backend.h"
#include "torch/decode_arguments.h"

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

BoundDecode run_decode(const DecodeTensors& tensors) {
  constexpr char op[] = "decode";
  const Tensor &q = tensors.q, &k = tensors.k;
  if (k.is_cuda() && !q.is_cuda()) check_device(op, "q", q, k.device());
  const std::unique_ptr<Backend> backend = backend_of(q);
  BoundDecode bound = bind_decode(op, tensors);
  if (q.size(0) == 0) return bound;
  if (!q.is_cuda()) check_pages(op, bound.args, k.size(0));
  backend->decode(bound.args);
  return bound;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gsa, m) { implement(m, "decode", &decode_by<run_decode>); }

}  // namespace gsa::binding
