// p on Hopper: the work of generic/target.cuh with wgmma, blocks that stay, and warps that only copy.
//
// A block walks over (tile of queries, 256 entries) pairs. Four producer warps copy the keys of one key/value
// head at a time (two buffers) and the queries in steps of 64 rows (three or four stages); two consumer
// warpgroups have 128 of the entries each and alternate: while one multiplies, the other takes the
// exponentials of its last product. p is summed over the heads in registers.
#pragma once

#include "kernels/common/cuda_check.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/indexer_kl/cuda/device.cuh"

namespace gsa::cuda::kl {

template <int kSize, bool kListed>
struct HopperTarget {
  static constexpr int kQueries = tile_queries(kListed);
  static constexpr int kProducers = 128, kConsumers = 2, kThreads = kProducers + 128 * kConsumers;
  static constexpr int kColumns = 128;  // entries of a consumer
  static constexpr int kEntries = kConsumers * kColumns;
  static constexpr int kRows = 64;  // of a step
  static constexpr int kStepHeads = kRows / kQueries;
  static constexpr int kStages = kListed ? 3 : 4;
  static constexpr int kPanels = kSize / 64;
  static constexpr int kKeyPanel = kEntries * 128, kRowPanel = kRows * 128;

  struct Memory {
    alignas(1024) unsigned char keys[2][kPanels * kKeyPanel];
    alignas(1024) unsigned char rows[kStages][kPanels * kRowPanel];
    // Listed: what the warps of the second head of a step add to those of the first.
    float exchange[kListed ? kConsumers : 0][kListed ? kColumns / 2 : 0][kListed ? 64 : 0];
    float lse[kStages][kRows];
    int entries[2][kEntries];  // the keys of this pair and of the one before
    // A step is full when its rows and all that was copied before them are there, which includes its keys.
    std::uint64_t keys_empty[2], rows_full[kStages], rows_empty[kStages];
  };
  static constexpr int kBytes = static_cast<int>(sizeof(Memory)) + 1024;  // to align it
};

// Where a ring of buffers stands: a buffer, and how often it has been around.
template <int kCount>
struct Ring {
  int at = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++at == kCount) at = 0, phase ^= 1;
  }
};

// Rows beyond a tile's queries, entries beyond its list and heads beyond a group are copies of the last one:
// what is computed from them goes nowhere, and no copy needs a condition of its own.
template <typename T, int kSize, bool kListed>
struct TargetProducer {
  using Shape = HopperTarget<kSize, kListed>;
  static constexpr int kChunks = kSize / 8, kRowsAtOnce = Shape::kProducers / kChunks;
  static constexpr int kRowsEach = Shape::kRows / kRowsAtOnce;

  const Attention& attention;
  const Chunk& chunk;
  typename Shape::Memory& memory;
  Ring<2> keys;
  Ring<Shape::kStages> steps;
  int item = 0;
  // Listed: keys of the block's next item, asked for while this one is copied.
  static constexpr int kAhead = kListed ? Shape::kEntries / Shape::kProducers : 1;
  int ahead[kAhead];

  // Asks for the keys of an item; what lies behind the entries of its slot is room, and not used.
  __device__ __forceinline__ void fetch(int next, int items) {
    if constexpr (kListed) {
      if (next >= items) return;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        ahead[i] = chunk.keys[static_cast<std::int64_t>(next) * Shape::kEntries + i * Shape::kProducers +
                              static_cast<int>(threadIdx.x)];
      }
    }
  }

  // 16 bytes of a row, or zeros beyond its end.
  static __device__ __forceinline__ void copy(std::uint32_t to, const char* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }

  // Entries first_entry .. of the split. Listed: the item that comes next, of how many.
  __device__ __forceinline__ void run(const Split& split, int first_entry, int next, int items) {
    const UnionTile& tile = split.tile;
    const int thread = static_cast<int>(threadIdx.x), part = thread % kChunks, first = thread / kChunks;
    // Rows of a thread differ by a multiple of eight, which leaves the swizzle as it is.
    const std::uint32_t swizzled = hopper::swizzled(first, part % 8);
    const int bytes = 8 * part < attention.q.size ? 16 : 0, column = bytes > 0 ? 8 * part : 0;

    int* const entries = memory.entries[item & 1];
    if constexpr (kListed) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = thread + i * Shape::kProducers;
        if (first_entry + at >= split.entries) ahead[i] = chunk.keys[split.list + split.entries - 1];
        entries[at] = ahead[i];
      }
      fetch(next, items);
    } else {
      for (int i = thread; i < Shape::kEntries; i += Shape::kProducers) {
        entries[i] = min(first_entry + i, split.entries - 1);
      }
    }
    hopper::named_barrier(3, Shape::kProducers);
    ++item;
    std::uint32_t row_offset[kRowsEach];  // in bytes
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int query = min((first + i * kRowsAtOnce) % Shape::kQueries, tile.queries - 1);
      row_offset[i] =
          static_cast<std::uint32_t>(query) * static_cast<std::uint32_t>(attention.q.token_stride) * 2;
    }
    const int lse_query = min(thread % Shape::kQueries, tile.queries - 1);
    const float* const lse =
        attention.lse + static_cast<std::int64_t>(tile.first_query + lse_query) * attention.heads;
    const std::uint32_t key_stride = static_cast<std::uint32_t>(attention.k.token_stride) * 2;

    for (int kv_head = 0; kv_head < attention.kv_heads; ++kv_head) {
      const char* const key_base =
          reinterpret_cast<const char*>(row_of<T>(attention.k, tile.k_begin, kv_head) + column);
      const std::uint32_t to_keys = shared_address(memory.keys[keys.at]) +
                                    static_cast<std::uint32_t>(part / 8 * Shape::kKeyPanel) + swizzled;
      hopper::barrier_wait(shared_address(&memory.keys_empty[keys.at]), keys.phase ^ 1);
#pragma unroll 8
      for (int i = 0; i < Shape::kEntries / kRowsAtOnce; ++i) {
        const auto key = static_cast<std::uint32_t>(entries[first + i * kRowsAtOnce]);
        copy(to_keys + static_cast<std::uint32_t>(i * kRowsAtOnce * 128),
             key_base + static_cast<std::uint64_t>(key) * key_stride, bytes);
      }
      keys.advance();

      for (int head = 0; head < attention.group; head += Shape::kStepHeads) {
        const int whole_head = kv_head * attention.group + head;
        const char* const base =
            reinterpret_cast<const char*>(row_of<T>(attention.q, tile.first_query, whole_head) + column);
        // Listed: the second head of the step.
        const bool second = kListed && head + 1 < attention.group;
        const char* const second_base = base + (second ? attention.q.head_stride * 2 : std::int64_t(0));
        const std::uint32_t to = shared_address(memory.rows[steps.at]) +
                                 static_cast<std::uint32_t>(part / 8 * Shape::kRowPanel) + swizzled;
        hopper::barrier_wait(shared_address(&memory.rows_empty[steps.at]), steps.phase ^ 1);
#pragma unroll
        for (int i = 0; i < kRowsEach; ++i) {
          copy(to + static_cast<std::uint32_t>(i * kRowsAtOnce * 128),
               (kListed && i * kRowsAtOnce >= Shape::kQueries ? second_base : base) + row_offset[i], bytes);
        }
        if (thread < Shape::kRows) {
          copy_word(shared_address(&memory.lse[steps.at][thread]),
                    lse + whole_head + (second && thread >= Shape::kQueries ? 1 : 0), true);
        }
        hopper::barrier_arrive_after_copies(shared_address(&memory.rows_full[steps.at]));
        steps.advance();
      }
    }
  }
};

template <typename T, int kSize, bool kListed>
struct TargetConsumer {
  using Shape = HopperTarget<kSize, kListed>;
  static constexpr int kValues = Shape::kColumns / 2;  // of a thread: 64 rows x 128 columns in 128 threads

  const Attention& attention;
  const Chunk& chunk;
  typename Shape::Memory& memory;
  int own, warp, lane;  // which consumer, warp in it, lane
  Ring<2> keys;
  Ring<Shape::kStages> steps;
  int head = 0;  // first one of the step, within its key/value head
  float p[kValues];
  float lse[2];  // of the step

  // Barriers of the block: 1 and 2 within a consumer, 3 among the producers, 4 and 5 schedule the consumers.
  static constexpr int kSchedulerBarrier = 4;
  __device__ __forceinline__ void scheduler_arrive(int consumer) {
    asm volatile("bar.arrive %0, 256;" ::"r"(kSchedulerBarrier + consumer) : "memory");
  }

  __device__ __forceinline__ void release(std::uint64_t& barrier) {
    __syncwarp();
    if (lane == 0) hopper::barrier_arrive(shared_address(&barrier));
  }

  // Waits for the step's rows; afterwards lse is that of the step.
  __device__ __forceinline__ void wait() {
    hopper::barrier_wait(shared_address(&memory.rows_full[steps.at]), steps.phase);
    hopper::fence_async_proxy();
    const float absent = head + 16 * warp / Shape::kQueries < attention.group ? 0.0f : INFINITY;
    const float* const row = &memory.lse[steps.at][16 * warp + (lane >> 2)];
    // Heads that are not there add e^-inf.
    lse[0] = fmaf(kLog2E, row[0], absent);
    lse[1] = fmaf(kLog2E, row[8], absent);
  }

  __device__ __forceinline__ void multiply(float (&logits)[kValues]) {
    const std::uint32_t a = shared_address(memory.rows[steps.at]);
    const std::uint32_t b = shared_address(memory.keys[keys.at]) + own * Shape::kColumns * 128;
    hopper::keep(logits);
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      hopper::wgmma<T, Shape::kColumns, hopper::Major::k, hopper::Major::k>(
          logits, hopper::k_major(a + k / 4 * Shape::kRowPanel + k % 4 * 32),
          hopper::k_major(b + k / 4 * Shape::kKeyPanel + k % 4 * 32), k > 0);
    }
    hopper::wgmma_commit();
  }

  __device__ __forceinline__ void take(const float (&logits)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      p[i] += weight_in_place(fmaf(logits[i], attention.scale, -lse[i / 2 % 2]));
    }
  }

  __device__ __forceinline__ void store(const Split& split, int first_entry) {
    const float share = 1.0f / static_cast<float>(attention.heads);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * warp + 8 * r + (lane >> 2);
      float* const to = chunk.p + split.p + row * split.stride + first_entry + 2 * (lane & 3);
#pragma unroll
      for (int n = 0; n < Shape::kColumns / 8; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(share * p[4 * n + 2 * r], share * p[4 * n + 2 * r + 1]);
      }
    }
  }

  __device__ __forceinline__ void run(const Split& split, int first_entry) {
    first_entry += own * Shape::kColumns;
    float logits[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) p[i] = 0.0f;
    const int count = attention.kv_heads * ((attention.group + Shape::kStepHeads - 1) / Shape::kStepHeads);
    for (int i = 0; i < count; ++i) {
      wait();
      hopper::named_barrier(kSchedulerBarrier + own, 256);
      multiply(logits);
      hopper::wgmma_wait<0>();
      scheduler_arrive(1 - own);
      hopper::keep(logits);
      release(memory.rows_empty[steps.at]);
      steps.advance();
      head += Shape::kStepHeads;
      if (head >= attention.group) {
        head = 0;
        release(memory.keys_empty[keys.at]);
        keys.advance();
      }
      take(logits);
    }
    if (first_entry >= split.entries) return;
    if constexpr (kListed) {
      const int slot = 32 * (warp & 1) + lane;
      if (warp >= 2) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) memory.exchange[own][i][slot] = p[i];
      }
      hopper::named_barrier(1 + own, 128);
      if (warp < 2) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) p[i] += memory.exchange[own][i][slot];
        store(split, first_entry);
      }
      hopper::named_barrier(1 + own, 128);
    } else {
      store(split, first_entry);
    }
  }
};

template <typename T, int kSize, bool kListed>
__global__ void __launch_bounds__(HopperTarget<kSize, kListed>::kThreads, 1)
    hopper_target_kernel(const Attention attention, const Chunk chunk) {
#ifdef GSA_HOPPER_CODE
  using Shape = HopperTarget<kSize, kListed>;
  extern __shared__ unsigned char unaligned[];
  const std::uint32_t address = shared_address(unaligned);
  auto& memory = *reinterpret_cast<typename Shape::Memory*>(unaligned + ((1024 - address % 1024) % 1024));
  if (threadIdx.x == 0) {
    constexpr int kReaders = 4 * Shape::kConsumers;
    for (int i = 0; i < 2; ++i) {
      hopper::barrier_init(shared_address(&memory.keys_empty[i]), kReaders);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      hopper::barrier_init(shared_address(&memory.rows_full[i]), Shape::kProducers);
      hopper::barrier_init(shared_address(&memory.rows_empty[i]), kReaders);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  // Listed: an item is a part of a slot, so that neighbouring blocks have neighbouring entries, of one tile
  // or of tiles that share keys. Each time a block moves on by one more: last parts are empty more often.
  // Dense: pairs of neighbouring blocks share keys.
  constexpr int kParts = kListed ? kSlot / Shape::kEntries : 1;
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const int items = kListed ? chunk.range->slots * kParts
                            : chunk.tiles * ((chunk.entries + Shape::kEntries - 1) / Shape::kEntries);
  // Calls body(split, first_entry, next item), or skip(next item) where there are no entries.
  const auto for_each = [&](const auto& body, const auto& skip) {
    if constexpr (kListed) {
      ListSlot ahead;  // the next slot, asked for while this one is worked on
      if (first < items) ahead = chunk.slot[first / kParts];
      int column = first;
      for (int base = 0; base + column < items; base += step) {
        const int i = base + column, first_entry = i % kParts * Shape::kEntries;
        column = column + 1 == step ? 0 : column + 1;
        const int next = base + step + column;
        const Split split = listed_split(ahead, i / kParts);
        if (next < items) ahead = chunk.slot[next / kParts];
        first_entry < split.entries ? body(split, first_entry, next) : skip(next);
      }
    } else {
      for (int i = first; i < items; i += step) {
        const Split split = dense_row(chunk, i % chunk.tiles);
        const int first_entry = i / chunk.tiles * Shape::kEntries;
        if (first_entry < split.entries) body(split, first_entry, i + step);
      }
    }
  };
  if (threadIdx.x < Shape::kProducers) {
    hopper::give_registers<56>();
    TargetProducer<T, kSize, kListed> producer{attention, chunk, memory, {}, {}, 0, {}};
    producer.fetch(first, items);
    for_each(
        [&](const Split& split, int first_entry, int next) { producer.run(split, first_entry, next, items); },
        [&](int next) { producer.fetch(next, items); });
    cp_async_wait<0>();
  } else {
    hopper::take_registers<224>();
    const int thread = static_cast<int>(threadIdx.x) - Shape::kProducers;
    TargetConsumer<T, kSize, kListed> consumer{attention,   chunk, memory, thread / 128, thread / 32 % 4,
                                               thread % 32, {},    {},     {},           {}};
    if (consumer.own == 1) consumer.scheduler_arrive(0);
    for_each([&](const Split& split, int first_entry, int) { consumer.run(split, first_entry); }, [](int) {});
  }
#endif
}

template <typename T, int kSize, bool kListed>
void launch_hopper_target(const Attention& attention, const Chunk& chunk, const Context& context) {
  using Shape = HopperTarget<kSize, kListed>;
  const auto kernel = hopper_target_kernel<T, kSize, kListed>;
  allow_shared_memory(kernel, Shape::kBytes, "indexer_kl target");
  const int pairs = kListed ? chunk.slots * (kSlot / Shape::kEntries)
                            : chunk.tiles * ((chunk.entries + Shape::kEntries - 1) / Shape::kEntries);
  const int blocks = pairs < context.device.multiprocessors ? pairs : context.device.multiprocessors;
  kernel<<<static_cast<unsigned>(blocks), Shape::kThreads, Shape::kBytes, stream_of(context.stream)>>>(
      attention, chunk);
  check_launch("indexer_kl target");
}

}  // namespace gsa::cuda::kl
