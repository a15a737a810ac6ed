// Documents whose ids count up through all of them, so that an id says where it stands.
#pragma once

#include <numeric>
#include <vector>

#include "eval/documents.h"

namespace gsa::eval::testing {

class NumberedDocuments final : public Documents {
 public:
  // sizes: at most 256 ids in all, each of which is a byte.
  explicit NumberedDocuments(std::vector<std::int64_t> sizes)
      : Documents("numbers", data::byte_tokenizer()), sizes_(std::move(sizes)) {}

  std::int64_t count() const override { return static_cast<std::int64_t>(sizes_.size()); }
  std::int64_t size(std::int64_t document) const override {
    return sizes_[static_cast<std::size_t>(document)];
  }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int64_t> out) const override {
    const auto begin = std::accumulate(sizes_.begin(), sizes_.begin() + document, std::int64_t{0});
    std::iota(out.begin(), out.end(), begin + offset);
  }

  // The offset in its document of an id.
  std::int64_t offset_of(std::int64_t id) const {
    for (const std::int64_t size : sizes_) {
      if (id < size) return id;
      id -= size;
    }
    return -1;
  }

 private:
  std::vector<std::int64_t> sizes_;
};

}  // namespace gsa::eval::testing
