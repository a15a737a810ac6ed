// Files: reading whole, mapping into memory, and writing such that a reader finds either the old file or the
// new one, never a part. Every failure is a gsa::Error that names the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "gsa/error.h"

namespace gsa {

// "file 'a/config.json': expected ..., got ...".
[[noreturn]] void bad_file(const std::string& file, const std::string& expected, const std::string& got);

// The content of a file of at most max_bytes.
std::string read_file(const std::filesystem::path& path, std::int64_t max_bytes);

// A file in memory, read only. Must not shrink while it is mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Writes beside the target under a temporary name; commit() makes it durable and puts it in place:
// fsync, rename, fsync of the folder. Without commit() nothing of it remains. Where the target is a link, the
// file that it names is replaced; a folder, a device or a pipe is refused before anything is written.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

// The whole of a file at once, by an AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view text);

// Refuses a path that AtomicFile could not write to, before work whose result goes there. Leaves nothing
// behind.
void check_writable(const std::filesystem::path& path);

// Makes what happened in a folder (new names, renames) durable.
void sync_folder(const std::filesystem::path& folder);

}  // namespace gsa
