// What can be said of skinny_linear without a GPU: its arguments, and which products it takes.
#include "kernels/skinny_linear/skinny_linear.h"

#include <limits>
#include <utility>

#include "core/checked.h"
#include "gsa/error.h"
#include "kernels/common/checks.h"
#include "kernels/skinny_linear/skinny_linear_checks.h"
#include "kernels/skinny_linear/skinny_linear_plan.h"

namespace gsa {
namespace {

constexpr const char* kSkinnyLinear = "skinny_linear";
constexpr std::int64_t kMaxSize = 1 << 20;

}  // namespace

bool skinny_linear_takes(std::int64_t rows, std::int64_t size, bool norm, std::int64_t shared_memory) {
  if (rows < 0 || rows > kMaxSkinnyRows || size < 16 || size > kMaxSize || size % 16 != 0) return false;
  return cuda::skinny::Layout(rows, size, norm).bytes <= shared_memory;
}

bool check_skinny_linear(const SkinnyLinearArgs& args, std::int64_t shared_memory) {
  const auto in_range = [](const char* argument, const char* what, std::int64_t value, std::int64_t low,
                           std::int64_t high) {
    if (value < low || value > high) {
      bad_argument(kSkinnyLinear, argument, concat(low, " to ", high, " ", what), concat(value));
    }
  };
  in_range("x", "rows", args.rows, 0, kMaxSkinnyRows);
  in_range("x", "columns", args.size, 16, kMaxSize);
  in_range("weight", "outputs", args.outputs, 0, std::numeric_limits<std::int32_t>::max() / 2);
  if (args.dtype != DType::bf16 && args.dtype != DType::f16) {
    bad_argument(kSkinnyLinear, "x", "bfloat16 or float16", name_of(args.dtype));
  }
  if (args.size % 16 != 0) bad_argument(kSkinnyLinear, "x", "a multiple of 16 columns", concat(args.size));
  if (!(args.eps >= 0)) bad_argument(kSkinnyLinear, "eps", "a number of at least 0", concat(args.eps));
  if (args.swiglu && (args.bias != nullptr || args.residual != nullptr)) {
    bad_argument(kSkinnyLinear, "swiglu", "neither bias nor residual beside it",
                 args.bias != nullptr ? "a bias" : "a residual");
  }
  if (!skinny_linear_takes(args.rows, args.size, args.norm != nullptr, shared_memory)) {
    bad_argument(kSkinnyLinear, "x",
                 concat("rows that fit in ", shared_memory, " bytes of shared memory where there is a norm"),
                 concat(args.rows, " rows of ", args.size));
  }
  if (args.rows == 0 || args.outputs == 0) return false;
  check::not_null(kSkinnyLinear, "x", args.x);
  check::not_null(kSkinnyLinear, "weight", args.weight);
  check::not_null(kSkinnyLinear, "y", args.y);
  // Copies move 16 bytes and more; the others are read and written one by one.
  const std::pair<const char*, const void*> copied[] = {
      {"x", args.x}, {"norm", args.norm}, {"weight", args.weight}};
  for (const auto& [name, pointer] : copied) {
    const std::uintptr_t rest = reinterpret_cast<std::uintptr_t>(pointer) % 16;
    if (rest != 0)
      bad_argument(kSkinnyLinear, name, "an address that is a multiple of 16", concat(rest, " more"));
  }
  return true;
}

}  // namespace gsa
