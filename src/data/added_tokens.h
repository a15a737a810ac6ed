// Tokens that are looked for in a text before anything else is done with it, such as <|endoftext|>.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/regex.h"

namespace gsa::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;                          // a mark: gives no text
  bool normalized = false;                       // looked for behind the normalizers, not before them
  bool left_strip = false, right_strip = false;  // takes the white space beside it
  bool single_word = false;                      // not beside a letter or digit
};

class AddedTokens {
 public:
  AddedTokens();

  // text: what is looked for, of valid UTF-8 and not empty. Of equal texts the last counts.
  void add(const AddedToken& token, const std::string& text);
  bool empty() const { return tokens_.empty(); }

  // Cuts a text: part(id, text) is called for each token found (at a place the longest, and its white
  // space) and, with id -1, for what lies between them.
  void split(std::string_view text, RegexScratch& scratch,
             const std::function<void(std::int32_t id, std::string_view part)>& part) const;

 private:
  // The token at the beginning of the text, the longest; null: none.
  const AddedToken* at_front(std::string_view text, std::size_t& length) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) to node; ends_[node] is the token that ends there, -1 for none.
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> ends_;
  bool begins_[256] = {};  // whether a token begins with the byte
  Regex word_, space_;
};

}  // namespace gsa::data
