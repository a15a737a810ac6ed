// A folder that one process at a time writes to.
#pragma once

#include <filesystem>
#include <vector>

namespace gsa {

// Makes the folder where it is missing and takes it until the end of this object, by a lock on the file .lock
// in it: a second one throws, in this process or in another. The system lets go of the lock when the process
// ends. What it made itself (the file, the folder and those above it) goes away at its end where nothing else
// has come into it: work that was refused leaves no empty folders.
class FolderLock {
 public:
  // busy: what is said of the folder where another has it, such as "one that is training".
  FolderLock(std::filesystem::path folder, const char* busy);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void make_folder();
  void remove_made();

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // folders, the outermost first
  int descriptor_ = -1;
};

}  // namespace gsa
