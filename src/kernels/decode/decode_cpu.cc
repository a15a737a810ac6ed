// decode on the CPU: select, attend and gate over pages, a chunk of queries at a time, so that the mask of
// one chunk is all that exists of the selection. Nothing of the cache is copied but what the kernels pack
// anyway.
#include "kernels/decode/decode_cpu.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/gate/gate.h"
#include "kernels/select/select.h"

namespace gsa {
namespace {

// Queries that stand at a position, of one or several neighbouring sequences.
struct Chunk {
  std::int64_t first_sequence = 0;
  std::int64_t first_row = 0;  // of sequences * queries
  std::vector<std::int64_t> q_begin{0}, k_begin{0}, q_position = {};

  std::int64_t queries() const { return q_begin.back(); }
  std::int64_t longest = 0;  // keys of a sequence

  Sequences sequences() const {
    return {static_cast<std::int64_t>(q_position.size()), q_begin.data(), k_begin.data(), q_position.data()};
  }
  void add(std::int64_t position, std::int64_t count) {
    q_begin.push_back(queries() + count);
    k_begin.push_back(k_begin.back() + position + count);
    q_position.push_back(position);
    longest = std::max(longest, position + count);
  }
};

// Enough work for all threads, and a mask of at most 64 MiB.
constexpr std::int64_t kChunkQueries = 2048;
constexpr std::int64_t kChunkWords = (std::int64_t{64} << 20) / 4;

std::vector<Chunk> plan(const DecodeArgs& args) {
  std::vector<Chunk> chunks;
  std::int64_t next_row = -1;  // where the last chunk ends
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    const std::int64_t length = args.pages.length[n],
                       missing = std::max<std::int64_t>(0, args.queries - length);
    const std::int64_t max_queries =
        std::clamp<std::int64_t>(kChunkWords / (mask_words(length) + 1), 1, kChunkQueries);
    for (std::int64_t i = missing; i < args.queries;) {
      const std::int64_t count = std::min(args.queries - i, max_queries), row = n * args.queries + i;
      const std::int64_t position = length - args.queries + i;
      // A chunk goes on with the next sequence where its rows are consecutive, all of them, and there is room.
      const bool fits =
          row == next_row && i == 0 && count == args.queries &&
          chunks.back().queries() + count <= kChunkQueries &&
          (chunks.back().queries() + count) * mask_words(std::max(chunks.back().longest, length)) <=
              kChunkWords;
      if (!fits) chunks.push_back({n, row});
      chunks.back().add(position, count);
      next_row = row + count;
      i += count;
    }
  }
  return chunks;
}

ConstRows from(const ConstRows& rows, std::int64_t row, DType dtype) {
  ConstRows result = rows;
  result.data = static_cast<const char*>(rows.data) +
                row * rows.token_stride * static_cast<std::int64_t>(size_of(dtype));
  return result;
}

ConstRows pooled_rows_of(const ConstPages& pages) {
  return {pages.data, pages.token_stride, pages.head_stride, pages.page_stride};
}

// NaN in `size` elements.
void fill_nan(void* data, DType dtype, std::int64_t size) {
  const auto fill = [&](auto value) {
    for (std::int64_t i = 0; i < size; ++i) {
      std::memcpy(static_cast<char*>(data) + static_cast<std::size_t>(i) * sizeof value, &value,
                  sizeof value);
    }
  };
  switch (dtype) {
    case DType::f32:
      return fill(std::numeric_limits<float>::quiet_NaN());
    case DType::f64:
      return fill(std::numeric_limits<double>::quiet_NaN());
    case DType::bf16:
      return fill(std::uint16_t{0x7FC0});
    case DType::f16:
      return fill(std::uint16_t{0x7E00});
  }
}

DType real_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// What belongs to row `row` of the results.
char* out_at(const DecodeArgs& args, std::int64_t row, std::int64_t head) {
  return static_cast<char*>(args.out.data) + (row * args.out.token_stride + head * args.out.head_stride) *
                                                 static_cast<std::int64_t>(size_of(args.shape.dtype));
}
void* lse_at(const DecodeArgs& args, std::int64_t row) {
  if (args.lse == nullptr) return nullptr;
  return static_cast<char*>(args.lse) +
         row * args.shape.heads * static_cast<std::int64_t>(size_of(real_of(args.shape.dtype)));
}

// Queries before the start of their sequence.
void write_missing(const DecodeArgs& args) {
  for (std::int64_t n = 0; n < args.sequences; ++n) {
    for (std::int64_t i = 0; i < args.queries - args.pages.length[n]; ++i) {
      const std::int64_t row = n * args.queries + i;
      for (std::int64_t h = 0; h < args.shape.heads; ++h) {
        fill_nan(out_at(args, row, h), args.shape.dtype, args.shape.head_size);
      }
      if (args.lse != nullptr) fill_nan(lse_at(args, row), real_of(args.shape.dtype), args.shape.heads);
      if (args.k_t != nullptr) args.k_t[row] = 0;
      if (args.selected_out != nullptr) {
        std::fill_n(args.selected_out + row * args.selected_width, args.selected_width, -1);
      }
    }
  }
}

PageTable pages_of(const DecodeArgs& args, const Chunk& chunk) {
  PageTable pages = args.pages;
  pages.block_table += chunk.first_sequence * pages.blocks;
  return pages;
}

void select_chunk(const DecodeArgs& args, const Chunk& chunk, const Mask& mask, const Parallel& parallel) {
  const DType dtype = args.shape.dtype;
  select({.dtype = dtype,
          .indexer = {.heads = args.index_heads,
                      .head_size = args.index_head_size,
                      .q = from(args.index_q, chunk.first_row, dtype),
                      .k = pooled_rows_of(args.index_k),
                      .w = from(args.index_w, chunk.first_row, dtype),
                      .bias = args.index_bias,
                      .scale = args.index_scale,
                      .form = args.form,
                      .pages = pages_of(args, chunk),
                      .k_scale = args.index_k_scale,
                      .k_scale_stride = args.index_k_scale_stride},
          .budget = args.budget,
          .sequences = chunk.sequences(),
          .mask = mask,
          .k_t = args.k_t == nullptr ? nullptr : args.k_t + chunk.first_row},
         parallel);
}

// The mask of positions that were selected elsewhere, and the positions of a mask: a task for some queries each.
constexpr std::int64_t kTaskQueries = 16;

template <typename Visit>
void for_each_query(const Chunk& chunk, const Parallel& parallel, const Visit& visit) {
  const std::int64_t tasks = (chunk.queries() + kTaskQueries - 1) / kTaskQueries;
  parallel.run(tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(chunk.queries(), (task + 1) * kTaskQueries);
    for (std::int64_t query = task * kTaskQueries; query < end; ++query) visit(query);
  });
}

void set_chunk(const DecodeArgs& args, const Chunk& chunk, const Mask& mask, const Parallel& parallel) {
  for_each_query(chunk, parallel, [&](std::int64_t query) {
    const std::int64_t row = chunk.first_row + query;
    std::uint32_t* const words = mask.words + query * mask.words_per_query;
    std::fill_n(words, mask.words_per_query, 0u);
    const std::int32_t* const positions = args.selected + row * args.selected_width;
    for (std::int32_t j = 0; j < args.selected_k[row]; ++j) {
      words[positions[j] / 32] |= std::uint32_t{1} << positions[j] % 32;
    }
    if (args.k_t != nullptr) args.k_t[row] = args.selected_k[row];
  });
}

void list_chunk(const DecodeArgs& args, const Chunk& chunk, const Mask& mask, const Parallel& parallel) {
  for_each_query(chunk, parallel, [&](std::int64_t query) {
    const std::uint32_t* const words = mask.words + query * mask.words_per_query;
    std::int32_t* to = args.selected_out + (chunk.first_row + query) * args.selected_width;
    std::int32_t* const end = to + args.selected_width;
    for (std::int64_t w = 0; w < mask.words_per_query; ++w) {
      for (std::uint32_t word = words[w]; word != 0; word &= word - 1) {
        *to++ = static_cast<std::int32_t>(32 * w + std::countr_zero(word));
      }
    }
    std::fill(to, end, -1);
  });
}

// Without an indexer every visible key is read.
void count_visible(const DecodeArgs& args, const Chunk& chunk) {
  if (args.k_t == nullptr) return;
  for (std::size_t n = 0; n < chunk.q_position.size(); ++n) {
    for (std::int64_t i = 0; i < chunk.q_begin[n + 1] - chunk.q_begin[n]; ++i) {
      args.k_t[chunk.first_row + chunk.q_begin[n] + i] =
          static_cast<std::int32_t>(chunk.q_position[n] + i + 1);
    }
  }
}

}  // namespace

void decode_cpu(const DecodeArgs& args, const Parallel& parallel) {
  const DType dtype = args.shape.dtype;
  write_missing(args);
  std::vector<std::uint32_t> words;
  for (const Chunk& chunk : plan(args)) {
    Mask mask;
    if (!is_dense(args)) {
      mask.words_per_query = mask_words(chunk.longest);
      words.resize(static_cast<std::size_t>(chunk.queries() * mask.words_per_query));
      mask.words = words.data();
      if (args.selected != nullptr) {
        set_chunk(args, chunk, mask, parallel);
      } else {
        select_chunk(args, chunk, mask, parallel);
        if (args.selected_out != nullptr) list_chunk(args, chunk, mask, parallel);
      }
    } else {
      count_visible(args, chunk);
    }
    const Rows out = {out_at(args, chunk.first_row, 0), args.out.token_stride, args.out.head_stride};
    attend({.shape = args.shape,
            .q = from(args.q, chunk.first_row, dtype),
            .k = pooled_rows_of(args.k),
            .v = pooled_rows_of(args.v),
            .mask = mask,
            .sequences = chunk.sequences(),
            .pages = pages_of(args, chunk),
            .out = out,
            .lse = lse_at(args, chunk.first_row)},
           parallel);
    if (args.gate.data == nullptr) continue;
    // The result is rounded to its type first, as it is where gate follows attend: the same bits.
    gate({.shape = {.dtype = dtype,
                    .tokens = chunk.queries(),
                    .heads = args.shape.heads,
                    .head_size = args.shape.head_size,
                    .head_wise = args.head_wise},
          .x = out,
          .z = from(args.gate, chunk.first_row, dtype),
          .y = out},
         parallel);
  }
}

}  // namespace gsa
