// Sequences as kernels see them. Uniform batches (every sequence of one shape) travel as numbers; other
// tables are written into the workspace by a kernel that carries them as its parameter: no host memory has to
// outlive the call, nothing waits, and a CUDA graph can hold it.
#pragma once

#include <cstdint>

#include "core/cuda_context.h"
#include "gsa/tensor_view.h"
#include "kernels/common/host_device.h"

namespace gsa::cuda {

struct DeviceSequences {
  int count = 0;
  int queries_each = 0, keys_each = 0, position_each = 0;  // of a uniform batch
  const int* table = nullptr;  // else [q_begin (count+1), k_begin (count+1), position]
  int total_queries = 0, total_keys = 0;
  int longest_queries = 0, longest_keys = 0;

  GSA_DEVICE int q_begin(int n) const { return table == nullptr ? n * queries_each : table[n]; }
  GSA_DEVICE int k_begin(int n) const { return table == nullptr ? n * keys_each : table[count + 1 + n]; }
  GSA_DEVICE int queries(int n) const { return table == nullptr ? queries_each : table[n + 1] - table[n]; }
  GSA_DEVICE int keys(int n) const {
    return table == nullptr ? keys_each : table[count + 2 + n] - table[count + 1 + n];
  }
  GSA_DEVICE int first_position(int n) const {
    return table == nullptr ? position_each : table[2 * count + 2 + n];
  }
  // The sequence that query row t (of all queries) belongs to.
  GSA_DEVICE int sequence_of(int t) const {
    if (table == nullptr) return t / queries_each;
    int low = 0, high = count - 1;  // the last n with q_begin(n) <= t
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (table[middle] <= t) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// Numbers that the host knows, in device memory, the same way.
const int* upload_words(const int* values, std::size_t count, const Context& context);

// May enqueue copies on the context's stream.
DeviceSequences upload(const Sequences& sequences, const Context& context);

}  // namespace gsa::cuda
