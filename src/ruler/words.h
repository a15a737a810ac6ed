// English words for keys and lists, a list of our own: lower case, ASCII, none of them twice.
#pragma once

#include <string_view>
#include <vector>

namespace gsa::ruler {

const std::vector<std::string_view>& adjectives();
const std::vector<std::string_view>& nouns();
const std::vector<std::string_view>& verbs();

}  // namespace gsa::ruler
