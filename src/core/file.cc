#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/dangling_link.h"

namespace gsa {
namespace {

[[noreturn]] void system_failure(const std::filesystem::path& path, const char* action, int error) {
  throw Error(concat("file '", path.string(), "': cannot ", action, ": ", std::strerror(error),
                     error == ENOENT ? dangling_link(path) : ""));
}

// Closes at the end of a scope; closing by hand where its result matters.
class Descriptor {
 public:
  // O_NONBLOCK: a pipe that nobody writes to would be waited for before it can be seen to be one.
  Descriptor(const std::filesystem::path& path, int flags)
      : value_(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ < 0) system_failure(path, "open it", errno);
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode)                    ? "a folder"
         : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
         : S_ISFIFO(mode)                 ? "a pipe (FIFO)"
                                          : "a socket";
}

std::size_t size_of_regular(const std::filesystem::path& path, const Descriptor& descriptor) {
  struct stat info = {};
  if (::fstat(descriptor.get(), &info) != 0) system_failure(path, "look at it", errno);
  if (!S_ISREG(info.st_mode)) bad_file(path.string(), "a regular file", kind_of(info.st_mode));
  return static_cast<std::size_t>(info.st_size);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// Where a rename has to go for a link to stay and the file that it names to be replaced.
std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kMaxLinks = 40;  // as many as Linux follows
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(path, error)); ++links) {
    if (links == kMaxLinks) system_failure(path, "follow its links", ELOOP);
    const std::filesystem::path next = std::filesystem::read_symlink(path, error);
    if (error) system_failure(path, "follow its links", error.value());
    path = folder_of(path) / next;
  }
  return path;
}

// A rename would put a file in the place of whatever stands there.
void check_replaceable(const std::filesystem::path& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return;
  bad_file(path.string(), "a regular file, or none yet", kind_of(info.st_mode));
}

}  // namespace

void bad_file(const std::string& file, const std::string& expected, const std::string& got) {
  throw Error(concat("file '", file, "': expected ", expected, ", got ", got));
}

std::string read_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  const Descriptor descriptor(path, O_RDONLY);
  const std::size_t size = size_of_regular(path, descriptor);
  if (size > static_cast<std::size_t>(max_bytes)) {
    bad_file(path.string(), concat("at most ", max_bytes, " bytes"), concat(size));
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(descriptor.get(), text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) system_failure(path, "read it", errno);
    if (got == 0) bad_file(path.string(), concat(size, " bytes"), concat(done, " (it shrank meanwhile)"));
    done += static_cast<std::size_t>(got);
  }
  return text;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor descriptor(path, O_RDONLY);
  size_ = size_of_regular(path, descriptor);
  if (size_ == 0) return;  // nothing to map
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (memory == MAP_FAILED) system_failure(path, "map it into memory", errno);
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(behind_links(path)) {
  check_replaceable(path_);
  static std::atomic<unsigned> counter{0};
  temporary_ = folder_of(path_) /
               concat(".", path_.filename().string(), ".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create a file beside it");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action) const { system_failure(path_, action, errno); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;  // one call writes less than 2 GiB
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kPiece));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write it");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("make it durable");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close it");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("put it in place");
  temporary_.clear();
  sync_folder(folder_of(path_));
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void check_writable(const std::filesystem::path& path) { const AtomicFile trial(path); }

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  if (::fsync(descriptor.get()) != 0) system_failure(folder, "make the folder durable", errno);
}

}  // namespace gsa
