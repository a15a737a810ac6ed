// Runs a case: ours stage by stage and as a whole, torch's dense attention beside it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "machine.h"
#include "progress.h"
#include "timing.h"

namespace gsa::bench {

struct Timed {
  std::string name;
  Samples samples;
};

// What the algorithm needs, however it is implemented.
struct Work {
  double select_flops = 0;    // pairs of query and visible key x indexer heads x size x 2
  double attend_flops = 0;    // pairs of query and selected key x heads x size x 4
  double backward_flops = 0;  // 2.5 x attend_flops
  double sigmoids = 0;        // pairs of query and visible key x indexer heads
  double bytes = 0;           // that must come from memory; 0 where arithmetic hides them
  bool bf16 = false;          // the inputs

  double flops() const { return select_flops + attend_flops + backward_flops; }
  // At the machine's own rates of products of the inputs' type, sigmoids and reads, one after the other.
  double floor_seconds(const Machine& machine) const;
};

struct Result {
  Case what;
  std::optional<double> union_over_k;
  std::vector<Timed> stages;
  Samples total;
  Work work;
  std::vector<Timed> torch;  // ways to ask torch for dense attention; none where that would take too long
  std::optional<std::int64_t> peak_bytes;  // with inputs, result and everything that the process holds
  bool peak_is_of_run = false;             // true: earlier cases are in it, because it could not be reset

  const Timed* fastest_torch() const;
};

class Runner {
 public:
  explicit Runner(Progress& progress) : progress_(progress) {}

  Result run(const Case& what);

 private:
  Result run_prefill(const Case& what);
  Result run_train(const Case& what);
  Result run_decode(const Case& what);
  Result run_stage(const Case& what);

  // Dense attention does not look at the indexer: cases that differ in nothing else share its times.
  using TorchKey = std::pair<std::string, at::ScalarType>;
  std::map<TorchKey, std::vector<Timed>> torch_times_;
  Progress& progress_;
};

}  // namespace gsa::bench
