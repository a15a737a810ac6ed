// Pages that hold the beginnings of texts, found by content: who begins with the same tokens takes them over instead of
// computing them again. No torch header.
//
// A trie whose edges are the tokens of one full page. Tokens are compared, not hashes of them: a page is never taken
// for another. Pages that were computed densely (below dense_below) and sparsely hold other numbers, and lie in tries
// of their own.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "infer/core/page_pool.h"

namespace gsa::serve {

class PrefixCache {
 public:
  // Holds `limit` pages at most, those that texts still use among them.
  explicit PrefixCache(std::shared_ptr<infer::PagePool> pool,
                       std::int64_t limit = std::numeric_limits<std::int64_t>::max());
  ~PrefixCache();  // lets go of all pages
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The pages of the longest known beginning of tokens, in full pages. They count as used now.
  std::vector<std::int32_t> find(bool sparse, std::span<const std::int64_t> tokens);

  // The full pages of a sequence, page_size tokens each; those that are known already stay as they are. What is too
  // much goes as in evict(), and where that is not enough, ends that texts still use. Returns how many pages have
  // become free.
  std::int64_t insert(bool sparse, std::span<const std::int64_t> tokens, std::span<const std::int32_t> pages);

  // Lets go of idle pages, the ends of what was used longest ago first, until so many have become free or none is left.
  // Pages that texts use stay: to let go of them would free nothing. Returns how many have become free.
  std::int64_t evict(std::int64_t pages);

  std::int64_t pages() const { return pages_; }        // held
  std::int64_t idle() const { return pool_->idle(); }  // of these, held by nobody else

 private:
  struct Node;

  void touch(Node& node);
  Node* remove(Node& leaf);
  bool is_above_idle(const Node& leaf) const;
  template <typename May, typename Enough>
  void remove_leaves(const May& may, const Enough& enough);

  std::shared_ptr<infer::PagePool> pool_;
  std::int64_t limit_;
  std::unique_ptr<Node> roots_[2];  // dense, sparse
  std::int64_t pages_ = 0;
  std::uint64_t clock_ = 0;
  std::set<std::pair<std::uint64_t, Node*>> leaves_;  // by last use, each at a time of its own
};

}  // namespace gsa::serve
