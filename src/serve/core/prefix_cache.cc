#include "serve/core/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace gsa::serve {
namespace {

// Looks up spans among vectors without copying them.
struct ByTokens {
  using is_transparent = void;
  template <class A, class B>
  bool operator()(const A& a, const B& b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

}  // namespace

struct PrefixCache::Node {
  Node* parent = nullptr;
  std::int32_t page = 0;
  std::uint64_t used = 0;
  std::map<std::vector<std::int64_t>, std::unique_ptr<Node>, ByTokens> children;
  const std::vector<std::int64_t>* tokens = nullptr;  // the key in its parent
};

PrefixCache::PrefixCache(std::shared_ptr<infer::PagePool> pool, std::int64_t limit)
    : pool_(std::move(pool)), limit_(limit) {
  for (auto& root : roots_) root = std::make_unique<Node>();
}

PrefixCache::~PrefixCache() {
  remove_leaves([](const Node&) { return true; }, [] { return false; });
}

// A node that has children is in no list.
void PrefixCache::touch(Node& node) {
  const bool leaf = node.children.empty();
  if (leaf) leaves_.erase({node.used, &node});
  node.used = ++clock_;
  if (leaf) leaves_.insert({node.used, &node});
}

std::vector<std::int32_t> PrefixCache::find(bool sparse, std::span<const std::int64_t> tokens) {
  const auto size = static_cast<std::size_t>(pool_->page_size());
  std::vector<std::int32_t> pages;
  Node* node = roots_[sparse ? 1 : 0].get();
  for (; tokens.size() >= size; tokens = tokens.subspan(size)) {
    const auto child = node->children.find(tokens.first(size));
    if (child == node->children.end()) break;
    node = child->second.get();
    touch(*node);
    pages.push_back(node->page);
  }
  return pages;
}

std::int64_t PrefixCache::insert(bool sparse, std::span<const std::int64_t> tokens,
                                 std::span<const std::int32_t> pages) {
  const auto size = static_cast<std::size_t>(pool_->page_size());
  Node* node = roots_[sparse ? 1 : 0].get();
  for (const std::int32_t page : pages) {
    const auto key = tokens.first(size);
    tokens = tokens.subspan(size);
    auto child = node->children.find(key);
    if (child == node->children.end()) {
      leaves_.erase({node->used, node});  // no leaf any more
      child = node->children.emplace(std::vector(key.begin(), key.end()), std::make_unique<Node>()).first;
      Node& made = *child->second;
      made.parent = node;
      made.page = page;
      made.tokens = &child->first;
      pool_->keep(page);
      ++pages_;
    }
    node = child->second.get();
    touch(*node);
  }
  const std::int64_t before = pool_->available();
  const auto within = [&] { return pages_ <= limit_; };
  remove_leaves([&](const Node& leaf) { return pool_->is_idle(leaf.page); }, within);
  remove_leaves([](const Node&) { return true; }, within);
  return pool_->available() - before;
}

// The parent, where that has become a leaf.
PrefixCache::Node* PrefixCache::remove(Node& leaf) {
  leaves_.erase({leaf.used, &leaf});
  pool_->unkeep(leaf.page);
  --pages_;
  Node* parent = leaf.parent;
  parent->children.erase(*leaf.tokens);
  if (!parent->children.empty() || parent->parent == nullptr) return nullptr;
  leaves_.insert({parent->used, parent});
  return parent;
}

// Removes leaves that `may` lets go, and what becomes one by that, those used longest ago first.
template <typename May, typename Enough>
void PrefixCache::remove_leaves(const May& may, const Enough& enough) {
  for (auto at = leaves_.begin(); at != leaves_.end() && !enough();) {
    Node& leaf = *at->second;
    const auto next = std::next(at);
    if (!may(leaf)) {
      at = next;
      continue;
    }
    Node* parent = remove(leaf);
    at = next;
    // It was used before its child, and may stand before what was passed over.
    if (parent != nullptr && (next == leaves_.end() || parent->used < next->first)) {
      at = leaves_.find({parent->used, parent});
    }
  }
}

bool PrefixCache::is_above_idle(const Node& leaf) const {
  const Node* node = leaf.parent;
  while (node->parent != nullptr && !pool_->is_idle(node->page)) node = node->parent;
  return node->parent != nullptr;
}

std::int64_t PrefixCache::evict(std::int64_t pages) {
  const std::int64_t before = pool_->available();
  const auto enough = [&] { return pool_->available() - before >= pages; };
  const auto is_idle = [&](const Node& leaf) { return pool_->is_idle(leaf.page); };
  remove_leaves(is_idle, enough);
  // Texts that were read side by side, each on pages of its own, have brought in a beginning and its end apart: the one
  // may be idle while the other is in use, and is reached through it alone.
  remove_leaves([&](const Node& leaf) { return is_idle(leaf) || is_above_idle(leaf); }, enough);
  return pool_->available() - before;
}

}  // namespace gsa::serve
