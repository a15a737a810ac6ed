#include "serve/core/pace.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace gsa::serve {
namespace {

// Of the gap, for a pass and a step: the rest is for what nobody can foresee.
constexpr double kShareOfGap = 0.7;
constexpr std::int64_t kFirstRange = 1024;  // tokens

std::size_t range_of(std::int64_t context) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(context / kFirstRange)));
}

// Calls visit(range, tokens) for so many tokens behind a context.
template <class Visit>
void by_range(std::int64_t context, std::int64_t tokens, const Visit& visit) {
  while (tokens > 0) {
    const std::size_t range = range_of(context);
    const std::int64_t count = std::min(tokens, (kFirstRange << range) - context);
    visit(range, count);
    context += count;
    tokens -= count;
  }
}

}  // namespace

Pace::Pace(std::chrono::duration<double> max_gap, std::int64_t page_size, std::int64_t max_chunk)
    : gap_(max_gap.count()),
      page_size_(std::min(page_size, max_chunk)),
      max_chunk_(max_chunk),
      longest_(page_size_) {}

double Pace::price(std::size_t range) const {
  for (std::size_t below = range + 1; below-- > 0;) {
    if (prices_[below] > 0) return std::ldexp(prices_[below], static_cast<int>(range - below));
  }
  const auto above = std::find_if(prices_.begin(), prices_.end(), [](double price) { return price > 0; });
  return above == prices_.end() ? 0 : *above;
}

double Pace::foreseen(const Part& part) const {
  double seconds = 0;
  by_range(part.context, part.tokens, [&](std::size_t range, std::int64_t tokens) {
    seconds += price(range) * static_cast<double>(tokens);
  });
  return seconds;
}

double Pace::allowed() const { return kShareOfGap * gap_ - step_; }

Pace::Room Pace::room(bool somebody_writes, std::int64_t first_context) const {
  if (!somebody_writes) return {.seconds = std::numeric_limits<double>::infinity(), .tokens = max_chunk_};
  const double page = 1.001 * foreseen({first_context, page_size_});  // rounding must not take a token of it
  return {.seconds = std::max(allowed(), page), .tokens = longest_};
}

std::int64_t Pace::take(Room& room, std::int64_t context, std::int64_t tokens) const {
  std::int64_t taken = 0;
  by_range(context, std::min(room.tokens, tokens), [&](std::size_t range, std::int64_t count) {
    const double each = price(range);
    const bool ends = each * static_cast<double>(count) > room.seconds;
    if (ends) count = static_cast<std::int64_t>(room.seconds / each);
    taken += count;
    room.seconds = ends ? 0 : room.seconds - each * static_cast<double>(count);
  });
  room.tokens -= taken;
  return taken;
}

void Pace::read(std::span<const Part> parts, bool full, double seconds) {
  std::int64_t tokens = 0;
  double expected = 0;
  for (const Part& part : parts) {
    tokens += part.tokens;
    expected += foreseen(part);
  }
  if (tokens == 0 || seconds <= 0) return;
  // What takes longer is dearer at once, what takes less gets cheaper by halves. A short pass has its fixed costs to
  // bear: it raises no price as long as it fits.
  double factor = expected > 0 ? seconds / expected : 0;
  if (factor > 1 && !full && seconds <= allowed()) factor = 1;
  if (factor < 1) factor = (1 + factor) / 2;
  std::array<double, 48> changed = prices_;
  for (const Part& part : parts) {
    by_range(part.context, part.tokens, [&](std::size_t range, std::int64_t) {
      changed[range] = expected > 0 ? price(range) * factor : seconds / static_cast<double>(tokens);
    });
  }
  prices_ = changed;
  longest_ = std::clamp(2 * tokens, longest_, max_chunk_);
}

}  // namespace gsa::serve
