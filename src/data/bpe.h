// Byte-pair encoding of words: the model of a tokenizer.json. Of a word's symbols, the pair with the lowest
// rank is merged, the leftmost of equals first, until no pair has a rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gsa::data {

struct BpeConfig {
  std::string file;                                // for messages
  std::vector<std::optional<std::string>> tokens;  // by id: a token's bytes; none where no token has this id
  struct Merge {
    std::string left, right;
  };
  std::vector<Merge> merges;           // by rank
  bool byte_level = false;             // symbols are bytes, not characters
  bool byte_fallback = false;          // a character without a token becomes bytes, <0x00> ... <0xFF>
  bool ignore_merges = false;          // a word that is a token is that token
  bool fuse_unknown = false;           // unknown characters in a row are one token
  std::optional<std::string> unknown;  // what stands for a character that nothing else can write
};

class Bpe {
 public:
  // What encoding a word writes to, with the words that came before; one for each thread.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    // A cache line; longer words are encoded anew.
    struct Slot {
      std::uint8_t length = 0, count = 0;  // length 0: empty
      char word[30];
      std::int32_t ids[8];
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t at, id;
    };
    struct Symbol {
      std::int32_t id, before, after;  // -1: none
    };
    std::vector<Slot> slots_;
    std::vector<std::int32_t> ids_;
    std::vector<Candidate> heap_;
    std::vector<Symbol> symbols_;
  };

  explicit Bpe(const BpeConfig& config);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  // Appends the ids of a word of valid UTF-8.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  // Appends the ids of bytes that are no UTF-8.
  void encode_bytes(std::string_view bytes, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Pair {
    std::uint64_t key;
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNoRank = ~0u;

  void add_merges(const BpeConfig& config);
  const Pair* pair(std::int32_t left, std::int32_t right) const;
  void symbols(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, std::int32_t> by_token_;
  std::vector<Pair> pairs_;  // open addressing; key kNoPair: empty
  int shift_ = 0;
  std::array<std::int32_t, 256> by_byte_{};  // the symbol of a byte, or its fallback; -1: none
  std::array<std::int32_t, 128> by_ascii_{};
  bool byte_level_, byte_fallback_, ignore_merges_, fuse_unknown_;
  std::int32_t unknown_ = -1;
};

// "<0x0A>".
std::string byte_token(int byte);

}  // namespace gsa::data
