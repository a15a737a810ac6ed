// Members of the objects in a tokenizer.json. What is missing, of another type or not known is an error that
// names the file and the place.
#pragma once

#include <initializer_list>
#include <string>

#include "core/file.h"
#include "core/json.h"

namespace gsa::data {

// An object of the file, and where it stands: "model", "pre_tokenizer.pretokenizers[0]".
class JsonReader {
 public:
  JsonReader(const Json& object, std::string place, const std::string& file)
      : object_(object), place_(std::move(place)), file_(file) {
    if (!object.is_object()) bad_file(file, concat("an object for ", place_), shown(object));
  }

  const Json& json() const { return object_; }
  const std::string& place() const { return place_; }
  const std::string& file() const { return file_; }
  std::string path(const char* key) const { return place_.empty() ? key : concat(place_, ".", key); }

  // The member; a null one where there is none.
  const Json& at(const char* key) const {
    static const Json none;
    const auto found = object_.find(key);
    return found == object_.end() ? none : *found;
  }
  std::string string(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) wrong(key, "a string");
    return value.get<std::string>();
  }
  std::string string(const char* key, const char* otherwise) const {
    return at(key).is_null() ? otherwise : string(key);
  }
  bool boolean(const char* key, bool otherwise) const {
    const Json& value = at(key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) wrong(key, "true or false");
    return value.get<bool>();
  }
  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max) const {
    const Json& value = at(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) ||
        value.get<std::int64_t>() < min || value.get<std::int64_t>() > max) {
      wrong(key, concat("an integer in ", min, " .. ", max));
    }
    return value.get<std::int64_t>();
  }
  // Refuses members that are not among these: they would be ignored.
  void only(std::initializer_list<const char*> keys) const {
    for (const auto& [key, value] : object_.items()) {
      bool known = false;
      for (const char* name : keys) known = known || key == name;
      if (!known) bad_file(file_, concat("only known members of ", place_), shown(Json(key)));
    }
  }
  [[noreturn]] void wrong(const char* key, const std::string& expected) const {
    bad_file(file_, concat(expected, " for ", path(key)), at(key).is_null() ? "none" : shown(at(key)));
  }

 private:
  const Json& object_;
  std::string place_;
  const std::string& file_;
};

}  // namespace gsa::data
