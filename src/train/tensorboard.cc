#include "train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/crc32c.h"
#include "core/file.h"

namespace gsa::train {
namespace {

// Wire types of Protocol Buffers.
enum Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void put_key(std::string& out, int field, Wire wire) {
  put_varint(out, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}
template <typename Word>
void put_word(std::string& out, Word word) {
  char raw[sizeof(Word)];
  std::memcpy(raw, &word, sizeof(Word));
  out.append(raw, sizeof(Word));
}
void put_bytes(std::string& out, int field, const std::string& value) {
  put_key(out, field, Wire::bytes);
  put_varint(out, value.size());
  out += value;
}

// TensorFlow stores checksums rotated and shifted, so that a checksum of data that holds checksums stays good.
std::uint32_t masked(const std::string& text) {
  return std::rotr(crc32c(std::as_bytes(std::span(text))), 15) + 0xa282ead8u;
}

std::string framed(const std::string& event) {
  std::string length;
  put_word(length, static_cast<std::uint64_t>(event.size()));
  std::string record = length;
  put_word(record, masked(length));
  record += event;
  put_word(record, masked(event));
  return record;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string tensorboard_record(double wall_time, std::int64_t step, const Scalars& scalars) {
  std::string event;
  put_key(event, 1, Wire::fixed64);
  put_word(event, wall_time);
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  std::string summary;
  for (const auto& [tag, scalar] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::fixed32);
    put_word(value, static_cast<float>(scalar));
    put_bytes(summary, 1, value);
  }
  put_bytes(event, 5, summary);
  return framed(event);
}

TensorBoard::TensorBoard(const std::filesystem::path& folder, std::int64_t step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) bad_file(folder.string(), "a folder that can be made", error.message());
  const double time = now();
  path_ = folder / concat("events.out.tfevents.", static_cast<std::int64_t>(time), ".gsa.", ::getpid());
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) bad_file(path_.string(), "a file that can be written", std::strerror(errno));
  std::string version;
  put_key(version, 1, Wire::fixed64);
  put_word(version, time);
  put_bytes(version, 3, "brain.Event:2");
  append(framed(version));
  if (step > 0) {
    std::string start, session;
    put_key(session, 1, Wire::varint);
    put_varint(session, 1);  // SessionLog.START: what was written of this step and later ones is void
    put_key(start, 1, Wire::fixed64);
    put_word(start, time);
    put_key(start, 2, Wire::varint);
    put_varint(start, static_cast<std::uint64_t>(step) + 1);
    put_bytes(start, 7, session);
    append(framed(start));
  }
}

TensorBoard::~TensorBoard() { ::close(descriptor_); }

void TensorBoard::add(std::int64_t step, const Scalars& scalars) {
  append(tensorboard_record(now(), step, scalars));
}

void TensorBoard::append(const std::string& record) {
  for (std::size_t done = 0; done < record.size();) {
    const ssize_t count = ::write(descriptor_, record.data() + done, record.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) bad_file(path_.string(), "room to write", std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace gsa::train
