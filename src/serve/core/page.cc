#include "serve/core/page.h"

#include <string_view>

#include "gsa/error.h"

namespace gsa::serve {
namespace {

constexpr std::string_view kData = R"(<script id="data" type="application/json">)";

// In JSON '<' stands in strings only, where it may be escaped: nothing in them can end the script or begin a comment.
std::string in_a_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string page_with_data(const std::string& data) {
  const std::string& page = page_html();
  const std::size_t at = page.find(kData);
  if (at == std::string::npos) throw Error("page.html: expected a script 'data', got none");
  std::string text = page;
  text.insert(at + kData.size(), in_a_script(data));
  return text;
}

}  // namespace gsa::serve
