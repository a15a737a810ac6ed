// What this program runs on, for people.
#pragma once

#include <filesystem>
#include <string>

namespace gsa {

// "AMD EPYC 9354"; "unknown processor" where the system does not say. root: where /proc stands.
std::string processor_name(const std::filesystem::path& root = "/");

// "NVIDIA H200, 16 cores of Intel(R) Xeon(R) Processor": the GPUs that the driver names, and the processor.
std::string machine_name(const std::filesystem::path& root = "/");

}  // namespace gsa
