// The memory of inference: keys, gated values and indexer keys of all tokens of all sequences, in pages. One
// page table serves the three.
//
//   per layer   k, v      [pages, page_size, kv_heads, head_size]
//               index_k   [pages, page_size, index_head_size]     where the layer has an indexer
//
// Memory is accounted for before it is taken: a byte budget is set once, and what does not fit is refused
// with the numbers, before anything has changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "infer/core/cache_shape.h"
#include "infer/core/page_pool.h"
#include "nn/torch.h"
#include "torch/ops.h"

namespace gsa::infer {

struct CacheUse {
  std::int64_t tokens = 0;           // that the pages in use have room for, shared ones counted once
  std::int64_t bytes = 0;            // of the pages in use
  std::int64_t taken = 0;            // bytes of memory held, unused pages included
  std::int64_t budget = 0;           // bytes that may be held at most
  std::int64_t bytes_per_token = 0;  // of all layers
};

class Cache {
 public:
  // budget: bytes that the pages may take; absent: nine tenths of what is available now.
  Cache(const CacheShape& shape, const at::Device& device, std::optional<std::int64_t> budget = std::nullopt);

  const CacheShape& shape() const { return shape_; }
  const at::Device& device() const { return device_; }
  CacheUse use() const;

  Sequence start() const { return Sequence(pool_); }

  struct Growth {
    Sequence* sequence = nullptr;
    std::int64_t tokens = 0;  // more
  };
  // Pages for that many more tokens of each sequence, none of them shared where they will be written. All or
  // nothing: throws gsa::Error with the numbers where the budget does not suffice. A sequence's length stays.
  void reserve(std::span<const Growth> growth);
  // How many tokens more one new sequence could have.
  std::int64_t room() const;

  // Where positions begin .. begin + count - 1 of a sequence lie, as page * page_size + row; appended to
  // slots. Pages must be reserved.
  void slots(const Sequence& sequence, std::int64_t begin, std::int64_t count,
             std::vector<std::int64_t>& slots) const;

  // Rows [T, ...] of a layer into the slots (int64 [T], on the device). index_k: where the shape has it.
  void write(std::int64_t layer, const at::Tensor& slots, const at::Tensor& k, const at::Tensor& v,
             const std::optional<at::Tensor>& index_k);
  // Tokens whose rows have been written in all layers become part of the sequence.
  void append(Sequence& sequence, std::span<const std::int64_t> tokens) const;

  // The pages of a layer, as gsa::decode takes them; block table and lengths are the caller's.
  ops::PagedCache pages(std::int64_t layer) const;

  struct Rows {
    at::Tensor k, v;     // [T, kv_heads, head_size]
    at::Tensor index_k;  // [T, index_head_size]; undefined where there is none
  };
  // Rows of a layer out of the slots (int64 [T], on the device), 8-bit indexer keys as numbers again.
  Rows read(std::int64_t layer, const at::Tensor& slots) const;

  // Changes whenever the pages have moved in memory: what holds their addresses must be made anew.
  std::int64_t generation() const { return generation_; }

  // One sequence as a file (infer/core/cache_file.h). model: a fingerprint of the weights; a file of another
  // model, another shape or type, or one that is not whole is refused, and the cache stays as it was.
  void save(const Sequence& sequence, const std::filesystem::path& path, std::uint32_t model) const;
  Sequence load(const std::filesystem::path& path, std::uint32_t model);

 private:
  struct Layer {
    at::Tensor k, v, index_k, index_scale;
  };
  void grow(std::int64_t pages);
  void make_private(Sequence& sequence, std::int64_t block);
  [[noreturn]] void refuse(std::int64_t tokens, std::int64_t pages) const;

  CacheShape shape_;
  at::Device device_;
  std::int64_t budget_ = 0;
  std::int64_t generation_ = 0;
  std::shared_ptr<PagePool> pool_;
  std::vector<Layer> layers_;
};

}  // namespace gsa::infer
