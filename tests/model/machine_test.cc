#include "core/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/temporary_folder.h"

namespace gsa {
namespace {

TEST(Machine, IsNamedByWhatTheSystemSays) {
  const testing::TemporaryFolder root;
  EXPECT_EQ(processor_name(root.path()), "unknown processor");
  std::filesystem::create_directories(root.path() / "proc");
  std::ofstream(root.path() / "proc/cpuinfo")
      << "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel\t\t: 7 \nflags\t:\n";
  EXPECT_EQ(processor_name(root.path()), "A CPU @ 2 GHz");
  EXPECT_EQ(field_of(root.path() / "proc/cpuinfo", "model"), "7");  // not that of "model name"
  EXPECT_EQ(field_of(root.path() / "proc/cpuinfo", "flags"), "");
  EXPECT_EQ(field_of(root.path() / "proc/cpuinfo", "mode"), "");
  EXPECT_TRUE(machine_name(root.path()).ends_with(" of A CPU @ 2 GHz"));
  for (const char* place : {"0000:01", "0000:02"}) {
    const auto folder = root.path() / "proc/driver/nvidia/gpus" / place;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "information") << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\n";
  }
  EXPECT_TRUE(machine_name(root.path()).starts_with("2 × NVIDIA H200, "));
}

}  // namespace
}  // namespace gsa
