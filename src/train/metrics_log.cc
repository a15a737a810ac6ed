#include "train/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/file.h"

namespace gsa::train {
namespace {

// A line that was cut off, as by a crash, has no place in the log either.
bool stays(const std::string& line, std::int64_t step) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return object.is_object() && object.contains("step") && object["step"].is_number_integer() &&
         object["step"].get<std::int64_t>() <= step;
}

void drop_later(const std::filesystem::path& path, std::int64_t step) {
  std::ifstream old(path);
  if (!old) return;
  AtomicFile kept(path);
  for (std::string line; std::getline(old, line);) {
    if (stays(line, step)) kept.write(line + "\n");
  }
  kept.commit();
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, std::int64_t step) : path_(path) {
  drop_later(path, step);
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) bad_file(path.string(), "a file that can be written", std::strerror(errno));
}

MetricsLog::~MetricsLog() { ::close(descriptor_); }

void MetricsLog::add(const OrderedJson& object) {
  // Text samples may hold bytes that are no UTF-8.
  const std::string line = object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) bad_file(path_.string(), "room to write", std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace gsa::train
