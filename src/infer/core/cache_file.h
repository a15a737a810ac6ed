// One sequence of a cache as a file, in the safetensors format. No torch header.
//
//   tokens               I64 [n]
//   layers.N.k, .v       [n, kv_heads, head_size], rotated keys and gated values
//   layers.N.index_k     [n, index_head_size]; in 8 bits: I8, with layers.N.index_scale F32 [n]. Of the layers
//                        that have an indexer: layer 0 always has where any has
//   trailer.crc32c       U8 [tensors, 4]: CRC-32C of every other tensor in the order of the file, little
//                        endian. It is the last one, so that a file is written in one pass
//   metadata             format "gsa-cache", version "1", model (8 hex digits: fingerprint of the weights)
//
// Pages leave no trace in it: a file may be loaded into a cache with another page size. Reading is strict;
// whatever is missing, too much, cut off or changed is a gsa::Error that names the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "infer/core/cache_shape.h"

namespace gsa::infer {

struct CacheFile {
  CacheShape shape;  // page_size is that of a default shape: files have no pages
  std::uint32_t model = 0;
  std::vector<std::int64_t> tokens;
  // Rows of all tokens by tensor's name; they point into the file.
  std::map<std::string, std::span<const std::byte>> rows;
};

// file: all bytes of a file; name: for messages. Checks everything, checksums included.
CacheFile parse_cache_file(std::span<const std::byte> file, const std::string& name);

// The file is one that a cache of this shape (page size aside) and model can take; throws else.
void check_fits(const CacheFile& file, const CacheShape& shape, std::uint32_t model, const std::string& name);

// Writes atomically. bytes: of a tensor of cache_tensors(), called once for each, in the order of the file.
void write_cache_file(const std::filesystem::path& path, const CacheShape& shape, std::uint32_t model,
                      std::span<const std::int64_t> tokens,
                      const std::function<std::span<const std::byte>(const std::string& tensor)>& bytes);

// A layer's tensor: layer_tensor(3, "index_k") is "layers.3.index_k".
std::string layer_tensor(std::int64_t layer, const char* part);

// What a file holds beside tokens and checksums, for n tokens.
std::vector<StoredTensor> cache_tensors(const CacheShape& shape, std::int64_t tokens);

}  // namespace gsa::infer
