#include "train/trainer_state.h"

#include <torch/torch.h>

#include <algorithm>

#include "core/usage_error.h"

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

void check_same_run(const TrainConfig& now, const std::string& before_toml) {
  TrainConfig before, current = now;
  read_toml_text(before, before_toml, "state.json");
  const std::vector<Option> a = options_of(before), b = options_of(current);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].value() != b[i].value() && !may_change(a[i].key)) {
      throw UsageError(concat("option '", a[i].key, "': expected ", a[i].value(),
                              ", as the run that is resumed has it, got ", b[i].value(),
                              " (to train on under other options, start a new run with model.from)"));
    }
  }
}

}  // namespace gsa::train
