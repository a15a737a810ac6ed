// Bytes of requests' bodies that the whole server holds at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace gsa::serve {

class BodyBudget {
 public:
  explicit BodyBudget(std::int64_t max_bytes) : max_bytes_(max_bytes) {}
  std::int64_t max_bytes() const { return max_bytes_; }

 private:
  friend class BodyClaim;
  const std::int64_t max_bytes_;
  std::atomic<std::int64_t> used_ = 0;
};

// What one request has of it, until it is let go of. The budget must outlive it.
class BodyClaim {
 public:
  explicit BodyClaim(BodyBudget& budget) : budget_(&budget) {}
  BodyClaim(BodyClaim&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyClaim& operator=(BodyClaim&&) = delete;
  ~BodyClaim() { release(); }

  // False: there is not as much left. The beginning of a body does not count: while a few clients hold all of the
  // budget, ordinary requests still come in.
  bool grow_to(std::int64_t body) {
    constexpr std::int64_t kFree = 64 << 10;
    const std::int64_t bytes = std::max<std::int64_t>(body - kFree, 0);
    const std::int64_t more = bytes - bytes_;
    if (more <= 0) return true;
    if (budget_->used_.fetch_add(more) + more > budget_->max_bytes_) {
      budget_->used_ -= more;
      return false;
    }
    bytes_ = bytes;
    return true;
  }
  void release() { budget_->used_ -= std::exchange(bytes_, 0); }

 private:
  BodyBudget* budget_;
  std::int64_t bytes_ = 0;
};

}  // namespace gsa::serve
