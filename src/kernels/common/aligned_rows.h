// Whether rows of 16-bit elements can be read 16 bytes at a time: the address and every stride are multiples of that.
#pragma once

#include <cstdint>

#include "gsa/tensor_view.h"

namespace gsa::cuda {

inline bool at_16_bytes(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

inline bool aligned_rows(const ConstRows& rows) {
  return at_16_bytes(rows.data) && rows.token_stride % 8 == 0 && rows.head_stride % 8 == 0;
}
inline bool aligned_pages(const ConstPages& pages) {
  return at_16_bytes(pages.data) && pages.page_stride % 8 == 0 && pages.token_stride % 8 == 0 &&
         pages.head_stride % 8 == 0;
}

}  // namespace gsa::cuda
