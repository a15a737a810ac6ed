// The page that shows a model at work: the server's own (GET /), and with data inside gsa inspect-text's. One file of
// HTML without anything from the network, which the build makes of page.html, page.css and page.js and puts into the
// library. No torch header.
#pragma once

#include <string>

namespace gsa::serve {

// For the server: the page asks POST /v1/completions, /tokenize and /gsa/look.
const std::string& page_html();

// The same page without the server's parts: it shows what `data`, JSON as docs/inspect-text.md describes it, holds.
std::string page_with_data(const std::string& data);

}  // namespace gsa::serve
