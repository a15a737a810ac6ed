// Parts of a run's state that a checkpoint keeps besides tensors.
#pragma once

#include <string>

#include "train/config.h"

namespace gsa::train {

// The state of torch's default generator on the CPU, as hexadecimal digits. Nothing in a training step draws
// from a GPU's generator.
std::string random_state();
void set_random_state(const std::string& digits);

// Throws where an option that changes what is learned differs from the run that is resumed (its configuration
// as to_toml() wrote it), `step` of whose steps are done. Paths, logging, device and the like may change. A
// run may be given more steps, and with them another schedule; a note then says so, else it is empty.
std::string check_same_run(const TrainConfig& now, const std::string& before_toml, std::int64_t step);

}  // namespace gsa::train
