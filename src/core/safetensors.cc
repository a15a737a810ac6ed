#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "core/json.h"

namespace gsa {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored in little endian order");

constexpr std::size_t kLengthBytes = 8;

struct TypeRow {
  StoredType type;
  const char* name;
  std::int64_t size;
};

constexpr std::array<TypeRow, 15> kTypes = {{{StoredType::boolean, "BOOL", 1},
                                             {StoredType::u8, "U8", 1},
                                             {StoredType::i8, "I8", 1},
                                             {StoredType::f8_e4m3, "F8_E4M3", 1},
                                             {StoredType::f8_e5m2, "F8_E5M2", 1},
                                             {StoredType::i16, "I16", 2},
                                             {StoredType::u16, "U16", 2},
                                             {StoredType::f16, "F16", 2},
                                             {StoredType::bf16, "BF16", 2},
                                             {StoredType::i32, "I32", 4},
                                             {StoredType::u32, "U32", 4},
                                             {StoredType::f32, "F32", 4},
                                             {StoredType::i64, "I64", 8},
                                             {StoredType::u64, "U64", 8},
                                             {StoredType::f64, "F64", 8}}};

constexpr std::array<std::pair<DType, StoredType>, 4> kDTypes = {{{DType::f32, StoredType::f32},
                                                                  {DType::f64, StoredType::f64},
                                                                  {DType::bf16, StoredType::bf16},
                                                                  {DType::f16, StoredType::f16}}};

const TypeRow& row_of(StoredType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  bad_argument("safetensors", "type", "a stored type", concat(static_cast<int>(type)));
}

// Bytes of a tensor; empty where the product leaves 63 bits.
std::optional<std::int64_t> byte_count(StoredType type, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = size_of(type);
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string in_quotes(const std::string& text) { return shown(Json(text)); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Follows the header's JSON event by event. The format has three levels and few keys, so every event is
// either the one that is expected here or an error, and bounds hold before memory is taken.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& file, const SafetensorsLimits& limits) : file_(file), limits_(limits) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& text) override {
    switch (state_) {
      case State::top:
        return top_key(text);
      case State::metadata:
        count_metadata(text);
        current_ = text;
        if (header_.metadata.contains(text)) {
          fail("every key of __metadata__ once", concat("a second ", in_quotes(text)));
        }
        return true;
      default:
        return tensor_key(text);
    }
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::metadata_start) {
      state_ = State::metadata;
    } else if (state_ == State::tensor_start) {
      state_ = State::tensor;
      seen_ = {};
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) {
      if (!seen_.all()) fail_tensor("the keys dtype, shape and data_offsets", "fewer");
      header_.tensors.push_back(std::move(tensor_));
      state_ = State::top;
    } else if (state_ == State::metadata) {
      state_ = State::top;
    } else {
      state_ = State::done;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape_start) {
      state_ = State::shape;
    } else if (state_ == State::offsets_start) {
      state_ = State::offsets;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_ != 2) {
      fail_tensor("two data_offsets", concat(offsets_));
    }
    state_ = State::tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::shape && state_ != State::offsets) unexpected(concat("the number ", value));
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) {
      fail_tensor("numbers of at most 63 bits", concat(value));
    }
    const std::int64_t number = static_cast<std::int64_t>(value);
    if (state_ == State::shape) {
      if (static_cast<std::int64_t>(tensor_.shape.size()) >= limits_.rank) {
        fail_tensor(concat("at most ", limits_.rank, " dimensions"), "more");
      }
      tensor_.shape.push_back(number);
    } else {
      if (offsets_ >= 2) fail_tensor("two data_offsets", "more");
      (offsets_ == 0 ? tensor_.begin : tensor_.end) = number;
      ++offsets_;
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::metadata) {
      count_metadata(text);
      header_.metadata.emplace(current_, text);
      return true;
    }
    if (state_ != State::dtype) unexpected(concat("the text ", in_quotes(text)));
    for (const TypeRow& row : kTypes) {
      if (text != row.name) continue;
      tensor_.type = row.type;
      state_ = State::tensor;
      return true;
    }
    fail_tensor("a dtype of whole bytes (F32, BF16, F16, F64, I64, ...)", in_quotes(text));
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { unexpected(concat("the number ", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    unexpected(concat("the number ", text.substr(0, 40)));
  }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("JSON", concat("an error at byte ", kLengthBytes + position));
  }

 private:
  enum class State {
    start,
    top,
    metadata_start,
    metadata,
    tensor_start,
    tensor,
    dtype,
    shape_start,
    shape,
    offsets_start,
    offsets,
    done
  };
  struct Seen {
    bool dtype = false, shape = false, offsets = false;
    bool all() const { return dtype && shape && offsets; }
  };

  bool top_key(const std::string& text) {
    if (text == "__metadata__") {
      if (std::exchange(seen_metadata_, true)) fail("__metadata__ once", "a second one");
      state_ = State::metadata_start;
      return true;
    }
    if (static_cast<std::int64_t>(text.size()) > limits_.name_bytes) {
      fail(concat("tensor names of at most ", limits_.name_bytes, " bytes"), concat(text.size()));
    }
    if (static_cast<std::int64_t>(header_.tensors.size()) >= limits_.tensors) {
      fail(concat("at most ", limits_.tensors, " tensors"), "more");
    }
    tensor_ = {};
    tensor_.name = text;
    if (!names_.insert(text).second) fail_tensor("every name once", "it a second time");
    state_ = State::tensor_start;
    return true;
  }

  bool tensor_key(const std::string& text) {
    const auto enter = [&](bool& seen, State next) {
      if (std::exchange(seen, true)) fail_tensor("every key once", concat("a second ", in_quotes(text)));
      state_ = next;
      return true;
    };
    if (text == "dtype") return enter(seen_.dtype, State::dtype);
    if (text == "shape") return enter(seen_.shape, State::shape_start);
    if (text == "data_offsets") {
      offsets_ = 0;
      return enter(seen_.offsets, State::offsets_start);
    }
    fail_tensor("the keys dtype, shape and data_offsets", in_quotes(text));
  }

  void count_metadata(const std::string& text) {
    metadata_bytes_ += static_cast<std::int64_t>(text.size());
    if (metadata_bytes_ > limits_.metadata_bytes) {
      fail(concat("at most ", limits_.metadata_bytes, " bytes of metadata"), "more");
    }
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    bad_file(file_, concat("in its header ", expected), got);
  }

  [[noreturn]] void fail_tensor(const std::string& expected, const std::string& got) const {
    fail(concat("for tensor ", in_quotes(tensor_.name), " ", expected), got);
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (state_) {
      case State::start:
        fail("an object", what);
      case State::metadata_start:
        fail("an object as __metadata__", what);
      case State::metadata:
        fail(concat("text as __metadata__ ", in_quotes(current_)), what);
      case State::tensor_start:
        fail_tensor("an object", what);
      case State::dtype:
        fail_tensor("text as dtype", what);
      case State::shape_start:
        fail_tensor("a list as shape", what);
      case State::offsets_start:
        fail_tensor("a list as data_offsets", what);
      default:
        fail_tensor("whole numbers from 0 in shape and data_offsets", what);
    }
  }

  const std::string& file_;
  const SafetensorsLimits& limits_;
  SafetensorsHeader header_;
  State state_ = State::start;
  StoredTensor tensor_;
  Seen seen_;
  int offsets_ = 0;
  std::string current_;  // the key in __metadata__
  bool seen_metadata_ = false;
  std::int64_t metadata_bytes_ = 0;
  std::set<std::string> names_;
};

// Sizes agree with shapes, and tensors are contiguous over exactly `available` bytes.
void check_layout(const std::vector<StoredTensor>& tensors, std::int64_t available, const std::string& file) {
  std::int64_t position = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto fail = [&](const std::string& expected, const std::string& got) {
      bad_file(file, concat("for tensor ", in_quotes(tensor.name), " ", expected), got);
    };
    if (tensor.begin != position) {
      fail(concat("bytes from ", position, " on (no gap, no overlap)"), concat(tensor.begin));
    }
    const auto bytes = byte_count(tensor.type, tensor.shape);
    if (!bytes)
      fail("a size of at most 63 bits", concat(name_of(tensor.type), " ", shape_text(tensor.shape)));
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != *bytes) {
      fail(concat(*bytes, " bytes for ", name_of(tensor.type), " ", shape_text(tensor.shape)),
           concat("offsets ", tensor.begin, " to ", tensor.end));
    }
    position = tensor.end;
  }
  if (position != available) {
    bad_file(file, concat(position, " bytes of tensors, by its header"), concat(available));
  }
}

void sort_by_position(std::vector<StoredTensor>& tensors) {
  // Empty tensors share their place with what follows; the name makes the order unique.
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
}

}  // namespace

const char* name_of(StoredType type) { return row_of(type).name; }

std::int64_t size_of(StoredType type) { return row_of(type).size; }

StoredType stored_type_of(DType type) {
  for (const auto& [dtype, stored] : kDTypes) {
    if (dtype == type) return stored;
  }
  bad_argument("safetensors", "dtype", "float32, float64, bfloat16 or float16",
               concat(static_cast<int>(type)));
}

std::optional<DType> dtype_of(StoredType type) {
  for (const auto& [dtype, stored] : kDTypes) {
    if (stored == type) return dtype;
  }
  return std::nullopt;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name,
                                    const SafetensorsLimits& limits) {
  if (file.size() < kLengthBytes) {
    bad_file(name, "a safetensors file, which starts with 8 bytes of length",
             concat(file.size(), " bytes in all"));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > static_cast<std::uint64_t>(limits.header_bytes)) {
    bad_file(name, concat("a header of at most ", limits.header_bytes, " bytes"), concat(length));
  }
  if (length > file.size() - kLengthBytes) {
    bad_file(name, concat("a header of ", length, " bytes, by its first 8 bytes"),
             concat("a file that has ", file.size() - kLengthBytes, " after them"));
  }
  const char* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') bad_file(name, "a header that starts with '{'", "another");
  if (std::memchr(text, 0, length) != nullptr) {  // the parser would take it for the end
    bad_file(name, "a header of text", "a byte 0 in it");
  }

  HeaderReader reader(name, limits);
  Json::sax_parse(text, text + length, &reader);  // throws by itself
  SafetensorsHeader header = reader.take();
  sort_by_position(header.tensors);
  header.data_begin = static_cast<std::int64_t>(kLengthBytes + length);
  check_layout(header.tensors, static_cast<std::int64_t>(file.size()) - header.data_begin, name);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return file_.bytes().subspan(static_cast<std::size_t>(header_.data_begin + tensor.begin),
                               static_cast<std::size_t>(tensor.end - tensor.begin));
}

void write_safetensors(const std::filesystem::path& path, const SafetensorsContent& content) {
  constexpr const char* kOp = "write_safetensors";
  const SafetensorsLimits limits;
  std::vector<StoredTensor> tensors = content.tensors;
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(-size_of(a.type), a.name) < std::pair(-size_of(b.type), b.name);
  });

  OrderedJson header = OrderedJson::object();
  if (!content.metadata.empty()) header["__metadata__"] = content.metadata;
  std::int64_t position = 0;
  std::set<std::string> names;
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      bad_argument(kOp, "tensors", "every name once, and none that the format keeps", in_quotes(tensor.name));
    }
    const auto bytes = byte_count(tensor.type, tensor.shape);
    tensor.begin = position;
    if (!bytes || __builtin_add_overflow(position, *bytes, &position)) {
      bad_argument(kOp, "tensors", "sizes of at most 63 bits", shape_text(tensor.shape));
    }
    tensor.end = position;
  }
  // Built as text: a million keys would make an ordered object quadratic.
  std::string text = header.dump();
  text.pop_back();
  for (const StoredTensor& tensor : tensors) {
    const OrderedJson value = {{"dtype", name_of(tensor.type)},
                               {"shape", tensor.shape},
                               {"data_offsets", {tensor.begin, tensor.end}}};
    text += concat(text.size() > 1 ? "," : "", OrderedJson(tensor.name).dump(), ":", value.dump());
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors then start at a multiple of 8
  if (static_cast<std::int64_t>(text.size()) > limits.header_bytes) {
    bad_argument(kOp, "tensors", concat("a header of at most ", limits.header_bytes, " bytes"),
                 concat(text.size()));
  }

  AtomicFile file(path);
  const std::uint64_t length = text.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const StoredTensor& tensor : tensors) {
    const std::span<const std::byte> bytes = content.bytes(tensor);
    if (static_cast<std::int64_t>(bytes.size()) != tensor.end - tensor.begin) {
      bad_argument(kOp, "bytes", concat(tensor.end - tensor.begin, " bytes of ", in_quotes(tensor.name)),
                   concat(bytes.size()));
    }
    file.write(bytes);
  }
  file.commit();
}

}  // namespace gsa
