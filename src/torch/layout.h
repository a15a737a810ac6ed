// How tokens lie in tensors: batched [B, L, ...] against [B, S, ...], or packed [T, ...] with cu_seqlens.
#pragma once

#include <vector>

#include "gsa/tensor_view.h"
#include "torch/tensor_checks.h"

namespace gsa::binding {

// The layout arguments that every operator over sequences takes.
struct LayoutTensors {
  const OptTensor& cu_seqlens_q;  // int64 or int32 [sequences + 1], CPU; with it tensors are packed
  const OptTensor& cu_seqlens_k;  // as cu_seqlens_q, for keys
  const OptTensor& q_position;    // int64 or int32 [sequences], CPU; absent: the last query sees the last key

  bool packed() const { return cu_seqlens_q.has_value() || cu_seqlens_k.has_value(); }
  // Dimensions that stand for tokens at the front of every tensor.
  std::int64_t token_dims() const { return packed() ? 1 : 2; }
};

// Sequences with the vectors they point into.
struct SequenceTable {
  std::vector<std::int64_t> q_begin{0};
  std::vector<std::int64_t> k_begin{0};
  std::vector<std::int64_t> q_position;

  void add(std::int64_t queries, std::int64_t keys, std::int64_t position);
  Sequences view() const;
};

struct TokenLayout {
  Shape q_tokens;                 // {B, L} or {T}: the front of every tensor with one entry a query
  Shape k_tokens;                 // {B, S} or {T'}
  std::int64_t longest_keys = 0;  // of one sequence
  SequenceTable table;
  at::Device device = at::kCPU;  // that the call runs on

  std::int64_t queries() const { return table.q_begin.back(); }
  std::int64_t keys() const { return table.k_begin.back(); }
};

// Reads the layout off q and k, whose ranks are already checked, and checks it: monotone cu_seqlens that end
// at the tensors' lengths, every query at a position that has a key, nothing beyond 31 bits.
TokenLayout read_layout(const char* op, const char* q_name, const Tensor& q, const char* k_name,
                        const Tensor& k, const LayoutTensors& tensors);

// The numbers of a rank-1 int64 or int32 tensor on the CPU.
std::vector<std::int64_t> integers(const char* op, const char* argument, const Tensor& tensor);

// {tokens..., tail...}
Shape joined(const Shape& tokens, std::initializer_list<std::int64_t> tail);

}  // namespace gsa::binding
