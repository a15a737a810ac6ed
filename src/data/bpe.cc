#include "data/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/file.h"
#include "core/json.h"
#include "core/utf8.h"

namespace gsa::data {
namespace {

constexpr std::uint64_t kNoPair = ~std::uint64_t(0);
constexpr std::size_t kSlots = 1 << 15;  // 2 MiB of words for each thread
// Up to here a scan for the lowest rank is quicker than a heap.
constexpr std::size_t kShortWord = 48;

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::uint64_t mixed(std::uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ (x >> 32);
}

std::size_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size();
  while (word.size() >= 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, word.data(), 8);
    hash = mixed(hash ^ eight);
    word.remove_prefix(8);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, word.data(), word.size());
  return mixed(mixed(hash ^ rest));
}

std::string quoted(const std::string& text) { return shown(Json(text)); }

}  // namespace

std::string byte_token(int byte) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  return concat("<0x", kDigits[byte / 16], kDigits[byte % 16], ">");
}

Bpe::Scratch::Scratch() : slots_(kSlots) {}

Bpe::Bpe(const BpeConfig& config)
    : byte_level_(config.byte_level),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges),
      fuse_unknown_(config.fuse_unknown) {
  tokens_.resize(config.tokens.size());
  by_token_.reserve(config.tokens.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (!config.tokens[id]) continue;
    tokens_[id] = *config.tokens[id];
    if (!by_token_.emplace(tokens_[id], static_cast<std::int32_t>(id)).second) {
      bad_file(config.file, "every token once", concat("a second ", quoted(tokens_[id])));
    }
  }
  const auto id_of = [&](const std::string& token) {
    const auto found = by_token_.find(token);
    return found == by_token_.end() ? -1 : found->second;
  };
  if (config.unknown) {
    unknown_ = id_of(*config.unknown);
    if (unknown_ < 0) bad_file(config.file, "unk_token in the vocabulary", quoted(*config.unknown));
  }
  int known = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto at = static_cast<std::size_t>(byte);
    by_byte_[at] = id_of(byte_level_ ? std::string(1, static_cast<char>(byte)) : byte_token(byte));
    known += by_byte_[at] >= 0;
    if (byte < 128) by_ascii_[at] = id_of(std::string(1, static_cast<char>(byte)));
  }
  // A model that could not write some text would drop it without a word.
  if (byte_level_ ? known < 256 && unknown_ < 0 : !byte_fallback_ && unknown_ < 0) {
    bad_file(config.file, "a vocabulary that can write any text (a token for every byte, or unk_token)",
             byte_level_ ? concat("tokens for ", known, " of 256 bytes and no unk_token")
                         : "neither byte_fallback nor unk_token");
  }
  if (byte_fallback_ && !byte_level_ && known < 256 && (known > 0 || unknown_ < 0)) {
    bad_file(config.file, "all tokens <0x00> ... <0xFF>, or none of them and unk_token, for byte_fallback",
             concat(known, " of them"));
  }
  byte_fallback_ = byte_fallback_ && known == 256;
  add_merges(config);
}

void Bpe::add_merges(const BpeConfig& config) {
  const std::size_t size = std::bit_ceil(2 * config.merges.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  pairs_.assign(size, {kNoPair, kNoRank, -1});
  std::string joined;
  for (std::size_t rank = 0; rank < config.merges.size(); ++rank) {
    const auto& [left, right] = config.merges[rank];
    joined = left;
    joined += right;
    const auto a = by_token_.find(left), b = by_token_.find(right), ab = by_token_.find(joined);
    if (a == by_token_.end() || b == by_token_.end() || ab == by_token_.end()) {
      bad_file(config.file, "merges of tokens into tokens",
               concat("merge ", rank, " of ", quoted(left), " and ", quoted(right)));
    }
    const std::uint64_t key = key_of(a->second, b->second);
    std::size_t at = key * 0x9E3779B97F4A7C15u >> shift_;
    while (pairs_[at].key != kNoPair && pairs_[at].key != key) at = (at + 1) & (size - 1);
    pairs_[at] = {key, static_cast<std::uint32_t>(rank), ab->second};  // of equal pairs the last one counts
  }
}

const Bpe::Pair* Bpe::pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  for (std::size_t at = key * 0x9E3779B97F4A7C15u >> shift_;; at = (at + 1) & (pairs_.size() - 1)) {
    if (pairs_[at].key == key) return &pairs_[at];
    if (pairs_[at].key == kNoPair) return nullptr;
  }
}

void Bpe::symbols(std::string_view word, std::vector<std::int32_t>& ids) const {
  ids.clear();
  bool unknown_before = false;
  const auto add_unknown = [&] {
    if (!unknown_before || !fuse_unknown_) ids.push_back(unknown_);
    unknown_before = true;
  };
  if (byte_level_) {
    for (const char c : word) {
      const std::int32_t id = by_byte_[static_cast<std::uint8_t>(c)];
      if (id < 0) {
        add_unknown();
        continue;
      }
      ids.push_back(id);
      unknown_before = false;
    }
    return;
  }
  while (!word.empty()) {
    const std::size_t length = character_length(word);
    const std::string_view character = word.substr(0, length);
    word.remove_prefix(length);
    std::int32_t id = -1;
    if (length == 1) {
      id = by_ascii_[static_cast<std::uint8_t>(character[0])];
    } else if (const auto found = by_token_.find(character); found != by_token_.end()) {
      id = found->second;
    }
    if (id >= 0) {
      ids.push_back(id);
      unknown_before = false;
    } else if (byte_fallback_) {
      for (const char c : character) ids.push_back(by_byte_[static_cast<std::uint8_t>(c)]);
    } else {
      add_unknown();
    }
  }
}

void Bpe::merge(Scratch& scratch) const {
  std::vector<std::int32_t>& ids = scratch.ids_;
  if (ids.size() > kShortWord) return merge_long(scratch);
  std::uint32_t ranks[kShortWord];
  std::int32_t merged[kShortWord];
  std::size_t count = ids.size();
  const auto look = [&](std::size_t i) {
    const Pair* found = pair(ids[i], ids[i + 1]);
    ranks[i] = found == nullptr ? kNoRank : found->rank;
    merged[i] = found == nullptr ? -1 : found->id;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    ids[best] = merged[best];
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --count;
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  ids.resize(count);
}

void Bpe::merge_long(Scratch& scratch) const {
  using Candidate = Scratch::Candidate;
  using Symbol = Scratch::Symbol;
  std::vector<Symbol>& symbols = scratch.symbols_;
  std::vector<Candidate>& heap = scratch.heap_;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto size = static_cast<std::int32_t>(scratch.ids_.size());
  symbols.clear();
  heap.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    symbols.push_back({scratch.ids_[static_cast<std::size_t>(i)], i - 1, i + 1 < size ? i + 1 : -1});
  }
  const auto symbol = [&](std::int32_t at) -> Symbol& { return symbols[static_cast<std::size_t>(at)]; };
  const auto candidate = [&](std::int32_t at) -> const Pair* {
    return at < 0 || symbol(at).after < 0 ? nullptr : pair(symbol(at).id, symbol(symbol(at).after).id);
  };
  for (std::int32_t i = 0; i + 1 < size; ++i) {
    if (const Pair* found = candidate(i)) heap.push_back({found->rank, i, found->id});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](std::int32_t at) {
    const Pair* found = candidate(at);
    if (found == nullptr) return;
    heap.push_back({found->rank, at, found->id});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    const Candidate next = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    if (symbol(next.at).id < 0) continue;  // merged into the one before it
    const Pair* found = candidate(next.at);
    if (found == nullptr || found->rank != next.rank) continue;  // one of the two has changed since
    const std::int32_t gone = symbol(next.at).after;
    symbol(next.at).id = next.id;
    symbol(next.at).after = symbol(gone).after;
    if (symbol(gone).after >= 0) symbol(symbol(gone).after).before = next.at;
    symbol(gone).id = -1;
    push(symbol(next.at).before);
    push(next.at);
  }
  scratch.ids_.clear();
  for (std::int32_t at = 0; at >= 0; at = symbol(at).after) scratch.ids_.push_back(symbol(at).id);
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  using Slot = Scratch::Slot;
  Slot* slot = nullptr;
  if (word.size() <= sizeof(Slot::word)) {
    slot = &scratch.slots_[hash_of(word) % kSlots];
    if (slot->length == word.size() && std::memcmp(slot->word, word.data(), word.size()) == 0) {
      ids.insert(ids.end(), slot->ids, slot->ids + slot->count);
      return;
    }
  }
  std::vector<std::int32_t>& part = scratch.ids_;
  const auto whole = ignore_merges_ ? by_token_.find(word) : by_token_.end();
  if (whole != by_token_.end()) {
    part.assign(1, whole->second);
  } else {
    symbols(word, part);
    merge(scratch);
  }
  ids.insert(ids.end(), part.begin(), part.end());
  if (slot != nullptr && part.size() <= std::size(slot->ids)) {
    slot->length = static_cast<std::uint8_t>(word.size());
    slot->count = static_cast<std::uint8_t>(part.size());
    std::memcpy(slot->word, word.data(), word.size());
    std::copy(part.begin(), part.end(), slot->ids);
  }
}

void Bpe::encode_bytes(std::string_view bytes, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (byte_level_) return encode(bytes, scratch, ids);
  if (!byte_fallback_) {
    ids.insert(ids.end(), fuse_unknown_ ? 1 : bytes.size(), unknown_);
    return;
  }
  for (const char c : bytes) ids.push_back(by_byte_[static_cast<std::uint8_t>(c)]);
}

}  // namespace gsa::data
