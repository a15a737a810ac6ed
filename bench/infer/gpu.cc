#include "gpu.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <deque>
#include <map>

#include "../text.h"
#include "../timing.h"
#include "gsa/error.h"
#include "model/cost.h"
#include "subject.h"

namespace gsa::bench {

namespace {

using at::Tensor;
using json = nlohmann::ordered_json;
using infer::Sequence;

constexpr std::int64_t kLayers = 24, kVocabulary = 151936;
const at::Device kGpu(at::kCUDA, 0);

// With random weights and random tokens, neighbours select keys independently of each other: the hardest
// case, which no trained model shows. Where tokens come in runs, neighbours have reason to select the same
// keys.
constexpr std::int64_t kRun = 16;

// Seconds of the whole model, and of its attention by itself (24 times that of a layer, or layer after
// layer).
struct Times {
  double whole = 0, stage = 0;
  std::map<std::string, double> torch;  // dense attention by torch, by backend; empty for gsa

  double fastest_stage() const {
    double best = stage;
    for (const auto& [name, seconds] : torch) best = std::min(best, seconds);
    return best;
  }
  double fastest_whole() const { return whole - stage + fastest_stage(); }
};

struct SystemTimes {
  Times prefill;
  double prefill_of_runs = 0;  // the whole model on a prompt in which every token comes kRun times in a row
  std::map<std::int64_t, Times> decode;  // by number of sequences
  std::int64_t weight_bytes = 0, cache_bytes = 0;
  std::int64_t beside_bytes = 0;  // the most that prefill takes beside weights and cache
  nn::Cost cost;                  // what gsa inspect says
};

double timed(int runs, const std::function<void()>& body) {
  Samples samples;
  for (int i = 0; i < runs; ++i) {
    torch::cuda::synchronize();
    const Stopwatch watch;
    body();
    torch::cuda::synchronize();
    samples.seconds.push_back(watch.seconds());
  }
  return samples.median();
}

// A body by each of torch's backends that takes it.
std::map<std::string, double> by_backends(int runs, const std::function<void()>& body) {
  at::Context& context = at::globalContext();
  context.setSDPUseMath(false);
  context.setSDPUseMemEfficient(false);
  std::map<std::string, double> times;
  for (const bool cudnn : {true, false}) {
    context.setSDPUseCuDNN(cudnn);
    context.setSDPUseFlash(!cudnn);
    try {
      body();
    } catch (const c10::Error&) {
      continue;  // torch says that this backend has no kernel for it
    }
    times[cudnn ? "cuDNN" : "FlashAttention"] = timed(runs, body);
  }
  for (const auto set : {&at::Context::setSDPUseMath, &at::Context::setSDPUseMemEfficient,
                         &at::Context::setSDPUseCuDNN, &at::Context::setSDPUseFlash}) {
    (context.*set)(true);
  }
  return times;
}

class SystemRun {
 public:
  SystemRun(nn::System system, const GpuOptions& options, Progress& progress)
      : options_(options),
        progress_(progress),
        subject_({.system = system,
                  .type = at::kBFloat16,
                  .device = kGpu,
                  .layers = kLayers,
                  .index_every = options.index_every,
                  .vocabulary = kVocabulary,
                  // Dense attention of a prompt in one pass is cuDNN's; in chunks it is ours.
                  .chunk = system == nn::System::standard ? std::optional(options.length) : std::nullopt}) {}

  SystemTimes run() {
    const at::NoGradGuard no_grad;
    SystemTimes times;
    times.weight_bytes = subject_.engine().weight_bytes();
    times.cost = nn::estimate_cost(subject_.config(),
                                   {.length = options_.length,
                                    .dtype = DType::bf16,
                                    .phase = subject_.sparse() ? nn::Phase::sparse : nn::Phase::dense});
    {  // Memory for all sequences at once, so that no page moves later.
      Sequence all = subject_.engine().start();
      const std::int64_t most = *std::max_element(options_.batches.begin(), options_.batches.end());
      const infer::Cache::Growth growth[] = {{&all, most * options_.length}};
      subject_.engine().cache().reserve(growth);
    }
    progress_.step("prefill");
    sequences_.push_back(prefill(times));
    times.cache_bytes = options_.length * subject_.engine().cache_use().bytes_per_token;
    progress_.step("prefill, attention by itself");
    prefill_stage(times.prefill);
    for (const std::int64_t batch : options_.batches) {
      progress_.step("filling caches");
      while (static_cast<std::int64_t>(sequences_.size()) < batch) {
        sequences_.push_back(subject_.filled(options_.length));
      }
      progress_.step(concat("decoding, ", batch, " sequences"));
      times.decode[batch] = decode(batch);
    }
    return times;
  }

 private:
  // The second of two: the first one takes memory and chooses kernels.
  Sequence prefill(SystemTimes& times) {
    infer::Engine& engine = subject_.engine();
    const Tensor drawn = torch::randint(0, kVocabulary, {options_.length}, at::kLong);
    const Tensor runs = drawn.narrow(0, 0, (options_.length + kRun - 1) / kRun).repeat_interleave(kRun);
    Sequence sequence = engine.start();
    const auto read = [&](const Tensor& tokens) {
      sequence.clear();
      engine.prefill(
          {{&sequence, {tokens.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(options_.length)}}});
    };
    read(drawn);
    times.prefill_of_runs = timed(1, [&] { read(runs); });
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kGpu.type());
    allocator->resetPeakStats(kGpu.index());
    times.prefill.whole = timed(1, [&] { read(drawn); });
    times.beside_bytes = allocator->getDeviceStats(kGpu.index()).allocated_bytes[0].peak -
                         times.weight_bytes - engine.cache_use().taken;
    return sequence;
  }

  void prefill_stage(Times& times) {
    const Subject::Dense cache = subject_.dense({&sequences_.front()});
    const nn::AttentionConfig& a = subject_.config().attention;
    const auto options = torch::dtype(at::kBFloat16).device(kGpu);
    const Tensor q = torch::randn({1, options_.length, a.heads, a.head_size}, options);
    if (!subject_.sparse()) {
      const Tensor heads_first = q.transpose(1, 2).contiguous();
      times.torch = by_backends(2, [&] {
        at::scaled_dot_product_attention(heads_first, cache.k, cache.v, {}, 0, /*is_causal=*/true, {},
                                         /*enable_gqa=*/true);
      });
      for (auto& [name, seconds] : times.torch) seconds *= kLayers;
      times.stage = times.torch.at("cuDNN");  // what the engine runs
      return;
    }
    const Tensor k = cache.k.transpose(1, 2).contiguous(), v = cache.v.transpose(1, 2).contiguous();
    const Subject::Stage stage = subject_.stage({&sequences_.front()}, 1);
    ops::IndexerInputs indexer = *stage.indexer;
    const auto& [heads, size] = std::pair(a.indexer.heads, a.indexer.head_size);
    indexer.q = torch::randn({1, options_.length, heads, size}, options);
    indexer.k = torch::randn({1, options_.length, size}, options);
    indexer.w = torch::rand({1, options_.length, heads}, options);
    if (options_.index_every == 1) {
      times.stage = kLayers * timed(2, [&] { ops::sparse_attend(q, k, v, indexer, stage.budget); });
      return;
    }
    // As the engine does it, pass by pass: the mask of a pass is made once a group.
    const std::int64_t chunk = *subject_.engine().options().chunk, leaders = subject_.config().indexers();
    const auto rows = [](const Tensor& x, std::int64_t begin, std::int64_t count) {
      return x.narrow(1, begin, count);
    };
    for (std::int64_t begin = 0; begin < options_.length; begin += chunk) {
      const std::int64_t count = std::min(chunk, options_.length - begin);
      const Tensor of_q = rows(q, begin, count), of_k = rows(k, 0, begin + count),
                   of_v = rows(v, 0, begin + count);
      ops::IndexerInputs part = indexer;
      part.q = rows(indexer.q, begin, count);
      part.k = rows(indexer.k, 0, begin + count);
      part.w = rows(indexer.w, begin, count);
      Tensor mask;
      times.stage += static_cast<double>(leaders) * timed(2, [&] {
                       mask.reset();
                       mask =
                           ops::sparse_attend_with_mask(of_q, of_k, of_v, part, stage.budget).selection.mask;
                     });
      times.stage +=
          static_cast<double>(kLayers - leaders) * timed(2, [&] { ops::attend(of_q, of_k, of_v, mask); });
    }
  }

  Times decode(std::int64_t batch) {
    constexpr int kWarm = 3, kSteps = 11;
    std::vector<infer::Step> steps;
    std::vector<const Sequence*> sequences;
    for (std::int64_t i = 0; i < batch; ++i) {
      Sequence& sequence = sequences_[static_cast<std::size_t>(i)];
      sequence.truncate(options_.length - kWarm - kSteps);
      steps.push_back({&sequence, 1});
      sequences.push_back(&sequence);
    }
    for (int i = 0; i < kWarm; ++i) subject_.engine().decode(steps);
    Times times;
    times.whole = timed(kSteps, [&] { subject_.engine().decode(steps); });

    Subject::Stage stage = subject_.stage(sequences, 1);
    const auto all_layers = [&] {
      for (std::int64_t n = 0; n < kLayers; ++n) subject_.run(stage, n);
    };
    all_layers();
    times.stage = timed(5, all_layers);
    if (!subject_.sparse()) {
      const Subject::Dense cache = subject_.dense(sequences);
      for (const TorchWay& way : torch_decode(stage.q.transpose(1, 2).contiguous(), cache)) {
        const auto layers = [&] {
          for (std::int64_t n = 0; n < kLayers; ++n) way.run();
        };
        for (const auto& [name, seconds] : by_backends(5, layers))
          times.torch[concat(name, ", ", way.name)] = seconds;
      }
    }
    return times;
  }

  const GpuOptions& options_;
  Progress& progress_;
  Subject subject_;
  std::deque<Sequence> sequences_;
};

std::string table_line(const std::vector<std::string>& cells) {
  constexpr std::size_t kWidths[] = {24, 10, 10, 6, 14, 14, 14};
  std::vector<Cell> line_cells;
  for (std::size_t i = 0; i < cells.size(); ++i) line_cells.push_back({cells[i], kWidths[i], i == 0});
  return line(line_cells);
}

std::string table_row(const std::string& name, const Times& gsa, const Times& standard) {
  double torch = standard.stage;
  if (!standard.torch.empty()) {
    torch = std::min_element(standard.torch.begin(), standard.torch.end(), [](const auto& a, const auto& b) {
              return a.second < b.second;
            })->second;
  }
  return table_line({name, duration(gsa.whole), duration(standard.fastest_whole()),
                     format("%.2f", standard.fastest_whole() / gsa.whole), duration(gsa.stage),
                     duration(standard.stage), duration(torch)});
}

std::string memory_line(const char* name, std::int64_t measured, double modelled) {
  return concat(name, " ", format("%.2f GB", static_cast<double>(measured) * 1e-9), " (cost model ",
                format("%.2f", modelled * 1e-9), ")");
}

json json_of(const Times& times) {
  json object = {{"model_s", times.whole}, {"attention_s", times.stage}};
  if (!times.torch.empty()) object["attention_by_torch_s"] = times.torch;
  return object;
}

json json_of(const SystemTimes& times) {
  json decode = json::object();
  for (const auto& [batch, value] : times.decode) decode[concat(batch)] = json_of(value);
  return {{"prefill", json_of(times.prefill)},
          {"prefill_of_runs_s", times.prefill_of_runs},
          {"decode", decode},
          {"weight_bytes", times.weight_bytes},
          {"weight_bytes_by_cost_model", times.cost.weight_bytes},
          {"cache_bytes", times.cache_bytes},
          {"cache_bytes_by_cost_model", times.cost.cache.total()},
          {"prefill_beside_bytes", times.beside_bytes}};
}

}  // namespace

json run_gpu(const GpuOptions& options, Progress& progress) {
  if (!torch::cuda::is_available()) throw Error("--device cuda: expected a GPU that torch sees, got none");
  if (!ops::built_with_cuda())
    throw Error("--device cuda: expected a build with the CUDA operators, got one without");
  std::map<nn::System, SystemTimes> systems;
  for (const nn::System system : {nn::System::standard, nn::System::gsa}) {
    progress.start(nn::name_of(system));
    systems[system] = SystemRun(system, options, progress).run();
    c10::getDeviceAllocator(kGpu.type())->emptyCache();
  }
  const SystemTimes &gsa = systems[nn::System::gsa], &standard = systems[nn::System::standard];
  progress.say(concat(
      "\nThe whole paper-1.7b, random weights, bfloat16, ", options.length, " tokens",
      options.index_every == 1 ? ""
                               : concat(", gsa with an indexer in every ", options.index_every, "-th layer"),
      "\n", table_line({"", "gsa", "standard", "×", "attention: gsa", "dense", "dense by torch"})));
  progress.say(table_row("prefill", gsa.prefill, standard.prefill));
  progress.say(table_line({concat("prefill, runs of ", kRun), duration(gsa.prefill_of_runs),
                           duration(standard.prefill_of_runs),
                           format("%.2f", standard.prefill_of_runs / gsa.prefill_of_runs)}));
  for (const std::int64_t batch : options.batches) {
    progress.say(table_row(concat("decode step, ", batch, batch == 1 ? " sequence" : " sequences"),
                           gsa.decode.at(batch), standard.decode.at(batch)));
  }
  for (const auto& [system, times] : systems) {
    progress.say(concat(
        nn::name_of(system), ": ", memory_line("weights", times.weight_bytes, times.cost.weight_bytes), ", ",
        memory_line("cache of a sequence", times.cache_bytes, times.cost.cache.total()),
        ", beside them in prefill ", format("%.2f GB", static_cast<double>(times.beside_bytes) * 1e-9)));
  }
  return {{"gsa", json_of(gsa)}, {"standard", json_of(standard)}, {"length", options.length}};
}

}  // namespace gsa::bench
