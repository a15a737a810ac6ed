#include "kernels/common/device_sequences.h"

#include <algorithm>
#include <vector>

#include "kernels/common/cuda_check.h"

namespace gsa::cuda {
namespace {

struct Words {
  static constexpr int kCount = 960;  // below the 4 KB that every device takes as parameters
  int value[kCount];
};

__global__ void write_words(Words words, int count, int* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    to[i] = words.value[i];
  }
}

}  // namespace

const int* upload_words(const int* values, std::size_t count, const Context& context) {
  int* const device = context.workspace->array<int>(count);
  for (std::size_t at = 0; at < count; at += Words::kCount) {
    Words words;
    const int part = static_cast<int>(std::min<std::size_t>(Words::kCount, count - at));
    std::copy_n(values + at, part, words.value);
    write_words<<<1, 256, 0, stream_of(context.stream)>>>(words, part, device + at);
    check_launch("write_words");
  }
  return device;
}

DeviceSequences upload(const Sequences& sequences, const Context& context) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;  // sums of two still fit an int
  if (std::max(sequences.total_queries(), sequences.total_keys()) > kMaxTokens) {
    bad_argument("sequences", "tokens",
                 concat("at most ", kMaxTokens, " queries and keys in a call on a CUDA device"),
                 concat(sequences.total_queries(), " and ", sequences.total_keys()));
  }
  DeviceSequences result;
  result.count = static_cast<int>(sequences.count);
  result.total_queries = static_cast<int>(sequences.total_queries());
  result.total_keys = static_cast<int>(sequences.total_keys());
  bool uniform = true;
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    result.longest_queries = std::max(result.longest_queries, static_cast<int>(sequences.queries(n)));
    result.longest_keys = std::max(result.longest_keys, static_cast<int>(sequences.keys(n)));
    uniform = uniform && sequences.queries(n) == sequences.queries(0) &&
              sequences.keys(n) == sequences.keys(0) &&
              sequences.first_position(n) == sequences.first_position(0);
  }
  if (sequences.count == 0) return result;
  if (uniform) {
    result.queries_each = static_cast<int>(sequences.queries(0));
    result.keys_each = static_cast<int>(sequences.keys(0));
    result.position_each = static_cast<int>(sequences.first_position(0));
    return result;
  }
  std::vector<int> table;
  table.reserve(static_cast<std::size_t>(3 * sequences.count + 2));
  for (std::int64_t n = 0; n <= sequences.count; ++n) table.push_back(static_cast<int>(sequences.q_begin[n]));
  for (std::int64_t n = 0; n <= sequences.count; ++n) table.push_back(static_cast<int>(sequences.k_begin[n]));
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    table.push_back(static_cast<int>(sequences.first_position(n)));
  }
  result.table = upload_words(table.data(), table.size(), context);
  return result;
}

const Device& current_device() {
  static thread_local Device devices[64];
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice");
  Device& known = devices[ordinal % 64];
  if (known.major != 0) return known;
  const auto attribute = [ordinal](cudaDeviceAttr name) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, name, ordinal), "cudaDeviceGetAttribute");
    return value;
  };
  Device device;
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  device.shared_memory = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  device.l2_cache = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize));
  device.minor = attribute(cudaDevAttrComputeCapabilityMinor);
  device.major = attribute(cudaDevAttrComputeCapabilityMajor);
  if (device.hopper()) {
    cudaFuncAttributes code{};
    check(cudaFuncGetAttributes(&code, write_words), "cudaFuncGetAttributes");
    constexpr int kHopperCode = 90;  // cmake/Cuda.cmake refuses 90 without the a
    if (code.ptxVersion < kHopperCode) device.major = 8, device.minor = 0;
  }
  known = device;
  return known;
}

void use_device(int ordinal) { check(cudaSetDevice(ordinal), "cudaSetDevice"); }

}  // namespace gsa::cuda
