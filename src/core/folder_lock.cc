#include "core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "gsa/error.h"

namespace gsa {
namespace {

// Whether the name still leads to the file that is open: who had the lock before takes the file away.
bool is_there(int descriptor, const std::filesystem::path& path) {
  struct stat open = {}, named = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

FolderLock::FolderLock(std::filesystem::path folder, const char* busy) : folder_(std::move(folder)) {
  const std::filesystem::path file = folder_ / ".lock";
  const auto fail = [&](const char* expected, const char* got) {
    if (descriptor_ >= 0) ::close(descriptor_);
    remove_made();
    throw Error(concat("folder '", folder_.string(), "': expected ", expected, ", got ", got));
  };
  for (;;) {
    make_folder();
    descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    const int error = descriptor_ < 0 ? errno : 0;
    std::error_code ignored;
    if (error == ENOENT && !std::filesystem::exists(folder_, ignored)) continue;  // taken away again
    if (error != 0) fail("one that files can be made in", std::strerror(error));
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) fail("no other process that writes to it", busy);
      fail("a file system that can lock files", std::strerror(errno));
    }
    if (is_there(descriptor_, file)) return;
    ::close(descriptor_);
  }
}

FolderLock::~FolderLock() {
  ::unlink((folder_ / ".lock").c_str());  // before the lock is given up: the next one makes its own
  ::close(descriptor_);
  remove_made();
}

void FolderLock::make_folder() {
  std::error_code error;
  std::vector<std::filesystem::path> missing;
  for (auto path = std::filesystem::absolute(folder_);
       path.has_relative_path() && !std::filesystem::exists(path, error); path = path.parent_path()) {
    missing.insert(missing.begin(), path);
  }
  for (const auto& path : missing) {
    if (std::filesystem::create_directory(path, error)) made_.push_back(path);
    if (error) break;
  }
  if (error || !std::filesystem::is_directory(folder_, error)) {
    remove_made();
    throw Error(concat("folder '", folder_.string(), "': expected one that can be made, got ",
                       error ? error.message() : "a file in its place"));
  }
}

void FolderLock::remove_made() {
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) ::rmdir(path->c_str());
}

}  // namespace gsa
