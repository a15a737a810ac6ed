#include "core/json.h"

#include <set>
#include <vector>

#include "core/file.h"

namespace gsa {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxDepth) {
          bad_file(file, concat("JSON of at most ", kMaxDepth, " levels"), "more");
        }
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second) {
          bad_file(file, "every key once", concat("a second ", shown(parsed)));
        }
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::array_end:
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  if (text.find('\0') != std::string_view::npos) {  // the parser would take it for the end
    bad_file(file, "JSON", "a byte 0 in it");
  }
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    bad_file(file, "JSON", error.what());
  }
}

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 80;
  if (value.is_object()) return concat("an object of ", value.size(), " keys");
  if (value.is_array() && value.size() > 8) return concat("a list of ", value.size(), " values");
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace gsa
