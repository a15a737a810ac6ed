#include "cuda_call.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "kernels/common/cuda_check.h"

namespace gsa::testing {
namespace {

constexpr unsigned char kFill = 0xff;  // NaN in every type

std::size_t guard_bytes() {
  static const std::size_t bytes = std::getenv("GSA_TEST_EXACT") != nullptr ? 0 : 1024;
  return bytes;
}

// Work on the default stream would not wait for this one: an operator that forgets its stream shows.
cudaStream_t stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    return made;
  }();
  return stream;
}

// Blocks wait here for the next call that wants the same size: cudaMalloc is slow.
std::map<std::size_t, std::vector<char*>>& pool() {
  static std::map<std::size_t, std::vector<char*>> blocks;
  return blocks;
}

std::optional<cuda::Device>& pretended() {
  static std::optional<cuda::Device> device;
  return device;
}

bool graph_wanted = false;

std::int64_t extent(std::int64_t tokens, std::int64_t heads, std::int64_t size, std::int64_t token_stride,
                    std::int64_t head_stride) {
  if (tokens <= 0 || heads <= 0 || size <= 0) return 0;
  return (tokens - 1) * token_stride + (heads - 1) * head_stride + size;
}

}  // namespace

bool cuda_present() {
  int count = 0;
  const bool present = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();  // no device is no error that should stay
  return present;
}

void CudaCall::pretend(const cuda::Device* device) {
  pretended() = device == nullptr ? std::nullopt : std::optional(*device);
}

void CudaCall::as_graph(bool on) { graph_wanted = on; }

CudaCall::~CudaCall() {
  cudaStreamSynchronize(stream());
  for (const Block& block : blocks_) pool()[block.total].push_back(block.base);
}

CudaCall::Block CudaCall::take(std::size_t bytes, std::size_t misalignment) {
  Block block;
  block.size = bytes;
  block.total = std::max<std::size_t>(guard_bytes() + misalignment + bytes + guard_bytes(), 16);
  std::vector<char*>& waiting = pool()[block.total];
  if (waiting.empty()) {
    // Allowed also while the stream is being captured.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    cuda::check(cudaMalloc(reinterpret_cast<void**>(&block.base), block.total), "cudaMalloc");
    cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  } else {
    block.base = waiting.back();
    waiting.pop_back();
  }
  block.data = block.base + guard_bytes() + misalignment;
  if (guard_bytes() > 0) {
    cuda::check(cudaMemsetAsync(block.base, kFill, block.total, stream()), "cudaMemsetAsync");
  }
  return block;
}

void* CudaCall::mirror(const void* host, std::int64_t bytes, bool writable) {
  if (host == nullptr) return nullptr;
  const char* const begin = static_cast<const char*>(host);
  for (const Block& block : blocks_) {
    const char* const other = static_cast<const char*>(block.source);
    if (other != nullptr && begin >= other && begin + bytes <= other + block.size) {
      return block.data + (begin - other);
    }
  }
  Block block = take(static_cast<std::size_t>(bytes), reinterpret_cast<std::uintptr_t>(host) % 16);
  block.source = host;
  block.host = writable ? const_cast<void*>(host) : nullptr;
  blocks_.push_back(block);
  cuda::check(cudaMemcpyAsync(block.data, host, block.size, cudaMemcpyHostToDevice, stream()), "upload");
  return block.data;
}

const void* CudaCall::input(const void* host, std::int64_t bytes) { return mirror(host, bytes, false); }
void* CudaCall::output(void* host, std::int64_t bytes) { return mirror(host, bytes, true); }

ConstRows CudaCall::rows(const ConstRows& host, std::int64_t tokens, std::int64_t heads, std::int64_t size,
                         DType type) {
  const std::int64_t elements = extent(tokens, heads, size, host.token_stride, host.head_stride);
  return {input(host.data, elements * static_cast<std::int64_t>(size_of(type))), host.token_stride,
          host.head_stride};
}

Rows CudaCall::rows(const Rows& host, std::int64_t tokens, std::int64_t heads, std::int64_t size,
                    DType type) {
  const std::int64_t elements = extent(tokens, heads, size, host.token_stride, host.head_stride);
  return {output(host.data, elements * static_cast<std::int64_t>(size_of(type))), host.token_stride,
          host.head_stride};
}

void* CudaCall::allocate(std::size_t bytes) {
  blocks_.push_back(take(bytes, 0));
  return blocks_.back().data;
}

void CudaCall::check_block(const Block& block) const {
  const std::size_t begin = static_cast<std::size_t>(block.data - block.base), end = begin + block.size;
  std::vector<unsigned char> bytes(block.total, kFill);
  const auto download = [&](std::size_t from, std::size_t to) {
    cuda::check(cudaMemcpy(&bytes[from], block.base + from, to - from, cudaMemcpyDeviceToHost), "download");
  };
  if (block.source != nullptr && guard_bytes() == 0) {  // what lies around the data was never written
    download(begin, end);
  } else if (block.source != nullptr) {
    download(0, block.total);
  } else if (guard_bytes() > 0) {  // of scratch memory, which may be large, the guards
    download(0, begin);
    download(end, block.total);
  }
  for (std::size_t i = 0; i < block.total && guard_bytes() > 0; ++i) {
    if ((i < begin || i >= end) && bytes[i] != kFill) {
      const char* const kind = block.host != nullptr     ? "an output"
                               : block.source != nullptr ? "an input"
                                                         : "scratch";
      throw Error(concat("a kernel wrote ", i < begin ? begin - i : i - end + 1, " bytes ",
                         i < begin ? "before " : "past the end of ", kind, " of ", block.size, " bytes"));
    }
  }
  if (block.host != nullptr) {
    std::memcpy(block.host, &bytes[begin], block.size);
  } else if (block.source != nullptr && std::memcmp(block.source, &bytes[begin], block.size) != 0) {
    throw Error(concat("a kernel wrote into an input of ", block.size, " bytes"));
  }
}

void CudaCall::run(const std::function<void(const cuda::Context&)>& op) {
  cuda::Context context;
  context.stream = stream();
  context.workspace = this;
  context.device = pretended().value_or(cuda::current_device());
  if (graph_wanted) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda::check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      op(context);
    } catch (...) {
      cudaStreamEndCapture(stream(), &graph);
      throw;
    }
    cuda::check(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphLaunch(executable, stream()), "cudaGraphLaunch");
    cuda::check(cudaStreamSynchronize(stream()), "graph");
    cuda::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  } else {
    op(context);
    cuda::check(cudaStreamSynchronize(stream()), "the operator's kernels");
  }
  for (const Block& block : blocks_) check_block(block);
}

}  // namespace gsa::testing
