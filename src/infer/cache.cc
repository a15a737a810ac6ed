#include "infer/cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gsa/error.h"
#include "infer/core/cache_file.h"
#include "infer/reserved_zeros.h"
#include "torch/device_memory.h"
#include "torch/tensor_checks.h"

namespace gsa::infer {
namespace {

using at::Tensor;

constexpr const char* kCacheOp = "infer::Cache";
constexpr std::int64_t kSpare = 16;  // pages

std::int64_t available_memory(const at::Device& device) {
  const std::optional<MemoryRoom> room = binding::device_memory_room(device);
  if (room) return room->bytes;
  throw Error(
      "gsa::infer: expected /proc/meminfo to say how much memory is available, got nothing; set the "
      "cache's budget instead (cache_bytes)");
}

}  // namespace

Cache::Cache(const CacheShape& shape, const at::Device& device, std::optional<std::int64_t> budget)
    : shape_(shape), device_(device), pool_(std::make_shared<PagePool>(shape.page_size)) {
  shape_.validate();
  if (budget && *budget < 2 * shape_.bytes_per_page()) {
    bad_argument(kCacheOp, "budget",
                 concat("at least two pages, ", format_bytes(2 * shape_.bytes_per_page())),
                 format_bytes(*budget));
  }
  budget_ = budget.value_or(available_memory(device) / 10 * 9);
  layers_.resize(static_cast<std::size_t>(shape_.layers));
  // The first page is nobody's: on a GPU the unused rows of a captured batch are written there.
  grow(1);
  pool_->take();
}

CacheUse Cache::use() const {
  const std::int64_t pages = pool_->in_use() - 1;
  return {.tokens = pages * shape_.page_size,
          .bytes = pages * shape_.bytes_per_page(),
          .taken = pool_->capacity() * shape_.bytes_per_page(),
          .budget = budget_,
          .bytes_per_token = shape_.bytes_per_token()};
}

std::int64_t Cache::room() const {
  const std::int64_t limit = budget_ / shape_.bytes_per_page();
  return std::max<std::int64_t>(limit - pool_->in_use(), 0) * shape_.page_size;
}

void Cache::refuse(std::int64_t tokens, std::int64_t pages) const {
  const CacheUse now = use();
  throw Error(concat(kCacheOp, ": expected at most ", room(), " tokens more (", format_bytes(budget_),
                     " for the cache, of which ", format_bytes(now.bytes), " are in use; ",
                     format_bytes(shape_.bytes_per_token()), " a token), got ", tokens,
                     " tokens, which need ", format_bytes(pages * shape_.bytes_per_page()),
                     ": shorten the prompt, set fewer new tokens, raise the cache's budget, or choose a "
                     "smaller type"));
}

// A quarter more pages than before or as many as are needed, whichever is more, within the budget. On a CPU they take
// their place in space that was reserved for all, so that no text waits while others are moved; what memory they will
// touch is asked for first, as the system would not refuse it later. Elsewhere pages move, a few times only for a
// sequence that grows token by token, and one layer after another, so that at most one is there twice.
void Cache::grow(std::int64_t pages) {
  const std::int64_t limit = budget_ / shape_.bytes_per_page();
  const std::int64_t before = pool_->capacity();
  std::int64_t capacity = std::max(pages, std::min(before + before / 4 + kSpare, limit));
  if (device_.is_cpu()) {
    const std::optional<MemoryRoom> room = binding::device_memory_room(device_);
    const auto bytes = [&](std::int64_t count) { return (count - before) * shape_.bytes_per_page(); };
    if (room && bytes(capacity) > room->bytes) capacity = pages;
    if (room && bytes(pages) > room->bytes) {
      throw Error(concat(kCacheOp, ": expected ", format_bytes(bytes(pages)), " of memory for ",
                         (pages - before) * shape_.page_size, " tokens more, got ", format_bytes(room->bytes),
                         " that ", room->bound,
                         " has left: free some, or set a smaller budget for the cache"));
    }
  }
  const auto options = torch::dtype(binding::scalar_type(shape_.dtype)).device(device_);
  bool moved = false;
  const auto grown = [&](Tensor& old, std::vector<std::int64_t> sizes, const at::TensorOptions& type) {
    if (old.defined() && old.size(0) >= capacity) return;
    sizes.insert(sizes.begin(), {limit, shape_.page_size});
    if (!old.defined() && device_.is_cpu()) {
      if (std::optional<Tensor> zeros = reserved_zeros(sizes, type.dtype().toScalarType())) {
        old = *std::move(zeros);
        return;
      }
    }
    sizes[0] = capacity;
    Tensor next = torch::empty(sizes, type);
    if (before > 0) next.narrow(0, 0, before).copy_(old);
    // What a new page holds is never used, and must not be NaN where a kernel loads more than it needs.
    next.narrow(0, before, capacity - before).zero_();
    old = next;
    moved = true;
  };
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    Layer& layer = layers_[n];
    grown(layer.k, {shape_.kv_heads, shape_.head_size}, options);
    grown(layer.v, {shape_.kv_heads, shape_.head_size}, options);
    if (!shape_.has_index(static_cast<std::int64_t>(n))) continue;
    grown(layer.index_k, {shape_.index_head_size}, shape_.index_int8 ? options.dtype(at::kChar) : options);
    if (shape_.index_int8) grown(layer.index_scale, {}, options.dtype(at::kFloat));
  }
  pool_->grow(capacity);
  if (moved) ++generation_;
}

void Cache::make_private(Sequence& sequence, std::int64_t block) {
  std::int32_t& page = sequence.pages_[static_cast<std::size_t>(block)];
  if (pool_->users(page) == 1) return;
  const std::int32_t copy = pool_->take();
  for (const Layer& layer : layers_) {
    for (const Tensor& pages : {layer.k, layer.v, layer.index_k, layer.index_scale}) {
      if (pages.defined()) pages.select(0, copy).copy_(pages.select(0, page));
    }
  }
  pool_->release(page);
  page = copy;
}

void Cache::reserve(std::span<const Growth> growth) {
  std::int64_t needed = 0, tokens = 0;
  const auto last_shared = [&](const Sequence& s) {
    // A page that is partly filled will be written on.
    return s.length() % shape_.page_size != 0 &&
           pool_->users(s.pages_[static_cast<std::size_t>(s.length() / shape_.page_size)]) > 1;
  };
  for (const Growth& g : growth) {
    const Sequence& s = *g.sequence;
    if (s.pool_ != pool_) bad_argument(kCacheOp, "sequence", "one of this cache", "one of another");
    if (g.tokens < 0) bad_argument(kCacheOp, "tokens", "a number of tokens", concat(g.tokens));
    tokens += g.tokens;
    const auto held = static_cast<std::int64_t>(s.pages_.size());
    needed += std::max<std::int64_t>(shape_.pages_for(s.length() + g.tokens) - held, 0);
    if (g.tokens > 0 && last_shared(s)) ++needed;
  }
  if (needed > budget_ / shape_.bytes_per_page() - pool_->in_use()) refuse(tokens, needed);
  if (needed > pool_->available()) grow(pool_->in_use() + needed);
  for (const Growth& g : growth) {
    Sequence& s = *g.sequence;
    if (g.tokens > 0 && last_shared(s)) make_private(s, s.length() / shape_.page_size);
    while (static_cast<std::int64_t>(s.pages_.size()) < shape_.pages_for(s.length() + g.tokens)) {
      s.pages_.push_back(pool_->take());
    }
  }
}

void Cache::slots(const Sequence& sequence, std::int64_t begin, std::int64_t count,
                  std::vector<std::int64_t>& slots) const {
  const std::int64_t size = shape_.page_size;
  for (std::int64_t s = begin; s < begin + count; ++s) {
    slots.push_back(sequence.pages_[static_cast<std::size_t>(s / size)] * size + s % size);
  }
}

void Cache::append(Sequence& sequence, std::span<const std::int64_t> tokens) const {
  sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
}

void Cache::write(std::int64_t n, const Tensor& slots, const Tensor& k, const Tensor& v,
                  const std::optional<Tensor>& index_k) {
  const Layer& layer = layers_[static_cast<std::size_t>(n)];
  layer.k.flatten(0, 1).index_copy_(0, slots, k);
  layer.v.flatten(0, 1).index_copy_(0, slots, v);
  if (!layer.index_k.defined()) return;
  if (shape_.index_int8) {
    const ops::QuantizedKeys keys = ops::quantize_index_keys(*index_k);
    layer.index_k.flatten(0, 1).index_copy_(0, slots, keys.values);
    layer.index_scale.flatten(0, 1).index_copy_(0, slots, keys.scale);
  } else {
    layer.index_k.flatten(0, 1).index_copy_(0, slots, *index_k);
  }
}

ops::PagedCache Cache::pages(std::int64_t n) const {
  const Layer& layer = layers_[static_cast<std::size_t>(n)];
  ops::PagedCache pages;
  pages.k = layer.k;
  pages.v = layer.v;
  if (layer.index_k.defined()) pages.index_k = layer.index_k;
  if (layer.index_scale.defined()) pages.index_k_scale = layer.index_scale;
  return pages;
}

Cache::Rows Cache::read(std::int64_t n, const Tensor& slots) const {
  const Layer& layer = layers_[static_cast<std::size_t>(n)];
  const auto rows = [&](const Tensor& pages) { return pages.flatten(0, 1).index_select(0, slots); };
  Rows result{.k = rows(layer.k), .v = rows(layer.v), .index_k = {}};
  if (!layer.index_k.defined()) return result;
  result.index_k = rows(layer.index_k);
  if (shape_.index_int8) {
    const Tensor keys = result.index_k.to(at::kFloat) * rows(layer.index_scale).unsqueeze(1);
    result.index_k = keys.to(layer.k.scalar_type());
  }
  return result;
}

void Cache::save(const Sequence& sequence, const std::filesystem::path& path, std::uint32_t model) const {
  if (sequence.pool_ != pool_) bad_argument(kCacheOp, "sequence", "one of this cache", "one of another");
  if (sequence.length() == 0) bad_argument(kCacheOp, "sequence", "at least one token to save", "none");
  std::vector<std::int64_t> places;
  slots(sequence, 0, sequence.length(), places);
  const Tensor index = torch::tensor(at::ArrayRef<std::int64_t>(places), at::kLong).to(device_);
  std::map<std::string, Tensor> pools;
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    const auto layer = static_cast<std::int64_t>(n);
    pools[layer_tensor(layer, "k")] = layers_[n].k;
    pools[layer_tensor(layer, "v")] = layers_[n].v;
    pools[layer_tensor(layer, "index_k")] = layers_[n].index_k;
    pools[layer_tensor(layer, "index_scale")] = layers_[n].index_scale;
  }
  Tensor held;  // the bytes at hand; one tensor at a time
  write_cache_file(path, shape_, model, sequence.tokens(), [&](const std::string& name) {
    held = pools.at(name).flatten(0, 1).index_select(0, index).cpu();
    return std::span(static_cast<const std::byte*>(held.const_data_ptr()), held.nbytes());
  });
}

Sequence Cache::load(const std::filesystem::path& path, std::uint32_t model) {
  const MappedFile mapped(path);
  const CacheFile file = parse_cache_file(mapped.bytes(), path.string());
  check_fits(file, shape_, model, path.string());
  const auto count = static_cast<std::int64_t>(file.tokens.size());
  Sequence sequence = start();
  const Growth growth{&sequence, count};
  reserve({&growth, 1});
  std::vector<std::int64_t> places;
  slots(sequence, 0, count, places);
  const Tensor index = torch::tensor(at::ArrayRef<std::int64_t>(places), at::kLong).to(device_);
  const auto fill = [&](Tensor& pages, const std::string& name) {
    if (!pages.defined()) return;
    const std::span<const std::byte> bytes = file.rows.at(name);
    Tensor all = pages.flatten(0, 1);
    std::vector<std::int64_t> sizes = all.sizes().vec();
    sizes[0] = count;
    // A copy, because a file's bytes need not be aligned.
    const Tensor rows = torch::empty(sizes, torch::dtype(pages.scalar_type()));
    std::memcpy(rows.mutable_data_ptr(), bytes.data(), bytes.size());
    all.index_copy_(0, index, rows.to(device_));
  };
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    const auto layer = static_cast<std::int64_t>(n);
    fill(layers_[n].k, layer_tensor(layer, "k"));
    fill(layers_[n].v, layer_tensor(layer, "v"));
    fill(layers_[n].index_k, layer_tensor(layer, "index_k"));
    fill(layers_[n].index_scale, layer_tensor(layer, "index_scale"));
  }
  append(sequence, file.tokens);
  return sequence;
}

}  // namespace gsa::infer
