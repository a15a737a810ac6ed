// The learning rate as a share of its peak: up linearly, then by one of three shapes.
#pragma once

#include <cstdint>
#include <string_view>

namespace gsa::train {

enum class ScheduleShape { cosine, wsd, constant };

ScheduleShape schedule_shape_by_name(std::string_view name);

struct Schedule {
  ScheduleShape shape = ScheduleShape::cosine;
  std::int64_t steps = 0;         // of the whole run, all phases together
  std::int64_t warmup_steps = 0;  // step 0 has 1 / warmup_steps of the peak, not nothing
  std::int64_t decay_steps = 0;   // wsd: how many steps at the end go down; 0: a tenth
  double min_ratio = 0;           // where cosine and wsd end

  // For step 0 .. steps - 1.
  double at(std::int64_t step) const;
};

}  // namespace gsa::train
