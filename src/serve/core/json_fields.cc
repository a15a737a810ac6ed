#include "serve/core/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/utf8.h"

namespace gsa::serve {
namespace {

constexpr const char* kBody = "request body";

struct JsonSize {
  std::int64_t depth = 0, values = 1, nodes = 0;  // at most
};

// By brackets, commas and quotes outside of strings: right for JSON, and for what is none the parser complains.
JsonSize size_of(std::string_view text) {
  JsonSize size;
  std::int64_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
      ++size.nodes;
    } else if (c == '{' || c == '[') {
      size.depth = std::max(size.depth, ++depth);
      ++size.nodes;
      ++size.values;
    } else if (c == ',') {
      ++size.values;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return size;
}

[[noreturn]] void bad_body(const std::string& expected, const std::string& got) {
  throw RequestError(400, concat(kBody, ": expected ", expected, ", got ", got), "", "invalid_json");
}

std::string bounds_text(const char* kind, double low, double high, bool above) {
  if (!std::isfinite(high)) return concat(kind, above ? " above " : " of at least ", low);
  return above ? concat(kind, " above ", low, ", up to ", high) : concat(kind, " from ", low, " to ", high);
}

std::string bounds_text(std::int64_t low, std::int64_t high) {
  if (low == std::numeric_limits<std::int64_t>::min()) return "an integer of 64 bits";
  if (high == std::numeric_limits<std::int64_t>::max()) return concat("an integer of at least ", low);
  return concat("an integer from ", low, " to ", high);
}

}  // namespace

void bad_type(const std::string& param, const std::string& expected, const std::string& got) {
  throw RequestError(400, concat("'", param, "': expected ", expected, ", got ", got), param, "invalid_type");
}

void bad_value(const std::string& param, const std::string& expected, const std::string& got) {
  throw RequestError(400, concat("'", param, "': expected ", expected, ", got ", got), param,
                     "invalid_value");
}

void not_supported(const std::string& param, const std::string& advice) {
  throw RequestError(400, concat("'", param, "' is not supported: ", advice), param, "unsupported_parameter");
}

Json parse_body(std::string_view body, const JsonLimits& limits) {
  if (body.empty()) bad_body("a JSON object", "nothing");
  const std::size_t valid = valid_utf8(body);
  if (valid < body.size()) bad_body("UTF-8", concat("other bytes at offset ", valid));
  const JsonSize size = size_of(body);
  if (size.depth > limits.depth) bad_body(concat("JSON of at most ", limits.depth, " levels"), "more");
  if (size.values > limits.values) bad_body(concat("JSON of at most ", limits.values, " values"), "more");
  if (size.nodes > limits.nodes) {
    bad_body(concat("JSON of at most ", limits.nodes, " strings, lists and objects"), "more");
  }
  Json json;
  try {
    json = parse_json(body, kBody);
  } catch (const Error& error) {
    // The parser is one of files; its message begins with "file 'request body': ".
    std::string message = error.what();
    const std::string prefix = concat("file '", kBody, "': ");
    if (message.starts_with(prefix)) message = concat(kBody, ": ", message.substr(prefix.size()));
    throw RequestError(400, message, "", "invalid_json");
  }
  if (!json.is_object()) bad_body("a JSON object", kind_of(json));
  return json;
}

std::string kind_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_string()) return concat("the string ", shown(value));
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return shown(value);
}

std::int64_t integer_of(const Json& value, const std::string& param, std::int64_t low, std::int64_t high) {
  const std::string expected = bounds_text(low, high);
  if (value.is_number_float()) {                 // 5.0, of clients that know no other numbers
    constexpr double kExact = 9007199254740992;  // 2^53
    const auto number = value.get<double>();
    if (number == std::trunc(number)) {
      if (std::abs(number) > kExact) bad_value(param, expected, shown(value));
      return integer_of(static_cast<std::int64_t>(number), param, low, high);
    }
  }
  if (!value.is_number_integer()) bad_type(param, expected, kind_of(value));
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    bad_value(param, expected, shown(value));
  }
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) bad_value(param, expected, concat(number));
  return number;
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) bad_type(path_.empty() ? kBody : path_, "an object", kind_of(object_));
}

std::string Fields::path(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }

const Json* Fields::find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

const Json& Fields::required(const char* name, const char* expected) const {
  if (const Json* value = find(name)) return *value;
  throw RequestError(400, concat("'", path(name), "': expected ", expected, ", got nothing"), path(name),
                     "missing_required_parameter");
}

std::optional<bool> Fields::boolean(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) bad_type(path(name), "true or false", kind_of(*value));
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::integer(const char* name, std::int64_t low, std::int64_t high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return integer_of(*value, path(name), low, high);
}

std::optional<double> Fields::number(const char* name, double low, double high, bool above) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::string expected = bounds_text("a number", low, high, above);
  if (!value->is_number()) bad_type(path(name), expected, kind_of(*value));
  const auto number = value->get<double>();
  if (!(above ? number > low : number >= low) || number > high)
    bad_value(path(name), expected, shown(*value));
  return number;
}

std::optional<std::string> Fields::string(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) bad_type(path(name), "a string", kind_of(*value));
  return value->get<std::string>();
}

void Fields::refuse_unless(const char* name, std::initializer_list<Json> harmless,
                           const std::string& advice) const {
  const Json* value = find(name);
  if (value == nullptr || std::find(harmless.begin(), harmless.end(), *value) != harmless.end()) return;
  not_supported(path(name), advice);
}

}  // namespace gsa::serve
