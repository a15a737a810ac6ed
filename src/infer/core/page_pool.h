// Which pages of a cache are in use, and by how many sequences; and a sequence's list of pages. Only counts:
// no memory, no torch header.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gsa::infer {

// Pages 0 .. capacity - 1. A page in use has one user or several (a common prefix); it is free again when the
// last one lets go of it. A keeper is a user that only holds a page for others to come: a page that has no other users
// is idle.
class PagePool {
 public:
  explicit PagePool(std::int64_t page_size) : page_size_(page_size) {}

  std::int64_t page_size() const { return page_size_; }
  std::int64_t capacity() const { return static_cast<std::int64_t>(users_.size()); }
  std::int64_t in_use() const { return capacity() - available(); }
  std::int64_t available() const { return static_cast<std::int64_t>(free_.size()); }

  void grow(std::int64_t capacity);  // to at least what it is
  std::int32_t take();               // a free page, with one user. There must be one
  void share(std::int32_t page);     // one user more
  void release(std::int32_t page);   // one user less
  std::int32_t users(std::int32_t page) const { return users_[static_cast<std::size_t>(page)]; }

  void keep(std::int32_t page);    // one user more, a keeper
  void unkeep(std::int32_t page);  // one keeper less
  bool is_idle(std::int32_t page) const {
    const auto at = static_cast<std::size_t>(page);
    return users_[at] > 0 && users_[at] == keepers_[at];
  }
  std::int64_t idle() const { return idle_; }  // pages

 private:
  std::int64_t page_size_;
  template <typename Change>
  void change(std::int32_t page, Change change);

  std::vector<std::int32_t> users_, keepers_;  // keepers are users, too
  std::int64_t idle_ = 0;
  std::vector<std::int32_t> free_;  // the next one to take at the back: the lowest of a new pool
};

// The tokens of one sequence that are in the cache, and the pages where they lie. Position s is row
// s % page_size of page pages()[s / page_size]. Lets go of its pages when it ends; movable, not copyable
// (fork() shares). Made by Engine::start() and Engine::load().
class Sequence {
 public:
  explicit Sequence(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}
  ~Sequence() { clear(); }
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;

  std::int64_t length() const { return static_cast<std::int64_t>(tokens_.size()); }
  const std::vector<std::int64_t>& tokens() const { return tokens_; }
  const std::vector<std::int32_t>& pages() const { return pages_; }  // may reach beyond the length

  // A sequence with the first `length` tokens of this one (default: all), on the same pages. Whoever writes
  // into a shared page first gets a copy of it, so that neither sees the other.
  Sequence fork() const { return fork(length()); }
  Sequence fork(std::int64_t length) const;

  // The sequence, which must be empty, takes part in full pages that hold these tokens: page_size of them each.
  void adopt(std::span<const std::int32_t> pages, std::span<const std::int64_t> tokens);

  const std::shared_ptr<PagePool>& pool() const { return pool_; }

  // Forgets what is behind the first `length` tokens.
  void truncate(std::int64_t length);
  void clear() { truncate(0); }

 private:
  friend class Cache;

  std::shared_ptr<PagePool> pool_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> pages_;
};

}  // namespace gsa::infer
