// Where the keys of one sequence lie: contiguous rows, or rows in pages that a table names.
#pragma once

#include <bit>
#include <cstdint>

#include "gsa/dtype.h"
#include "gsa/tensor_view.h"

namespace gsa {

class KeyRows {
 public:
  // Rows of one head of sequence number `sequence`. first_key: the row of its position 0 where keys are
  // contiguous. bytes: of an element.
  KeyRows(const ConstRows& rows, const PageTable& pages, std::int64_t sequence, std::int64_t first_key,
          std::int64_t head, std::size_t bytes)
      : step_(rows.token_stride * static_cast<std::int64_t>(bytes)) {
    const std::int64_t size = static_cast<std::int64_t>(bytes);
    data_ = static_cast<const char*>(rows.data) + head * rows.head_stride * size;
    if (pages.page_size == 0) {
      data_ += first_key * step_;
    } else {
      page_step_ = rows.page_stride * size;
      shift_ = std::countr_zero(static_cast<std::uint64_t>(pages.page_size));
      within_ = pages.page_size - 1;
      blocks_ = pages.block_table + sequence * pages.blocks;
    }
  }

  // Neighbours of one page lie step() bytes apart; a page begins at each multiple of its size, so a run of
  // rows that begins at a multiple of 2^n and has 2^n of them, at most 8, never leaves its page.
  const char* at(std::int64_t position) const {
    return data_ + blocks_[position >> shift_] * page_step_ + (position & within_) * step_;
  }
  std::int64_t step() const { return step_; }

 private:
  // Contiguous keys are one page without an end.
  static constexpr std::int32_t kOnePage = 0;

  const char* data_;
  std::int64_t step_;
  std::int64_t page_step_ = 0;
  int shift_ = 62;
  std::int64_t within_ = ~std::int64_t{0};
  const std::int32_t* blocks_ = &kOnePage;
};

}  // namespace gsa
