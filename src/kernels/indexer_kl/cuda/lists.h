// Lists of a mask's unions for indexer_kl, packed: tiles take the memory that their lists need, in slots of
// kSlot entries, and a chunk is as many consecutive tiles as fit. Lengths are counted on the device, which
// also cuts the chunks; the host enqueues as many rounds as the longest possible lists would take, and rounds
// that find no tiles left end at once.
#pragma once

#include <cstddef>

#include "kernels/indexer_kl/cuda/kernels.h"
#include "kernels/indexer_kl/indexer_kl_cuda.h"

namespace gsa::cuda::kl {

// Tickets of a round: one for row_sums, or one for each group of heads of row_gradients.
constexpr int kTickets = 128;

// The lists of a call, and the memory that rounds share.
class Lists {
 public:
  // Counts the unions and cuts the chunks. backward: rows and words are made too.
  Lists(const ConstMask& mask, const Sequences& host_sequences, const DeviceSequences& sequences,
        const ListSizes& sizes, bool backward, const Context& context);

  // Makes the lists of a round and returns its chunk, without p.
  Chunk make(int round) const;

  const int* sequence_tile() const { return sequence_tile_; }

 private:
  const ConstMask mask_;
  const DeviceSequences& sequences_;
  const ListSizes sizes_;
  const Context& context_;
  const int* sequence_tile_ = nullptr;
  UnionTile* tile_ = nullptr;
  int* counts_ = nullptr;
  int* tile_slot_ = nullptr;
  ListRange* ranges_ = nullptr;
  int* tickets_ = nullptr;
  ListSlot* slot_ = nullptr;
  int* keys_ = nullptr;
  std::uint32_t* bits_ = nullptr;
  int* row_ = nullptr;
  ListWord* word_ = nullptr;
};

}  // namespace gsa::cuda::kl
