#include "core/memory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/temporary_folder.h"

namespace gsa {
namespace {

using gsa::testing::TemporaryFolder;

// A root with a /proc and control groups of the test's own.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"); }

  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  void version2(const std::string& group, const std::string& mounted_group = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "24 1 0:21 / /proc rw - proc proc rw\n36 32 0:29 " + mounted_group +
                                     " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  void group(const std::string& name, const std::string& max, const std::string& current) {
    write("sys/fs/cgroup" + name + "/memory.max", max + "\n");
    write("sys/fs/cgroup" + name + "/memory.current", current + "\n");
  }
  std::optional<MemoryRoom> room() const { return memory_room(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

TEST(MemoryRoom, IsTheMachinesWithoutGroups) {
  const Machine machine;
  ASSERT_TRUE(machine.room());
  EXPECT_EQ(machine.room()->bytes, 8000 * 1024);
  EXPECT_EQ(machine.room()->bound, "the machine");
  EXPECT_FALSE(memory_room("/nowhere"));
}

// Slurm and systemd put the limit above the group that the process is in.
TEST(MemoryRoom, FollowsTheTightestGroupOfAllAbove) {
  Machine machine;
  machine.version2("/slurm/job_7/step_0");
  machine.group("/slurm", "max", "5000");
  machine.group("/slurm/job_7", "4000000", "1000000");
  machine.group("/slurm/job_7/step_0", "max", "900000");
  EXPECT_EQ(machine.room()->bytes, 3'000'000);
  EXPECT_EQ(machine.room()->bound, "the control group '/slurm/job_7'");
  machine.group("/slurm/job_7/step_0", "1000000", "900000");
  EXPECT_EQ(machine.room()->bytes, 100'000);
  machine.group("/slurm", "6000", "5000");
  EXPECT_EQ(machine.room()->bound, "the control group '/slurm'");
  EXPECT_EQ(machine.room()->bytes, 1000);
  machine.group("/slurm", "6000", "7000");
  EXPECT_EQ(machine.room()->bytes, 0);
}

TEST(MemoryRoom, CountsPageCacheThatCanGoAsFree) {
  Machine machine;
  machine.version2("/job");
  machine.group("/job", "4000000", "3900000");
  machine.write("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 3000000\nactive_file 9\n");
  EXPECT_EQ(machine.room()->bytes, 3'100'000);
}

// A container sees its own group as the root of the hierarchy, with or without a namespace of groups.
TEST(MemoryRoom, OfAContainer) {
  Machine machine;
  machine.version2("/");
  machine.group("", "4000000", "1000000");
  EXPECT_EQ(machine.room()->bytes, 3'000'000);
  EXPECT_EQ(machine.room()->bound, "the control group '/'");
  machine.version2("/docker/abc", "/docker/abc");
  EXPECT_EQ(machine.room()->bytes, 3'000'000);
  machine.version2("/docker/abc/inner", "/docker/abc");
  machine.group("/inner", "1000", "400");
  EXPECT_EQ(machine.room()->bytes, 600);
  machine.version2("/../other");
  EXPECT_EQ(machine.room()->bytes, 3'000'000);
}

TEST(MemoryRoom, KnowsVersion1) {
  Machine machine;
  machine.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n");
  machine.write("proc/self/mountinfo",
                "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  const std::string top = "sys/fs/cgroup/memory";
  machine.write(top + "/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write(top + "/memory.usage_in_bytes", "1000\n");
  machine.write(top + "/a/memory.limit_in_bytes", "4000000\n");
  machine.write(top + "/a/memory.usage_in_bytes", "3000000\n");
  machine.write(top + "/a/memory.stat", "inactive_file 7\ntotal_inactive_file 500000\n");
  machine.write(top + "/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write(top + "/a/b/memory.usage_in_bytes", "100\n");
  EXPECT_EQ(machine.room()->bytes, 1'500'000);
  EXPECT_EQ(machine.room()->bound, "the control group '/a'");
}

}  // namespace
}  // namespace gsa
