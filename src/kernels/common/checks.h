// Validation shared by the operators. Every complaint names operator, argument, what was expected and what
// came.
#pragma once

#include <cstdint>

#include "gsa/tensor_view.h"

namespace gsa::check {

constexpr std::int64_t kMaxHeadSize = 256;
constexpr std::int64_t kMaxIndexHeads = 128;

void not_null(const char* op, const char* argument, const void* pointer);
void in_range(const char* op, const char* argument, std::int64_t value, std::int64_t low, std::int64_t high);

// Offsets start at 0 and grow, every query lies within its sequence, positions fit in 31 bits.
void sequences(const char* op, const Sequences& sequences);

// A mask, where there is one, has a word for every 32 keys of the longest sequence.
void mask(const char* op, ConstMask mask, const Sequences& sequences);

// A size of pages: a power of two, 8 .. 1024.
void page_size(const char* op, const char* argument, std::int64_t size);

// Keys in pages: allowed at all, and a block for every page of every sequence.
void pages(const char* op, const PageTable& pages, const Sequences& sequences, bool allowed);

}  // namespace gsa::check
