#include "serve/core/prefix_cache.h"

#include <algorithm>
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
  while (!leaves_.empty()) remove(*leaves_.begin()->second);
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
      pool_->share(page);
      ++pages_;
    }
    node = child->second.get();
    touch(*node);
  }
  const std::int64_t before = pool_->available();
  while (pages_ > limit_) remove(*leaves_.begin()->second);
  return pool_->available() - before;
}

void PrefixCache::remove(Node& leaf) {
  leaves_.erase({leaf.used, &leaf});
  pool_->release(leaf.page);
  --pages_;
  Node* parent = leaf.parent;
  parent->children.erase(*leaf.tokens);
  if (parent->children.empty() && parent->parent != nullptr) leaves_.insert({parent->used, parent});
}

std::int64_t PrefixCache::evict(std::int64_t pages) {
  const std::int64_t before = pool_->available();
  while (pool_->available() - before < pages && !leaves_.empty()) remove(*leaves_.begin()->second);
  return pool_->available() - before;
}

// Without recursion: a trie is as deep as the longest text has pages.
std::int64_t PrefixCache::idle(std::int64_t limit) const {
  std::int64_t count = 0;
  std::vector<const Node*> open = {roots_[0].get(), roots_[1].get()};
  while (!open.empty() && count < limit) {
    const Node* node = open.back();
    open.pop_back();
    for (const auto& [tokens, child] : node->children) {
      if (pool_->users(child->page) == 1) ++count;
      open.push_back(child.get());
    }
  }
  return count;
}

}  // namespace gsa::serve
