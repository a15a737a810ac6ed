#include "data/added_tokens.h"

#include <algorithm>

#include "core/utf8.h"

namespace gsa::data {
namespace {

constexpr const char* kFile = "gsa";  // these patterns are our own

// The last character of a text that is not empty.
std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while ((static_cast<std::uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

std::string_view front_character(std::string_view text) { return text.substr(0, character_length(text)); }

std::uint64_t edge(std::uint32_t node, char byte) {
  return static_cast<std::uint64_t>(node) << 8 | static_cast<std::uint8_t>(byte);
}

}  // namespace

AddedTokens::AddedTokens() : ends_{-1}, word_(R"([\w\x{200C}\x{200D}])", kFile), space_(R"(\s)", kFile) {}

void AddedTokens::add(const AddedToken& token, const std::string& text) {
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto [at, fresh] = edges_.emplace(edge(node, c), static_cast<std::uint32_t>(ends_.size()));
    if (fresh) ends_.push_back(-1);
    node = at->second;
  }
  begins_[static_cast<std::uint8_t>(text[0])] = true;
  ends_[node] = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* AddedTokens::at_front(std::string_view text, std::size_t& length) const {
  const AddedToken* longest = nullptr;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto next = edges_.find(edge(node, text[i]));
    if (next == edges_.end()) break;
    node = next->second;
    if (ends_[node] < 0) continue;
    longest = &tokens_[static_cast<std::size_t>(ends_[node])];
    length = i + 1;
  }
  return longest;
}

void AddedTokens::split(std::string_view text, RegexScratch& scratch,
                        const std::function<void(std::int32_t id, std::string_view part)>& part) const {
  const auto is = [&](const Regex& kind, std::string_view character) {
    Regex::Match match;
    return kind.find(character, 0, scratch, match);
  };
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    const AddedToken* token =
        begins_[static_cast<std::uint8_t>(text[at])] ? at_front(text.substr(at), length) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + length;
    at = end;
    if (token->single_word && ((begin > 0 && is(word_, last_character(text.substr(0, begin)))) ||
                               (end < text.size() && is(word_, front_character(text.substr(end)))))) {
      continue;
    }
    while (token->left_strip && begin > done) {
      const std::string_view before = last_character(text.substr(0, begin));
      if (!is(space_, before)) break;
      begin -= before.size();
    }
    while (token->right_strip && end < text.size()) {
      const std::string_view behind = front_character(text.substr(end));
      if (!is(space_, behind)) break;
      end += behind.size();
    }
    if (begin > done) part(-1, text.substr(done, begin - done));
    part(token->id, text.substr(begin, end - begin));
    at = done = end;
  }
  if (done < text.size()) part(-1, text.substr(done));
}

}  // namespace gsa::data
