// Rows of a fixed number of tokens out of documents: documents come in a shuffled order that follows from
// (seed, epoch) alone, are packed and cut where a row is full. Within a row each piece of a document
// is a sequence of its own: nothing attends across a boundary, and the last token of a piece predicts the
// token that follows in its document, if there is one.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace gsa::data {

// Where a packer stands: the next row follows from it and the dataset alone.
struct PackerState {
  std::int64_t epoch = 0;
  std::int64_t index = 0;   // in the epoch's order of documents
  std::int64_t offset = 0;  // tokens of that document that are already used

  bool operator==(const PackerState&) const = default;
};

// A permutation of 0 .. count - 1, evaluated one at a time: no memory, whatever the count.
class Shuffle {
 public:
  Shuffle(std::int64_t count, std::uint64_t seed, std::int64_t epoch);
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t round(std::uint64_t half, int number) const;

  std::uint64_t count_, key_;
  int half_bits_;
};

enum class Order { shuffled, as_written };

struct Row {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> targets;    // -100 where nothing follows
  std::vector<std::int64_t> sequences;  // where each piece begins, from 0; ascending
};

class Packer {
 public:
  Packer(const Dataset& dataset, std::int64_t row_tokens, std::uint64_t seed, Order order = Order::shuffled);

  Row next();
  const PackerState& state() const { return state_; }
  void restore(const PackerState& state);  // checked against the dataset

 private:
  const Dataset& dataset_;
  std::int64_t row_tokens_;
  std::uint64_t seed_;
  Order order_;
  PackerState state_;
};

}  // namespace gsa::data
