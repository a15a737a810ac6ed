// The safetensors format: 8 bytes of header length N (little endian), N bytes of JSON, then the tensors'
// bytes.
//
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
//    "__metadata__": {"key": "text"}}
//
// Reading is strict: N is checked before anything is allocated; the header starts with '{' and has no key
// twice; shape times element size, computed without wrapping, equals the offsets' distance; tensors are
// contiguous from offset 0 to the end of the file. Counts, ranks and name lengths have bounds of our own. Any
// deviation is a gsa::Error that names the file, what was expected and what came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/file.h"
#include "gsa/dtype.h"

namespace gsa {

// The element types of the format whose elements are whole bytes.
enum class StoredType {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64
};

const char* name_of(StoredType type);  // as in files: "F32"
std::int64_t size_of(StoredType type);

// The stored type of our tensors' types, and the way back: absent where none of ours is stored so.
StoredType stored_type_of(DType type);
std::optional<DType> dtype_of(StoredType type);

struct SafetensorsLimits {
  std::int64_t header_bytes = 100'000'000;
  std::int64_t tensors = 1'000'000;
  std::int64_t rank = 8;
  std::int64_t name_bytes = 1024;
  std::int64_t metadata_bytes = 10'000'000;  // keys and values together
};

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;  // where the first tensor starts in the file
};

// file: all bytes of a file; name: for messages.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& name,
                                    const SafetensorsLimits& limits = {});

// A file mapped into memory.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const StoredTensor* find(const std::string& name) const;  // null: no such tensor
  // Unaligned; valid as long as this object.
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

// What to write; begin and end are ignored. bytes: called once for each tensor, in the order of the file, so
// that only one needs to be in memory; must give shape times size bytes.
struct SafetensorsContent {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::function<std::span<const std::byte>(const StoredTensor& tensor)> bytes;
};

// Writes atomically (AtomicFile). Tensors are laid out by element size, largest first, then by name, so that
// each is aligned to its elements.
void write_safetensors(const std::filesystem::path& path, const SafetensorsContent& content);

}  // namespace gsa
