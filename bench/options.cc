#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "gsa/error.h"

namespace gsa::bench {

namespace {

std::string lesson() {
  return concat(
      R"(
What is timed
  prefill  a whole sequence, forward: select (scores, budget, exact top-k), then attend (softmax over the selected
           keys). `total` is gsa::sparse_attend, what a user calls; select and attend are timed apart as well.
  train    the same through autograd: forward, then gradients of q, k, v. The backward pass rebuilds the selection.
  decode   one query against a cache of keys, caches of the processor flushed before each run. `total` is
           gsa::decode on pages of 64 positions in random order; `every key` the same without an indexer, our own
           dense decoding; `8-bit` with the indexer's keys in eight bits.
  stage    one forward at 128K, for the peak of memory (VmHWM: process, inputs and result included).

The inputs: )",
      kHeads, " query heads and ", kKvHeads, " key/value heads of ", kHeadSize, ", indexer ", kIndexerHeads,
      " heads of ", kIndexerHeadSize, ", k = ", kSelected, R"( for each query
  overlap  indexer queries and weight logits are a random walk, x_t = )",
      kRho, " x_{t-1} + sqrt(1 - ", kRho, R"(^2) n_t: neighbours
           select much the same keys, as in trained models.
  random   all independent: the hardest case.
  union/k  measured: different keys that )",
      kUnionQueries, R"( neighbouring queries select together, over k.

The columns
  torch    dense at::scaled_dot_product_attention in this process, on the same threads, tensors laid out as torch
           likes them. For decode, the faster of two ways to ask: grouped heads left to torch, or the heads of a
           group as rows of one block of queries.
  × torch  torch / total. Above 1, sparse is faster than dense.
  GFLOPS   what the algorithm needs over total: visible pairs x )",
      kIndexerHeads, " x ", kIndexerHeadSize, " x 2 + selected pairs x ", kHeads, " x ", kHeadSize,
      R"( x 4
           (backward: 2.5 times the latter).
  floor    those FLOPs at the speed of at::mm in the type of the inputs, plus sigmoids at the speed of at::sigmoid,
           plus, for decode, bytes at the speed of memory; all measured at the start of the run. gap = total / floor.
  runs     samples behind the medians, ours/torch: 3 to 15 below 2 s, 2 below 20 s, else 1. Warm-up not counted.

Examples
  gsa_bench --quick                      1K, 4K and decoding, under a minute on two cores
  gsa_bench --case 32k-fp32 --threads 1  two cases on one thread
  make bench ARGS="--case decode"        build first, then run
)");
}

bool matches(const Case& what, const std::vector<std::string>& parts) {
  return parts.empty() || std::any_of(parts.begin(), parts.end(), [&what](const std::string& part) {
           return what.name.find(part) != std::string::npos;
         });
}

std::vector<Case> choose(const std::vector<std::string>& parts, bool quick) {
  std::vector<Case> cases = all_cases();
  for (const std::string& part : parts) {
    if (std::none_of(cases.begin(), cases.end(), [&part](const Case& c) { return matches(c, {part}); })) {
      throw CLI::ValidationError("--case",
                                 concat("expected a part of a name that --list prints, got '", part, "'"));
    }
  }
  std::erase_if(cases, [&](const Case& c) { return !matches(c, parts) || (quick && !c.quick); });
  if (cases.empty()) {
    throw CLI::ValidationError("--case", "expected a case that --quick keeps, got only longer ones");
  }
  return cases;
}

}  // namespace

bool parse_options(int argc, const char* const* argv, Options& options, int& exit_code) {
  CLI::App app("Speed of gated sparse attention against torch's dense attention on this machine.",
               "gsa_bench");
  app.footer(lesson());
  std::vector<std::string> parts;
  bool quick = false;
  app.add_option("--case", parts, "Only cases whose name contains NAME (repeat for more)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_flag("--quick", quick, "Only the short cases: prefill at 1K and 4K, decode");
  app.add_flag("--list", options.list, "Print the names of the cases and end");
  app.add_option("--threads", options.threads, "Threads for both sides (default: torch's choice)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "File for the results, rewritten after each case")
      ->type_name("PATH")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    options.cases = choose(parts, quick);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error);
    return false;
  }
  return true;
}

}  // namespace gsa::bench
