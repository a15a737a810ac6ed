// decode on the CPU: checks what a CUDA device could not (lengths, pages), and calls the kernels.
#include "kernels/decode/decode.h"

#include <torch/library.h>

#include "gsa/error.h"
#include "torch/decode_arguments.h"
#include "torch/parallel.h"

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

BoundDecode decode_cpu(const DecodeTensors& tensors) {
  constexpr char op[] = "decode";
  BoundDecode bound = bind_decode(op, tensors);
  check_pages(op, bound.args, tensors.k.size(0));
  decode(bound.args, TorchParallel());
  return bound;
}

}  // namespace

TORCH_LIBRARY_IMPL(gsa, CPU, m) { m.impl("decode", &decode_by<decode_cpu>); }

}  // namespace gsa::binding
