// "did you mean ...?" for names that people type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gsa {

// The known name nearest to `wrong` by edits, where one is near enough to be meant; else empty.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& known);

// "'smal' (did you mean 'small'?)", or "'xyz'" where nothing is near.
std::string with_suggestion(std::string_view wrong, const std::vector<std::string>& known);

// "a, b or c".
std::string alternatives(const std::vector<std::string>& names);

}  // namespace gsa
