#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/suggest.h"
#include "gsa/error.h"

namespace gsa::train {

ScheduleShape schedule_shape_by_name(std::string_view name) {
  if (name == "cosine") return ScheduleShape::cosine;
  if (name == "wsd") return ScheduleShape::wsd;
  if (name == "constant") return ScheduleShape::constant;
  bad_argument("train", "schedule", "cosine, wsd or constant",
               with_suggestion(name, {"cosine", "wsd", "constant"}));
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto share = [](std::int64_t done, std::int64_t all) {
    return all <= 0 ? 1.0 : std::clamp(static_cast<double>(done) / static_cast<double>(all), 0.0, 1.0);
  };
  switch (shape) {
    case ScheduleShape::cosine: {
      const double done = share(step - warmup_steps, steps - 1 - warmup_steps);
      return min_ratio + (1 - min_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * done));
    }
    case ScheduleShape::wsd: {
      const std::int64_t decay =
          std::min(decay_steps > 0 ? decay_steps : (steps + 9) / 10, steps - warmup_steps);
      const std::int64_t start = steps - decay;  // the last step at the peak is start - 1
      if (step < start) return 1;
      return 1 - (1 - min_ratio) * share(step - start + 1, decay);
    }
    case ScheduleShape::constant:
      return 1;
  }
  return 1;
}

}  // namespace gsa::train
