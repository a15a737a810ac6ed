#include "core/json.h"

#include <vector>

#include "core/file.h"

namespace gsa {
namespace {

constexpr std::size_t kMaxDepth = 64;

// Builds the document out of the parser's events: strict, and twice as fast as the parser's own callback.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& value) override { return put(std::move(value)); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    const auto [at, fresh] = open_.back()->get_ref<Json::object_t&>().emplace(std::move(name), nullptr);
    if (!fresh) bad_file(file_, "every key once", concat("a second ", shown(Json(at->first))));
    member_ = &at->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string& last, const nlohmann::json::exception& error) override {
    constexpr int kOverflow = 406;
    if (error.id == kOverflow) bad_file(file_, "numbers up to 1.8e308", last);
    std::string message =
        error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const std::size_t end = message.find("] "); message.starts_with('[') && end != std::string::npos)
      message.erase(0, end + 2);
    bad_file(file_, "JSON", message);
  }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (!open_.back()->is_array()) return *member_ = std::move(value);
    auto& list = open_.back()->get_ref<Json::array_t&>();
    list.push_back(std::move(value));
    return list.back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= kMaxDepth) bad_file(file_, concat("JSON of at most ", kMaxDepth, " levels"), "more");
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& file_;
  Json root_;
  std::vector<Json*> open_;  // objects and lists, the outermost first; none is added to but the last
  Json* member_ = nullptr;   // of the innermost object: where the next value goes
};

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  if (text.find('\0') != std::string_view::npos) {  // the parser would take it for the end
    bad_file(file, "JSON", "a byte 0 in it");
  }
  Builder builder(file);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
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
