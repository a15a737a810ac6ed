// JSON from files, read strictly: duplicate keys, comments, trailing text and numbers beyond double are
// errors that name the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gsa {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // for files that people read: keys stay in the order of writing

// file: for messages.
Json parse_json(std::string_view text, const std::string& file);

// For messages: a value as text, cut short; "an object of 3 keys" and the like for what does not fit a line.
std::string shown(const Json& value);

}  // namespace gsa
