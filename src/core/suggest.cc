#include "core/suggest.h"

#include <algorithm>
#include <cstddef>

#include "gsa/error.h"

namespace gsa {
namespace {

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

// '-', '_' and '.' are the same key to someone who types from memory.
std::string folded(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if (c == '-' || c == '.') c = '_';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64;  // a name beyond this was not mistyped
  if (wrong.size() > kLongest) return "";
  const std::string typed = folded(wrong);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(typed, folded(name));
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string with_suggestion(std::string_view wrong, const std::vector<std::string>& known) {
  const std::string near = nearest_name(wrong, known);
  return near.empty() ? concat("'", wrong, "'") : concat("'", wrong, "' (did you mean '", near, "'?)");
}

std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace gsa
