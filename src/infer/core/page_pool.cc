#include "infer/core/page_pool.h"

#include <cassert>
#include <utility>

#include "gsa/error.h"

namespace gsa::infer {

void PagePool::grow(std::int64_t capacity) {
  assert(capacity >= this->capacity());
  const std::int64_t before = this->capacity();
  users_.resize(static_cast<std::size_t>(capacity), 0);
  keepers_.resize(static_cast<std::size_t>(capacity), 0);
  std::vector<std::int32_t> pages;
  pages.reserve(static_cast<std::size_t>(capacity));
  // New pages go below the free ones of before, highest first, so that low pages are used first.
  for (std::int64_t page = capacity - 1; page >= before; --page)
    pages.push_back(static_cast<std::int32_t>(page));
  pages.insert(pages.end(), free_.begin(), free_.end());
  free_ = std::move(pages);
}

std::int32_t PagePool::take() {
  assert(!free_.empty());
  const std::int32_t page = free_.back();
  free_.pop_back();
  users_[static_cast<std::size_t>(page)] = 1;
  return page;
}

// Counts idle pages along.
template <typename Change>
void PagePool::change(std::int32_t page, Change change) {
  assert(users(page) > 0);
  idle_ -= is_idle(page) ? 1 : 0;
  change(static_cast<std::size_t>(page));
  idle_ += is_idle(page) ? 1 : 0;
  // grow() made room for every page, so that letting go cannot fail.
  if (users(page) == 0) free_.push_back(page);
}

void PagePool::share(std::int32_t page) {
  change(page, [&](std::size_t at) { ++users_[at]; });
}

void PagePool::release(std::int32_t page) {
  change(page, [&](std::size_t at) {
    assert(users_[at] > keepers_[at]);
    --users_[at];
  });
}

void PagePool::keep(std::int32_t page) {
  change(page, [&](std::size_t at) {
    ++users_[at];
    ++keepers_[at];
  });
}

void PagePool::unkeep(std::int32_t page) {
  change(page, [&](std::size_t at) {
    assert(keepers_[at] > 0);
    --users_[at];
    --keepers_[at];
  });
}

Sequence::Sequence(Sequence&& other) noexcept
    : pool_(other.pool_),
      tokens_(std::exchange(other.tokens_, {})),
      pages_(std::exchange(other.pages_, {})) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = other.pool_;
    tokens_ = std::exchange(other.tokens_, {});
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

Sequence Sequence::fork(std::int64_t length) const {
  if (length < 0 || length > this->length()) {
    bad_argument("infer::Sequence::fork", "length",
                 concat("0 .. ", this->length(), ", what the sequence holds"), concat(length));
  }
  Sequence other(pool_);
  const std::int64_t page = pool_->page_size();
  other.tokens_.assign(tokens_.begin(), tokens_.begin() + length);
  other.pages_.assign(pages_.begin(), pages_.begin() + (length + page - 1) / page);
  for (const std::int32_t used : other.pages_) pool_->share(used);
  return other;
}

void Sequence::adopt(std::span<const std::int32_t> pages, std::span<const std::int64_t> tokens) {
  constexpr const char* kOp = "infer::Sequence::adopt";
  if (!pages_.empty()) bad_argument(kOp, "sequence", "an empty one", concat("one of ", length(), " tokens"));
  if (tokens.size() != pages.size() * static_cast<std::size_t>(pool_->page_size())) {
    bad_argument(kOp, "tokens", concat(pages.size(), " pages of ", pool_->page_size()),
                 concat(tokens.size()));
  }
  tokens_.assign(tokens.begin(), tokens.end());
  pages_.assign(pages.begin(), pages.end());
  for (const std::int32_t used : pages_) pool_->share(used);
}

void Sequence::truncate(std::int64_t length) {
  if (length < 0 || length > this->length()) {
    bad_argument("infer::Sequence::truncate", "length",
                 concat("0 .. ", this->length(), ", what the sequence holds"), concat(length));
  }
  const std::int64_t page = pool_->page_size();
  const auto kept = static_cast<std::size_t>((length + page - 1) / page);
  for (std::size_t i = kept; i < pages_.size(); ++i) pool_->release(pages_[i]);
  if (pages_.size() > kept) pages_.resize(kept);
  tokens_.resize(static_cast<std::size_t>(length));
}

}  // namespace gsa::infer
