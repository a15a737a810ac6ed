// What this program runs on, for people.
#pragma once

#include <filesystem>
#include <string>

namespace gsa {

// What stands behind the first "key: value" of a file such as /proc/cpuinfo, without blanks around it; empty where
// there is none. The key is the whole of what stands before the colon: "model" is not "model name".
std::string field_of(const std::filesystem::path& file, const std::string& key);

// "AMD EPYC 9354"; "unknown processor" where the system does not say. root: where /proc stands.
std::string processor_name(const std::filesystem::path& root = "/");

// "NVIDIA H200, 16 cores of Intel(R) Xeon(R) Processor": the GPUs that the driver names, and the processor.
std::string machine_name(const std::filesystem::path& root = "/");

}  // namespace gsa
