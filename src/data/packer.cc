#include "data/packer.h"

#include <algorithm>
#include <bit>

namespace gsa::data {
namespace {

constexpr std::int64_t kIgnored = -100;

// SplitMix64's finaliser: every bit of the input moves every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

// A Feistel network permutes 0 .. 4^n - 1; values beyond count are walked on until one is inside, which keeps
// it a permutation. 4^n is below 4 count, so that takes few steps.
Shuffle::Shuffle(std::int64_t count, std::uint64_t seed, std::int64_t epoch)
    : count_(static_cast<std::uint64_t>(count)),
      key_(mix(mix(seed) ^ static_cast<std::uint64_t>(epoch))),
      half_bits_((static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count))) + 1) / 2) {}

std::uint64_t Shuffle::round(std::uint64_t half, int number) const {
  return mix(half ^ key_ ^ mix(static_cast<std::uint64_t>(number))) & ((std::uint64_t(1) << half_bits_) - 1);
}

std::int64_t Shuffle::operator()(std::int64_t index) const {
  const std::uint64_t low = (std::uint64_t(1) << half_bits_) - 1;
  std::uint64_t value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & low;
    for (int number = 0; number < 4; ++number) {
      const std::uint64_t next = left ^ round(right, number);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= count_);
  return static_cast<std::int64_t>(value);
}

Packer::Packer(const Dataset& dataset, std::int64_t row_tokens, std::uint64_t seed, Order order)
    : dataset_(dataset), row_tokens_(row_tokens), seed_(seed), order_(order) {
  if (row_tokens < 1) bad_argument("packer", "row_tokens", "at least 1", concat(row_tokens));
}

void Packer::restore(const PackerState& state) {
  if (state.epoch < 0 || state.index < 0 || state.index >= dataset_.documents() || state.offset < 0) {
    bad_argument("packer", "state", concat("a place in a dataset of ", dataset_.documents(), " documents"),
                 concat("epoch ", state.epoch, ", index ", state.index, ", offset ", state.offset));
  }
  state_ = state;
}

Row Packer::next() {
  Row row;
  row.tokens.resize(static_cast<std::size_t>(row_tokens_));
  row.targets.resize(static_cast<std::size_t>(row_tokens_));
  std::vector<std::int64_t> piece;
  for (std::int64_t filled = 0; filled < row_tokens_;) {
    const Shuffle shuffle(dataset_.documents(), seed_, state_.epoch);
    const std::int64_t document = order_ == Order::shuffled ? shuffle(state_.index) : state_.index;
    const std::int64_t size = dataset_.document_size(document);
    if (state_.offset >= size)
      bad_argument("packer", "state", concat("an offset below ", size), concat(state_.offset));
    const std::int64_t count = std::min(size - state_.offset, row_tokens_ - filled);
    const bool goes_on = state_.offset + count < size;
    piece.resize(static_cast<std::size_t>(count + (goes_on ? 1 : 0)));
    dataset_.read(document, state_.offset, piece);
    std::copy_n(piece.begin(), count, row.tokens.begin() + filled);
    std::copy(piece.begin() + 1, piece.end(), row.targets.begin() + filled);
    if (!goes_on) row.targets[static_cast<std::size_t>(filled + count - 1)] = kIgnored;
    row.sequences.push_back(filled);
    filled += count;
    state_.offset += count;
    if (!goes_on) {
      state_.offset = 0;
      if (++state_.index == dataset_.documents()) {
        state_.index = 0;
        ++state_.epoch;
      }
    }
  }
  return row;
}

}  // namespace gsa::data
