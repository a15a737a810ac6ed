// A small reader of XML for tests: is it well-formed, and what is in it?
#pragma once

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gsa::testing {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // what stands directly in it, entities as written
};

struct Xml {
  std::vector<XmlElement> elements;  // in the order of their start tags
  std::string error;                 // empty: well-formed

  std::size_t count(const std::string& name) const {
    return static_cast<std::size_t>(
        std::count_if(elements.begin(), elements.end(), [&](const auto& e) { return e.name == name; }));
  }
  bool has_text(const std::string& text) const {
    return std::any_of(elements.begin(), elements.end(), [&](const auto& e) { return e.text == text; });
  }
  // Elements one of whose classes is this one.
  std::vector<const XmlElement*> of_class(const std::string& name) const {
    std::vector<const XmlElement*> found;
    for (const XmlElement& element : elements) {
      const auto entry = element.attributes.find("class");
      if (entry != element.attributes.end() &&
          (' ' + entry->second + ' ').find(' ' + name + ' ') != std::string::npos)
        found.push_back(&element);
    }
    return found;
  }
};

// One root element; tags, attributes in double quotes, text, the five entities. No comments, no prologue.
inline Xml read_xml(std::string_view source) {
  Xml xml;
  std::vector<std::size_t> open;
  std::size_t at = 0;
  const auto fail = [&](const std::string& what) {
    if (xml.error.empty()) xml.error = what + " at byte " + std::to_string(at);
    return xml;
  };
  const auto name = [&] {
    const std::size_t begin = at;
    while (at < source.size() &&
           (std::isalnum(static_cast<unsigned char>(source[at])) || source[at] == '-' || source[at] == ':'))
      ++at;
    return std::string(source.substr(begin, at - begin));
  };
  const auto good_text = [](std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '<' ||
          (static_cast<unsigned char>(text[i]) < 0x20 && text[i] != '\n' && text[i] != '\t'))
        return false;
      if (text[i] != '&') continue;
      const std::string_view rest = text.substr(i);
      if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&gt;") &&
          !rest.starts_with("&quot;"))
        return false;
    }
    return true;
  };
  while (at < source.size()) {
    if (source[at] != '<') {
      const std::size_t end = std::min(source.find('<', at), source.size());
      const std::string_view text = source.substr(at, end - at);
      if (!good_text(text)) return fail("text that is not escaped");
      if (open.empty()) {
        if (text.find_first_not_of(" \n") != std::string_view::npos) return fail("text outside the root");
      } else {
        xml.elements[open.back()].text += text;
      }
      at = end;
      continue;
    }
    ++at;
    if (at < source.size() && source[at] == '/') {
      ++at;
      const std::string closed = name();
      if (open.empty() || xml.elements[open.back()].name != closed)
        return fail("</" + closed + "> without its start");
      open.pop_back();
      if (at >= source.size() || source[at++] != '>') return fail("an end tag without >");
      continue;
    }
    XmlElement element{name(), {}, {}};
    if (element.name.empty()) return fail("a tag without a name");
    if (open.empty() && !xml.elements.empty()) return fail("a second root");
    while (at < source.size() && source[at] == ' ') {
      ++at;
      const std::string attribute = name();
      if (attribute.empty() || source.substr(at, 2) != "=\"") return fail("an attribute without a value");
      const std::size_t end = source.find('"', at + 2);
      if (end == std::string_view::npos) return fail("a value without an end");
      const std::string_view value = source.substr(at + 2, end - at - 2);
      if (!good_text(value)) return fail("a value that is not escaped");
      if (!element.attributes.emplace(attribute, value).second) return fail("an attribute twice");
      at = end + 1;
    }
    const bool closes = source.substr(at, 2) == "/>";
    if (!closes && source.substr(at, 1) != ">") return fail("a start tag without >");
    at += closes ? 2 : 1;
    xml.elements.push_back(std::move(element));
    if (!closes) open.push_back(xml.elements.size() - 1);
  }
  if (!open.empty()) return fail("<" + xml.elements[open.back()].name + "> without its end");
  if (xml.elements.empty()) return fail("nothing");
  return xml;
}

}  // namespace gsa::testing
