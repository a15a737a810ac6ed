// Fields of a request's JSON, read strictly: null counts as absent, unknown fields are nobody's business, and what is
// wrong is told with the field's name, as clients of OpenAI's know it. No torch header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "gsa/error.h"

namespace gsa::serve {

// Why a request is refused: HTTP status, and what OpenAI's error objects hold.
class RequestError : public Error {
 public:
  RequestError(int status, const std::string& message, std::string param, std::string code)
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }  // empty: null
  const std::string& code() const { return code_; }    // empty: null

 private:
  int status_;
  std::string param_, code_;
};

// "'top_p': expected a number from 0 to 1, got 3".
[[noreturn]] void bad_type(const std::string& param, const std::string& expected, const std::string& got);
[[noreturn]] void bad_value(const std::string& param, const std::string& expected, const std::string& got);
// "'tools' is not supported: ...".
[[noreturn]] void not_supported(const std::string& param, const std::string& advice);

// Of a body. A byte or three of it become a value of 16 to 100 bytes: those of "[],[],..." are 30 times as large.
struct JsonLimits {
  std::int64_t depth = 32;
  std::int64_t values = 8 << 20;  // numbers, true, false, null, strings, lists, objects
  std::int64_t nodes =
      256 << 10;  // of these strings, names, lists and objects, which have memory of their own
};

// The object in a body. The limits are looked at before anything is built.
Json parse_body(std::string_view body, const JsonLimits& limits);

// For messages: "a string", "a list" ...
std::string kind_of(const Json& value);

class Fields {
 public:
  // path: of the object within the body, such as "messages[0]"; empty: the body itself. The object must outlive it.
  explicit Fields(const Json& object, std::string path = "");

  // The field's name as the user knows it.
  std::string path(const std::string& name) const;

  // Null where the field is absent or null.
  const Json* find(const char* name) const;
  const Json& required(const char* name, const char* expected) const;

  std::optional<bool> boolean(const char* name) const;
  std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) const;
  // above: low itself is refused.
  std::optional<double> number(const char* name, double low, double high, bool above = false) const;
  std::optional<std::string> string(const char* name) const;

  // Refuses a field unless it is absent, null, or says what happens anyway.
  void refuse_unless(const char* name, std::initializer_list<Json> harmless, const std::string& advice) const;

 private:
  const Json& object_;
  std::string path_;
};

// A value as int64; param: for the message.
std::int64_t integer_of(const Json& value, const std::string& param, std::int64_t low, std::int64_t high);

}  // namespace gsa::serve
