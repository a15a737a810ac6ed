// One call of a CUDA operator on arguments that live in host memory: mirrors inputs and outputs to the
// device, lends scratch memory, and afterwards checks that nothing but the outputs was written.
//
// Around every block of device memory lies a guard, and scratch memory starts as NaN, so that reads and
// writes that miss show. GSA_TEST_EXACT=1 in the environment leaves both out: blocks are then exactly as long
// as asked for, which is what compute-sanitizer wants to see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/cuda_context.h"
#include "gsa/dtype.h"
#include "gsa/tensor_view.h"
#include "kernels/attend/attend_cuda.h"
#include "kernels/select/select_cuda.h"

namespace gsa::testing {

// Whether there is a CUDA device at all.
bool cuda_present();

class CudaCall final : public cuda::Workspace {
 public:
  CudaCall() = default;
  ~CudaCall() override;
  CudaCall(const CudaCall&) = delete;
  CudaCall& operator=(const CudaCall&) = delete;

  // Device copies, at the same address modulo 16. An input that lies in an output declared before it is that
  // output. Null stays null.
  const void* input(const void* host, std::int64_t bytes);
  void* output(void* host, std::int64_t bytes);

  template <typename T>
  const T* array(const T* host, std::int64_t count) {
    return static_cast<const T*>(input(host, count * static_cast<std::int64_t>(sizeof(T))));
  }
  template <typename T>
  T* array(T* host, std::int64_t count) {
    return static_cast<T*>(output(host, count * static_cast<std::int64_t>(sizeof(T))));
  }
  ConstRows rows(const ConstRows& host, std::int64_t tokens, std::int64_t heads, std::int64_t size,
                 DType type);
  Rows rows(const Rows& host, std::int64_t tokens, std::int64_t heads, std::int64_t size, DType type);

  void* allocate(std::size_t bytes) override;

  // Enqueues by calling op (in a CUDA graph that is then launched, where as_graph() asked for it), waits,
  // checks, and copies the outputs back.
  void run(const std::function<void(const cuda::Context&)>& op);

  // Facts about the device that operators are told, instead of the true ones. Null: the true ones.
  static void pretend(const cuda::Device* device);
  static void as_graph(bool on);

 private:
  struct Block {
    char* base = nullptr;  // of the guard before it
    char* data = nullptr;
    std::size_t size = 0;   // of the data
    std::size_t total = 0;  // of all
    void* host = nullptr;   // of an output
    const void* source = nullptr;
  };
  Block take(std::size_t bytes, std::size_t misalignment);
  void* mirror(const void* host, std::int64_t bytes, bool writable);
  void check_block(const Block& block) const;

  std::vector<Block> blocks_;
};

namespace backend {

// Where select() adds what it took, in host memory; null: nowhere.
extern cuda::SelectWork* counted_select_work;
// How attend_backward() adds.
extern cuda::Accumulation accumulation;

}  // namespace backend

}  // namespace gsa::testing
