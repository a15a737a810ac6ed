// Working memory of a worker: grows to the largest request, aligned for vectors, freed with its owner.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace gsa {

class Scratch {
 public:
  static constexpr std::size_t kAlignment = 128;

  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ~Scratch() { std::free(data_); }

  // Room for count values of T. What an earlier call returned is no longer valid.
  template <typename T>
  T* get(std::int64_t count) {
    const std::size_t wanted = static_cast<std::size_t>(count) * sizeof(T) + kAlignment;
    if (wanted > bytes_) {
      std::free(data_);
      bytes_ = 0;
      const std::size_t rounded = (wanted + kAlignment - 1) / kAlignment * kAlignment;
      data_ = std::aligned_alloc(kAlignment, rounded);
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = rounded;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace gsa
