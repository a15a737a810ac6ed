#include "train/trainer_state.h"

#include <algorithm>

#include "core/usage_error.h"
#include "nn/torch.h"

namespace gsa::train {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

// What may differ between a run and its continuation. The dataset's content is compared by itself.
bool may_change(const std::string& key) {
  static const std::vector<std::string> keys = {
      "threads",           "device",     "deterministic",   "checkpoint_activations",
      "guard.skip_spikes", "data.train", "data.validation", "model.from"};
  return key.starts_with("output.") || std::ranges::find(keys, key) != keys.end();
}

// What may also differ where steps are added: where the phases end, and how the rate goes from here on.
bool may_change_with_more_steps(const std::string& key) {
  static const std::vector<std::string> keys = {"optimizer.lr", "optimizer.schedule",
                                                "optimizer.warmup_steps", "optimizer.decay_steps",
                                                "optimizer.min_lr_ratio"};
  return key.starts_with("phases.") || std::ranges::find(keys, key) != keys.end();
}

// A phase that is over, or that has begun, cannot have had more or fewer steps.
void check_steps_done(const TrainConfig& now, const TrainConfig& before, std::int64_t step) {
  const auto check = [&](const char* key, std::int64_t is, std::int64_t was, std::int64_t first) {
    if (std::min(is, step - first) == std::min(was, step - first)) return;
    throw UsageError(concat("option '", key, "': expected ", was, ", since step ", step,
                            " of the run that is resumed lies behind it, got ", is));
  };
  check("phases.dense", now.phases.dense, before.phases.dense, 0);
  if (step > before.phases.dense) {
    check("phases.warmup", now.phases.warmup, before.phases.warmup, before.phases.dense);
  }
}

int digit(char c) {
  const char* const found = std::find(kDigits, kDigits + 16, c);
  if (found == kDigits + 16)
    throw Error(concat("state.json: 'random': expected hexadecimal digits, got '", c, "'"));
  return static_cast<int>(found - kDigits);
}

}  // namespace

std::string random_state() {
  const at::Tensor state = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  const std::uint8_t* const bytes = state.const_data_ptr<std::uint8_t>();
  std::string digits;
  for (std::int64_t i = 0; i < state.numel(); ++i) {
    digits.push_back(kDigits[bytes[i] >> 4]);
    digits.push_back(kDigits[bytes[i] & 15]);
  }
  return digits;
}

void set_random_state(const std::string& digits) {
  at::Tensor state = torch::empty({static_cast<std::int64_t>(digits.size() / 2)}, torch::kUInt8);
  std::uint8_t* const bytes = state.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes[i / 2] = static_cast<std::uint8_t>(digit(digits[i]) << 4 | digit(digits[i + 1]));
  }
  at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
  generator.set_state(state);
}

std::string check_same_run(const TrainConfig& now, const std::string& before_toml, std::int64_t step) {
  TrainConfig before, current = now;
  read_toml_text(before, before_toml, "state.json");
  const std::vector<Option> a = options_of(before), b = options_of(current);
  const bool longer = now.steps() > before.steps();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool may = may_change(a[i].key) || (longer && may_change_with_more_steps(a[i].key));
    if (a[i].value() != b[i].value() && !may) {
      throw UsageError(concat("option '", a[i].key, "': expected ", a[i].value(),
                              ", as the run that is resumed has it, got ", b[i].value(),
                              " (more steps may be added in phases; to train on under other options, start a "
                              "new run with model.from)"));
    }
  }
  if (!longer) return "";
  check_steps_done(now, before, step);
  return concat("the run goes on to ", now.steps(), " steps instead of ", before.steps(),
                "; the schedule of the learning rate now ends there");
}

}  // namespace gsa::train
