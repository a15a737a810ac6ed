// How many steps fit into the time there is. No torch header.
#pragma once

#include <cstdint>

namespace gsa::demo {

// Steps of gsa in its phases; the twin makes as many in all.
struct Phases {
  std::int64_t dense = 0, warmup = 0, sparse = 0;

  std::int64_t steps() const { return dense + warmup + sparse; }
};

// The model has to have learned to look back before the indexer can learn where it looks.
Phases phases_of(std::int64_t steps);

// Seconds that one step takes, by kind.
struct Pace {
  double standard = 0, dense = 0, warmup = 0, sparse = 0;

  // A step of this kind took so long. The quickest counts: the first ones pay for memory and caches.
  static void take(double& kind, double seconds) { kind = kind == 0 || seconds < kind ? seconds : kind; }

  // The same while it lasts, for the time that is left: the last steps count most.
  static void follow(double& kind, double seconds) { kind += 0.05 * (seconds - kind); }

  // Of training both models with these phases, after `standard_done` steps of the one and `gsa_done` of the
  // other.
  double seconds(const Phases& phases, std::int64_t standard_done = 0, std::int64_t gsa_done = 0) const;
};

// Steps, a multiple of 10, for which training both models takes `seconds` at most; at least 20.
std::int64_t steps_within(double seconds, const Pace& pace);

}  // namespace gsa::demo
