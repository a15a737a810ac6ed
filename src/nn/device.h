// The device that a program runs on: by name, its precision, the memory in use.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace gsa::nn {

// The device that a name means; "cuda" without a GPU, or without the CUDA operators, is an error that says
// so.
at::Device device_by_name(const std::string& name);

// What the option precision means on a device: "auto" is bf16 on a GPU, fp32 on a CPU.
std::string precision_on(const std::string& precision, at::Device device);

// Bytes in use: of a GPU the most that tensors took so far, of a CPU what the process holds now.
std::int64_t memory_in_use(at::Device device);

}  // namespace gsa::nn
