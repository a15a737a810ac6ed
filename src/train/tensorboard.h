// Scalars in the file format that TensorBoard reads: records of a length, a payload and checksums of both;
// the payload is an Event message of Protocol Buffers, written here by hand because three fields are all of
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace gsa::train {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value

// One record with the scalars of a step, ready to be appended.
std::string tensorboard_record(double wall_time, std::int64_t step, const Scalars& scalars);

// Appends to one file in a folder. A run that resumes starts another file, whose first record tells
// TensorBoard to forget what the files before it say of later steps.
class TensorBoard {
 public:
  // step: of the checkpoint that the run goes on from; 0: from the start.
  TensorBoard(const std::filesystem::path& folder, std::int64_t step);
  ~TensorBoard();
  TensorBoard(const TensorBoard&) = delete;
  TensorBoard& operator=(const TensorBoard&) = delete;

  void add(std::int64_t step, const Scalars& scalars);
  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& record);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace gsa::train
