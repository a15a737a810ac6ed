#include "torch/layout.h"

#include "core/checked.h"
#include "gsa/error.h"

namespace gsa::binding {

std::vector<std::int64_t> integers(const char* op, const char* argument, const Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    bad_argument(op, argument, "a tensor on cpu, where offsets, positions and tiles stay beside any device",
                 tensor.device().str());
  }
  check_rank(op, argument, tensor, 1, "[n]");
  if (tensor.scalar_type() != at::kLong && tensor.scalar_type() != at::kInt) {
    bad_argument(op, argument, "int64 or int32", c10::toString(tensor.scalar_type()));
  }
  check_range(op, argument, "a number of entries", tensor.numel(), 0, kMaxSequences + 1);
  const Tensor values = tensor.to(at::kLong).contiguous();
  const std::int64_t* data = values.const_data_ptr<std::int64_t>();
  return {data, data + values.numel()};
}

namespace {

std::vector<std::int64_t> cumulative(const char* op, const char* argument, const Tensor& tensor,
                                     std::int64_t tokens) {
  std::vector<std::int64_t> begin = integers(op, argument, tensor);
  if (begin.empty() || begin.front() != 0) {
    bad_argument(op, argument, "a first entry 0", begin.empty() ? "no entry" : concat(begin.front()));
  }
  for (std::size_t n = 1; n < begin.size(); ++n) {
    if (begin[n] < begin[n - 1]) {
      bad_argument(op, argument, "entries that do not decrease",
                   concat(begin[n - 1], " before ", begin[n], " at entry ", n));
    }
  }
  if (begin.back() != tokens) {
    bad_argument(op, argument, concat("a last entry equal to the number of tokens, ", tokens),
                 concat(begin.back()));
  }
  return begin;
}

std::vector<std::int64_t> evenly(std::int64_t count, std::int64_t length) {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(count) + 1);
  for (std::size_t n = 0; n < begin.size(); ++n) begin[n] = static_cast<std::int64_t>(n) * length;
  return begin;
}

// The number of tokens in the leading dimensions, within what kernels can count.
std::int64_t count_tokens(const char* op, const char* argument, const Tensor& tensor,
                          std::int64_t token_dims) {
  const std::int64_t tokens =
      token_dims == 1 ? tensor.size(0) : checked_mul(tensor.size(0), tensor.size(1), op, argument);
  check_range(op, argument, "a number of tokens", tokens, 0, kMaxTokens);
  return tokens;
}

void read_packed(const char* op, std::int64_t queries, std::int64_t keys, const LayoutTensors& tensors,
                 SequenceTable& table) {
  if (!tensors.cu_seqlens_q) bad_argument(op, "cu_seqlens_q", "a tensor, as cu_seqlens_k is given", "None");
  if (!tensors.cu_seqlens_k) bad_argument(op, "cu_seqlens_k", "a tensor, as cu_seqlens_q is given", "None");
  table.q_begin = cumulative(op, "cu_seqlens_q", *tensors.cu_seqlens_q, queries);
  table.k_begin = cumulative(op, "cu_seqlens_k", *tensors.cu_seqlens_k, keys);
  if (table.k_begin.size() != table.q_begin.size()) {
    bad_argument(op, "cu_seqlens_k", concat(table.q_begin.size(), " entries, as cu_seqlens_q has"),
                 concat(table.k_begin.size(), " entries"));
  }
}

// Where the first query of each sequence stands. A sequence needs a key for each query: a query sees itself.
void read_positions(const char* op, const char* k_name, const LayoutTensors& tensors, SequenceTable& table) {
  const Sequences sequences = table.view();  // without positions as yet
  const bool given = tensors.q_position.has_value();
  std::vector<std::int64_t> positions;
  if (given) {
    positions = integers(op, "q_position", *tensors.q_position);
    if (static_cast<std::int64_t>(positions.size()) != sequences.count) {
      bad_argument(op, "q_position", concat(sequences.count, " entries, one a sequence"),
                   concat(positions.size(), " entries"));
    }
  }
  for (std::int64_t n = 0; n < sequences.count; ++n) {
    const std::int64_t queries = sequences.queries(n), keys = sequences.keys(n);
    if (!given) {
      if (queries > keys) {
        bad_argument(op, k_name, concat("at least as many keys as queries (", queries, ") in sequence ", n),
                     concat(keys));
      }
      positions.push_back(keys - queries);
      continue;
    }
    const std::int64_t position = positions[static_cast<std::size_t>(n)];
    if (position < 0 || position > keys - queries) {
      bad_argument(op, "q_position",
                   concat("0 <= position and position + queries <= keys in sequence ", n, " (", queries,
                          " queries, ", keys, " keys)"),
                   concat(position));
    }
  }
  table.q_position = std::move(positions);
}

}  // namespace

void SequenceTable::add(std::int64_t queries, std::int64_t keys, std::int64_t position) {
  q_begin.push_back(q_begin.back() + queries);
  k_begin.push_back(k_begin.back() + keys);
  q_position.push_back(position);
}

Sequences SequenceTable::view() const {
  return {static_cast<std::int64_t>(q_begin.size()) - 1, q_begin.data(), k_begin.data(), q_position.data()};
}

TokenLayout read_layout(const char* op, const char* q_name, const Tensor& q, const char* k_name,
                        const Tensor& k, const LayoutTensors& tensors) {
  const std::int64_t token_dims = tensors.token_dims();
  const std::int64_t queries = count_tokens(op, q_name, q, token_dims);
  const std::int64_t keys = count_tokens(op, k_name, k, token_dims);
  TokenLayout layout;
  layout.device = q.device();
  layout.q_tokens = q.sizes().slice(0, static_cast<std::size_t>(token_dims)).vec();
  layout.k_tokens = k.sizes().slice(0, static_cast<std::size_t>(token_dims)).vec();
  if (tensors.packed()) {
    read_packed(op, queries, keys, tensors, layout.table);
  } else {
    const std::int64_t batch = q.size(0);
    if (k.size(0) != batch) bad_argument(op, k_name, concat("batch size ", batch), concat(k.size(0)));
    check_range(op, q_name, "a batch size", batch, 0, kMaxSequences);
    layout.table.q_begin = evenly(batch, q.size(1));
    layout.table.k_begin = evenly(batch, k.size(1));
  }
  read_positions(op, k_name, tensors, layout.table);
  // An empty batch still has a key length, and with it the width of its mask.
  layout.longest_keys = tensors.packed() ? layout.table.view().longest_keys() : k.size(1);
  return layout;
}

Shape joined(const Shape& tokens, std::initializer_list<std::int64_t> tail) {
  Shape shape = tokens;
  shape.insert(shape.end(), tail);
  return shape;
}

}  // namespace gsa::binding
