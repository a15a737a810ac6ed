// gsa_bench_infer: how fast prefill and decoding are beside the standard model. See --help and
// docs/benchmarks/README.md.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "../json_file.h"
#include "../machine.h"
#include "../progress.h"
#include "../text.h"
#include "cpu.h"
#include "gpu.h"
#include "gsa/error.h"
#include "gsa/version.h"
#include "nn/torch.h"

namespace gsa::bench {

namespace {

constexpr const char* kLesson = R"(
On a CPU: one layer of the paper's 1.7B (d 2048, 16/4 heads of 128, SwiGLU 5504, indexer 4 x 64, k = 2048), gsa beside
the standard layer.
  attention   score, select, attend and gate (gsa::decode over the pages of the cache), or dense attention
  layer       the whole block through the engine: norms, projections, cache, attention, SwiGLU
  by torch    dense attention by at::scaled_dot_product_attention on contiguous tensors; decoding: the faster of grouped
              heads left to torch and the heads of a group as one block; prefill: the keys before a chunk and those of it
              in two calls that are not merged. The ratios take whichever dense attention is faster, and the standard
              layer is then given the difference.
  The cache holds random rows, so that no long prompt has to be read first; k_t is 2048. Of a prefill, chunks at every
  quarter of each length are timed, and the others lie between them.

On a GPU (--device cuda): the whole model, 24 layers, random weights, bfloat16. Prefill reads a real prompt of random
tokens, which is the hardest case (neighbours select independently of each other), and one in which every token comes
--run times in a row, so that neighbours have reason to select the same keys. How much they do is printed: union/k, the
keys that 16 neighbours select together over what one selects; trained models have 1.8 to 4. Decoding runs behind the
first prompt; where there are several sequences, the others hold random rows. 'attention' is that of 24 layers by
itself; 'dense by torch' the fastest of cuDNN and FlashAttention, and the standard model is given the difference where
that is faster than what it ran.

Several lengths end in one more table, by length: gsa, gsa where it runs dense (as dense_below makes it; up to 32K) and
standard. Prompts beyond --dense-limit are read by gsa alone, in runs alone; standard's time is then that of
--dense-limit, attention times the square of the lengths' ratio and the rest times the ratio, and says so.

--index-every n: gsa has an indexer in every n-th layer, and the n - 1 layers behind it share its selection. On a CPU a
group of n layers is timed, and what is shown is the mean of its layers; on a GPU the whole model has such groups, and
several n (repeat the option) stand beside one standard model, which is run once.

Examples
  gsa_bench_infer                              4K, 32K, 128K in fp32 and bf16: some minutes on two cores
  gsa_bench_infer --length 4096 --type fp32    seconds
  gsa_bench_infer --device cuda                a minute on an H200
  gsa_bench_infer --device cuda --index-every 1 --index-every 4
  gsa_bench_infer --device cuda --run 512 --prefill --length 4096 --length 8192 --length 16384 --length 32768
  gsa_bench_infer --device cuda --run 512 --sequences 1 --length 1048576    a million tokens: some minutes
)";

struct Options {
  std::string device = "cpu", json = "build/bench-infer.json";
  std::vector<std::int64_t> lengths;
  std::vector<std::string> types = {"fp32", "bf16"};
  std::vector<std::int64_t> batches = {1, 8}, index_every = {1};
  int threads = 0;
  std::int64_t run = 16, dense_limit = 262144;
  bool prefill = false;
};

std::string heading(const Machine& m) {
  return concat("gsa ", GSA_VERSION, " on ", m.cpu, ", ", m.cores, " cores, ", m.threads, " threads | torch ",
                m.torch_version, "\nmeasured now: GEMM ", format("%.0f", m.gemm_fp32 * 1e-9),
                " GFLOPS fp32, ", format("%.0f", m.gemm_bf16 * 1e-9), " bf16 | memory read ",
                format("%.1f", m.read_bytes * 1e-9), " GB/s");
}

void run(Options options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  write_json_file(options.json, nlohmann::ordered_json::object());
  Progress progress;
  nlohmann::ordered_json document = {{"gsa", GSA_VERSION}, {"device", options.device}};
  if (options.device == "cuda") {
    GpuOptions gpu{.batches = options.prefill ? std::vector<std::int64_t>{} : options.batches,
                   .run = options.run,
                   .dense_limit = options.dense_limit,
                   .index_every = options.index_every};
    if (!options.lengths.empty()) gpu.lengths = options.lengths;
    document["run"] = options.run;
    document["model"] = run_gpu(gpu, progress);
  } else {
    const Machine machine = measure_machine(progress);
    progress.say(heading(machine));
    CpuOptions cpu{.lengths = options.lengths, .types = {}, .index_every = options.index_every.front()};
    document["index_every"] = cpu.index_every;
    if (cpu.lengths.empty()) cpu.lengths = {4096, 32768, 131072};
    for (const std::string& type : options.types)
      cpu.types.push_back(type == "fp32" ? at::kFloat : at::kBFloat16);
    document["cpu"] = machine.cpu;
    document["threads"] = machine.threads;
    document["layer"] = run_cpu(cpu, progress);
  }
  write_json_file(options.json, document);
  progress.say("\n" + options.json);
}

}  // namespace

}  // namespace gsa::bench

int main(int argc, char** argv) {
  gsa::bench::Options options;
  CLI::App app("Speed of prefill and decoding against the standard model on this machine.",
               "gsa_bench_infer");
  app.footer(gsa::bench::kLesson);
  app.add_option("--device", options.device, "cpu: one layer; cuda: the whole model")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--length", options.lengths,
                 "Tokens before the one that is decoded, and of a prompt (repeat for more)")
      ->check(CLI::Range(4096, 1 << 20))
      ->allow_extra_args(false);
  app.add_option("--type", options.types, "fp32 or bf16 (repeat for both); a GPU runs bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->allow_extra_args(false);
  app.add_option("--sequences", options.batches, "On a GPU: sequences decoded together (repeat for more)")
      ->check(CLI::Range(1, 64))
      ->allow_extra_args(false);
  app.add_option("--run", options.run,
                 "On a GPU: in the second prompt every token comes so many times in a row")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--dense-limit", options.dense_limit,
                 "On a GPU: the longest prompt that the standard model reads")
      ->check(CLI::Range(4096, 1 << 20))
      ->capture_default_str();
  app.add_flag("--prefill", options.prefill, "On a GPU: prefill alone");
  app.add_option("--threads", options.threads, "Threads (default: torch's choice)")
      ->check(CLI::Range(1, 1024));
  app.add_option(
         "--index-every", options.index_every,
         "gsa has an indexer in every n-th layer; the layers between share its selection (on a GPU: repeat)")
      ->check(CLI::Range(1, 24))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--json", options.json, "File for the results")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const bool gpu = options.device == "cuda";
  for (const auto& [name, wrong] :
       {std::pair("--type", gpu), std::pair("--threads", gpu), std::pair("--sequences", !gpu),
        std::pair("--run", !gpu), std::pair("--dense-limit", !gpu), std::pair("--prefill", !gpu)}) {
    if (app.count(name) == 0 || !wrong) continue;
    std::fprintf(stderr, "gsa_bench_infer: %s says nothing with --device %s\n", name, options.device.c_str());
    return 2;
  }
  if (!gpu && options.index_every.size() > 1) {
    std::fprintf(stderr, "gsa_bench_infer: --index-every: expected one n with --device cpu, got %zu\n",
                 options.index_every.size());
    return 2;
  }
  if (options.prefill && app.count("--sequences") > 0) {
    std::fprintf(stderr, "gsa_bench_infer: --sequences says nothing with --prefill\n");
    return 2;
  }
  try {
    gsa::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gsa_bench_infer: %s\n", error.what());
    return 1;
  }
  return 0;
}
