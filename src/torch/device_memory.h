// What a device has room for, for work that is counted before it begins.
#pragma once

#include <ATen/core/TensorBody.h>

#include "core/memory.h"

namespace gsa::binding {

// Bytes that may still be taken: on the CPU by memory_room(), on a GPU what is free there, torch's own unused
// blocks included. Absent where the system does not say.
std::optional<MemoryRoom> device_memory_room(const at::Device& device);

}  // namespace gsa::binding
