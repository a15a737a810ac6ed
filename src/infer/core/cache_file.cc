#include "infer/core/cache_file.h"

#include <cstdio>
#include <cstring>
#include <optional>

#include "core/crc32c.h"
#include "gsa/error.h"
#include "model/model_config.h"

namespace gsa::infer {
namespace {

constexpr const char* kFormat = "gsa-cache";
constexpr const char* kVersion = "1";
constexpr const char* kTokens = "tokens";
constexpr const char* kTrailer = "trailer.crc32c";

std::string describe(const StoredTensor& tensor) {
  std::string shape;
  for (const std::int64_t size : tensor.shape) shape += concat(shape.empty() ? "" : ", ", size);
  return concat(name_of(tensor.type), " [", shape, "]");
}

std::string fingerprint_text(std::uint32_t model) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", model);
  return text;
}

std::uint32_t read_model(const SafetensorsHeader& header, const std::string& name) {
  const auto value = [&](const char* key) {
    const auto found = header.metadata.find(key);
    if (found == header.metadata.end()) bad_file(name, concat("the key '", key, "' in its metadata"), "none");
    return found->second;
  };
  const std::string format = header.metadata.contains("format") ? value("format") : "no format at all";
  if (format != kFormat) bad_file(name, concat("a cache (format '", kFormat, "')"), format);
  if (const std::string version = value("version"); version != kVersion) {
    bad_file(name, concat("version ", kVersion, " of the format"), concat("version ", version));
  }
  if (header.metadata.size() != 3) {
    bad_file(name, "three keys in its metadata (format, version, model)", concat(header.metadata.size()));
  }
  const std::string model = value("model");
  if (model.size() != 8 || model.find_first_not_of("0123456789abcdef") != std::string::npos) {
    bad_file(name, "eight hexadecimal digits for the model", concat("'", model, "'"));
  }
  return static_cast<std::uint32_t>(std::stoul(model, nullptr, 16));
}

using Index = std::map<std::string, const StoredTensor*>;

const StoredTensor& find(const Index& index, const std::string& tensor, const std::string& name) {
  const auto found = index.find(tensor);
  if (found == index.end()) bad_file(name, concat("a tensor '", tensor, "'"), "none");
  return *found->second;
}

// The sizes that the first layer's tensors and the names of the others give; whether all fit is checked next.
CacheShape read_shape(const Index& index, const std::string& name) {
  const StoredTensor& k = find(index, layer_tensor(0, "k"), name);
  const std::optional<DType> dtype = dtype_of(k.type);
  if (!dtype || k.shape.size() != 3) {
    bad_file(name, concat("floating point [n, heads, size] for '", k.name, "'"), describe(k));
  }
  CacheShape shape;
  shape.dtype = *dtype;
  shape.kv_heads = k.shape[1];
  shape.head_size = k.shape[2];
  while (index.contains(layer_tensor(shape.layers, "k"))) ++shape.layers;
  if (const auto index_k = index.find(layer_tensor(0, "index_k")); index_k != index.end()) {
    const StoredTensor& tensor = *index_k->second;
    if (tensor.shape.size() != 2)
      bad_file(name, concat("[n, size] for '", tensor.name, "'"), describe(tensor));
    shape.index_head_size = tensor.shape[1];
    shape.index_int8 = tensor.type == StoredType::i8;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      if (index.contains(layer_tensor(layer, "index_k"))) shape.index_layers.push_back(layer);
    }
    if (std::ssize(shape.index_layers) == shape.layers) shape.index_layers.clear();
  }
  try {
    shape.validate();
  } catch (const Error& error) {
    bad_file(name, "sizes that a cache can have", error.what());
  }
  return shape;
}

// Every tensor is the one that a cache of this shape has, and there is no other.
void check_tensors(const Index& index, const CacheShape& shape, std::int64_t tokens,
                   const std::string& name) {
  const std::vector<StoredTensor> expected = cache_tensors(shape, tokens);
  for (const StoredTensor& tensor : expected) {
    const StoredTensor& found = find(index, tensor.name, name);
    if (found.type != tensor.type || found.shape != tensor.shape) {
      bad_file(name, concat(describe(tensor), " for '", tensor.name, "'"), describe(found));
    }
  }
  const StoredTensor& trailer = find(index, kTrailer, name);
  const auto covered = static_cast<std::int64_t>(expected.size()) + 1;
  if (trailer.type != StoredType::u8 || trailer.shape != std::vector<std::int64_t>{covered, 4}) {
    bad_file(name, concat("U8 [", covered, ", 4] for '", kTrailer, "'"), describe(trailer));
  }
  if (index.size() != expected.size() + 2) {
    bad_file(name, concat(expected.size() + 2, " tensors"), concat(index.size()));
  }
}

std::string index_layers_text(const CacheShape& shape) {
  return shape.index_head_size > 0 ? nn::shown_index_layers(shape.index_layers) : "no layer";
}

std::span<const std::byte> bytes_of(std::span<const std::byte> file, const SafetensorsHeader& header,
                                    const StoredTensor& tensor) {
  return file.subspan(static_cast<std::size_t>(header.data_begin + tensor.begin),
                      static_cast<std::size_t>(tensor.end - tensor.begin));
}

void check_sums(std::span<const std::byte> file, const SafetensorsHeader& header, const std::string& name) {
  if (header.tensors.back().name != kTrailer) {
    bad_file(name, concat("'", kTrailer, "' as its last tensor"), header.tensors.back().name);
  }
  const std::span<const std::byte> trailer = bytes_of(file, header, header.tensors.back());
  for (std::size_t i = 0; i + 1 < header.tensors.size(); ++i) {
    std::uint32_t stored = 0;
    std::memcpy(&stored, trailer.data() + 4 * i, 4);
    const std::uint32_t sum = crc32c(bytes_of(file, header, header.tensors[i]));
    if (sum != stored) {
      bad_file(name, concat("the checksum ", fingerprint_text(stored), " for '", header.tensors[i].name, "'"),
               concat(fingerprint_text(sum), ": the file is damaged"));
    }
  }
}

}  // namespace

std::string layer_tensor(std::int64_t layer, const char* part) { return concat("layers.", layer, ".", part); }

std::vector<StoredTensor> cache_tensors(const CacheShape& shape, std::int64_t tokens) {
  std::vector<StoredTensor> tensors;
  const auto add = [&](std::int64_t layer, const char* part, StoredType type,
                       std::vector<std::int64_t> sizes) {
    tensors.push_back({.name = layer_tensor(layer, part), .type = type, .shape = std::move(sizes)});
  };
  const StoredType type = stored_type_of(shape.dtype);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    add(layer, "k", type, {tokens, shape.kv_heads, shape.head_size});
    add(layer, "v", type, {tokens, shape.kv_heads, shape.head_size});
    if (!shape.has_index(layer)) continue;
    add(layer, "index_k", shape.index_int8 ? StoredType::i8 : type, {tokens, shape.index_head_size});
    if (shape.index_int8) add(layer, "index_scale", StoredType::f32, {tokens});
  }
  return tensors;
}

CacheFile parse_cache_file(std::span<const std::byte> file, const std::string& name) {
  const SafetensorsHeader header = parse_safetensors(file, name);
  CacheFile result;
  result.model = read_model(header, name);
  Index index;
  for (const StoredTensor& tensor : header.tensors) index[tensor.name] = &tensor;
  const StoredTensor& tokens = find(index, kTokens, name);
  if (tokens.type != StoredType::i64 || tokens.shape.size() != 1 || tokens.shape[0] == 0) {
    bad_file(name, "I64 [n], n at least 1, for 'tokens'", describe(tokens));
  }
  result.shape = read_shape(index, name);
  check_tensors(index, result.shape, tokens.shape[0], name);
  check_sums(file, header, name);
  result.tokens.resize(static_cast<std::size_t>(tokens.shape[0]));
  const std::span<const std::byte> ids = bytes_of(file, header, tokens);
  std::memcpy(result.tokens.data(), ids.data(), ids.size());
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.name != kTokens && tensor.name != kTrailer) {
      result.rows[tensor.name] = bytes_of(file, header, tensor);
    }
  }
  return result;
}

void check_fits(const CacheFile& file, const CacheShape& shape, std::uint32_t model,
                const std::string& name) {
  const auto check = [&](const char* what, const auto& here, const auto& there) {
    if (here != there) bad_file(name, concat("a cache with ", what, " ", here), concat(there));
  };
  check("layers:", shape.layers, file.shape.layers);
  check("key/value heads:", shape.kv_heads, file.shape.kv_heads);
  check("head size", shape.head_size, file.shape.head_size);
  check("indexer keys of size", shape.index_head_size, file.shape.index_head_size);
  check("indexer keys in", index_layers_text(shape), index_layers_text(file.shape));
  check("numbers of type", std::string(name_of(shape.dtype)), std::string(name_of(file.shape.dtype)));
  check("bits of an indexer key:", shape.index_int8 ? 8 : 8 * size_of(shape.dtype),
        file.shape.index_int8 ? 8 : 8 * size_of(file.shape.dtype));
  if (model != file.model) {
    bad_file(name, concat("a cache of this model (", fingerprint_text(model), ")"),
             concat("one of another model, or of this one with another YaRN factor (",
                    fingerprint_text(file.model), ")"));
  }
}

void write_cache_file(const std::filesystem::path& path, const CacheShape& shape, std::uint32_t model,
                      std::span<const std::int64_t> tokens,
                      const std::function<std::span<const std::byte>(const std::string& tensor)>& bytes) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  SafetensorsContent content;
  content.tensors = cache_tensors(shape, count);
  content.tensors.push_back({.name = kTokens, .type = StoredType::i64, .shape = {count}});
  content.tensors.push_back({.name = kTrailer,
                             .type = StoredType::u8,
                             .shape = {static_cast<std::int64_t>(content.tensors.size()), 4}});
  content.metadata = {{"format", kFormat}, {"version", kVersion}, {"model", fingerprint_text(model)}};
  std::vector<std::uint32_t> sums;
  content.bytes = [&](const StoredTensor& tensor) -> std::span<const std::byte> {
    if (tensor.name == kTrailer) return std::as_bytes(std::span(sums));
    const std::span<const std::byte> data =
        tensor.name == kTokens ? std::as_bytes(tokens) : bytes(tensor.name);
    sums.push_back(crc32c(data));
    return data;
  };
  write_safetensors(path, content);
}

}  // namespace gsa::infer
