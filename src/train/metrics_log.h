// What a run measured, one JSON object a line, appended as it happens.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/json.h"

namespace gsa::train {

class MetricsLog {
 public:
  // Every object has a key "step". Lines of steps after `step` are dropped: a run that resumes there will
  // write them again.
  MetricsLog(const std::filesystem::path& path, std::int64_t step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Throws where it cannot be written, as on a full disk.
  void add(const OrderedJson& object);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace gsa::train
