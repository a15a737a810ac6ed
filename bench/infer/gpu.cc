#include "gpu.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

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

// Up to here gsa is measured as a dense model, too, which is what dense_below makes of it.
constexpr std::int64_t kCrossover = 32768;

// The first pass over a prompt takes memory and chooses kernels; of a longer one, these tokens do it.
constexpr std::int64_t kWarmTokens = 131072;

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

// Keys that 16 neighbouring queries select together, over what one selects.
struct Unions {
  double mean = 0, lowest = 0, highest = 0;  // of layers
};

struct SystemTimes {
  std::int64_t length = 0;
  Times prefill;                         // whole is 0 beyond --dense-limit
  double prefill_of_runs = 0;            // the whole model on a prompt of runs
  std::optional<double> dense_of_runs;   // the same, where a sparse model runs dense
  std::optional<Unions> unions;          // of the prompt of runs, in a sparse model
  std::map<std::int64_t, Times> decode;  // by number of sequences
  std::int64_t weight_bytes = 0, cache_bytes = 0;
  std::int64_t beside_bytes = 0;  // the most that prefill takes beside weights and cache
  nn::Cost cost;                  // what gsa inspect says
};

// Median seconds; as many runs as timing.h has for their length, or as many as given.
double timed(const std::function<void()>& body) {
  return measure(
             [&] {
               body();
               torch::cuda::synchronize();
             },
             [] { torch::cuda::synchronize(); })
      .median();
}

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
  // index_every: every so many layers have an indexer, where the system has one.
  SystemRun(nn::System system, std::int64_t length, std::int64_t index_every, const GpuOptions& options,
            Progress& progress)
      : options_(options),
        length_(length),
        index_every_(index_every),
        progress_(progress),
        subject_(subject(system)) {}

  SystemTimes run() {
    const at::NoGradGuard no_grad;
    SystemTimes times;
    times.length = length_;
    times.weight_bytes = subject_.engine().weight_bytes();
    times.cost = nn::estimate_cost(subject_.config(),
                                   {.length = length_,
                                    .dtype = DType::bf16,
                                    .phase = subject_.sparse() ? nn::Phase::sparse : nn::Phase::dense});
    {  // Memory for all sequences at once, so that no page moves later.
      Sequence all = subject_.engine().start();
      std::int64_t sequences = 1;
      for (const std::int64_t batch : options_.batches) sequences = std::max(sequences, batch);
      const infer::Cache::Growth growth[] = {{&all, sequences * length_}};
      subject_.engine().cache().reserve(growth);
    }
    progress_.step("prefill");
    sequences_.push_back(prefill(times));
    times.cache_bytes = length_ * subject_.engine().cache_use().bytes_per_token;
    progress_.step("prefill, attention by itself");
    prefill_stage(times.prefill);
    for (const std::int64_t batch : options_.batches) {
      progress_.step("filling caches");
      while (static_cast<std::int64_t>(sequences_.size()) < batch) {
        sequences_.push_back(subject_.filled(length_));
      }
      progress_.step(concat("decoding, ", batch, " sequences"));
      times.decode[batch] = decode(batch);
    }
    // Only now, as it shortens the sequence, and reading it again takes as long as its prefill.
    if (subject_.sparse() && !times.unions) times.unions = unions(sequences_.front());
    return times;
  }

 private:
  SubjectOptions subject(nn::System system) const {
    return {.system = system,
            .type = at::kBFloat16,
            .device = kGpu,
            .layers = kLayers,
            .index_every = index_every_,
            .vocabulary = kVocabulary,
            // Dense attention of a prompt in one pass is cuDNN's; in chunks it is ours.
            .chunk = system == nn::System::standard ? std::optional(length_) : std::nullopt};
  }

  static void read(infer::Engine& engine, Sequence& sequence, const Tensor& tokens) {
    sequence.clear();
    engine.prefill(
        {{&sequence, {tokens.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel())}}});
  }

  // What is left in the sequence: the prompt of random tokens, or that of runs beyond --dense-limit.
  Sequence prefill(SystemTimes& times) {
    infer::Engine& engine = subject_.engine();
    const Tensor drawn = torch::randint(0, kVocabulary, {length_}, at::kLong);
    const Tensor runs = drawn.narrow(0, 0, (length_ + options_.run - 1) / options_.run)
                            .repeat_interleave(options_.run)
                            .narrow(0, 0, length_);
    runs_ = runs;
    Sequence sequence = engine.start();
    read(engine, sequence, runs.narrow(0, 0, std::min(length_, kWarmTokens)));
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kGpu.type());
    allocator->resetPeakStats(kGpu.index());
    times.prefill_of_runs = timed([&] { read(engine, sequence, runs); });
    times.beside_bytes = allocator->getDeviceStats(kGpu.index()).allocated_bytes[0].peak -
                         times.weight_bytes - engine.cache_use().taken;
    // The hardest case has no dense one beside it there, and takes minutes.
    if (length_ > options_.dense_limit) return sequence;
    if (subject_.sparse()) {
      times.unions = unions(sequence);
      if (length_ <= kCrossover) times.dense_of_runs = dense_prefill(runs);
    }
    read(engine, sequence, drawn);
    times.prefill.whole = timed([&] { read(engine, sequence, drawn); });
    return sequence;
  }

  // What dense_below makes of a prompt: gates, indexer keys for later, and dense attention.
  double dense_prefill(const Tensor& tokens) {
    SubjectOptions options = subject(nn::System::gsa);
    options.dense_below = length_ + 1;
    Subject dense(options);
    Sequence sequence = dense.engine().start();
    read(dense.engine(), sequence, tokens);
    return timed([&] { read(dense.engine(), sequence, tokens); });
  }

  // Of 16 neighbours each at the end of the prompt of runs, at three quarters and at its half, as decoding selects.
  Unions unions(Sequence& sequence) {
    constexpr std::int64_t kNeighbours = 16;
    std::vector<double> layers(static_cast<std::size_t>(kLayers), 0.0);
    const std::int64_t places[] = {length_, length_ * 3 / 4, length_ / 2};  // the sequence grows shorter
    for (const std::int64_t place : places) {
      const std::int64_t begin = place / kNeighbours * kNeighbours - kNeighbours;
      sequence.truncate(begin);
      std::vector<std::set<std::int32_t>> together(layers.size());
      std::vector<double> selected(layers.size(), 0.0);
      for (std::int64_t i = begin; i < begin + kNeighbours; ++i) {
        const infer::Look look = subject_.engine().look(sequence, runs_[i].item<std::int64_t>());
        for (std::size_t n = 0; n < layers.size(); ++n) {
          together[n].insert(look.layers[n].positions.begin(), look.layers[n].positions.end());
          selected[n] += static_cast<double>(look.layers[n].k_t) / kNeighbours;
        }
      }
      for (std::size_t n = 0; n < layers.size(); ++n) {
        layers[n] +=
            static_cast<double>(together[n].size()) / selected[n] / static_cast<double>(std::size(places));
      }
    }
    const auto [low, high] = std::minmax_element(layers.begin(), layers.end());
    return {std::accumulate(layers.begin(), layers.end(), 0.0) / static_cast<double>(kLayers), *low, *high};
  }

  void prefill_stage(Times& times) {
    const Subject::Dense cache = subject_.dense({&sequences_.front()});
    const nn::AttentionConfig& a = subject_.config().attention;
    const auto options = torch::dtype(at::kBFloat16).device(kGpu);
    const Tensor q = torch::randn({1, length_, a.heads, a.head_size}, options);
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
    indexer.q = torch::randn({1, length_, heads, size}, options);
    indexer.k = torch::randn({1, length_, size}, options);
    indexer.w = torch::rand({1, length_, heads}, options);
    if (index_every_ == 1) {
      times.stage = kLayers * timed(2, [&] { ops::sparse_attend(q, k, v, indexer, stage.budget); });
      return;
    }
    // As the engine does it, pass by pass: the mask of a pass is made once a group.
    const std::int64_t chunk = *subject_.engine().options().chunk, leaders = subject_.config().indexers();
    const auto rows = [](const Tensor& x, std::int64_t begin, std::int64_t count) {
      return x.narrow(1, begin, count);
    };
    for (std::int64_t begin = 0; begin < length_; begin += chunk) {
      const std::int64_t count = std::min(chunk, length_ - begin);
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
      sequence.truncate(length_ - kWarm - kSteps);
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
  const std::int64_t length_, index_every_;
  Progress& progress_;
  Subject subject_;
  Tensor runs_;  // the prompt in which every token comes so many times in a row
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
  json object = {{"attention_s", times.stage}};
  if (times.whole > 0) object["model_s"] = times.whole;
  if (!times.torch.empty()) object["attention_by_torch_s"] = times.torch;
  return object;
}

json json_of(const SystemTimes& times) {
  json decode = json::object();
  for (const auto& [batch, value] : times.decode) decode[concat(batch)] = json_of(value);
  json object = {{"prefill", json_of(times.prefill)},
                 {"prefill_of_runs_s", times.prefill_of_runs},
                 {"decode", decode},
                 {"weight_bytes", times.weight_bytes},
                 {"weight_bytes_by_cost_model", times.cost.weight_bytes},
                 {"cache_bytes", times.cache_bytes},
                 {"cache_bytes_by_cost_model", times.cost.cache.total()},
                 {"prefill_beside_bytes", times.beside_bytes},
                 {"length", times.length}};
  if (times.dense_of_runs) object["prefill_of_runs_dense_s"] = *times.dense_of_runs;
  if (times.unions) {
    object["union_over_k"] = {
        {"mean", times.unions->mean}, {"lowest", times.unions->lowest}, {"highest", times.unions->highest}};
  }
  return object;
}

// The standard model at a length that it was not run at: attention takes the square of it, all else is in proportion.
// It decodes nothing there.
SystemTimes extrapolated(const SystemTimes& measured, std::int64_t length) {
  const double ratio = static_cast<double>(length) / static_cast<double>(measured.length);
  const double stage = measured.prefill.fastest_stage();
  const auto longer = [&](double whole) { return (whole - stage) * ratio + stage * ratio * ratio; };
  SystemTimes times;
  times.length = length;
  times.prefill.stage = stage * ratio * ratio;
  // On runs attention takes what it takes on any tokens, and the engine ran the prefill's own.
  times.prefill_of_runs =
      longer(measured.prefill_of_runs - measured.prefill.stage + measured.prefill.fastest_stage());
  return times;
}

struct Measured {
  std::int64_t index_every;
  SystemTimes gsa, standard;
  bool whole = true;  // the standard model was run at this length
};

void print(const Measured& m, const GpuOptions& options, Progress& progress) {
  const std::int64_t length = m.gsa.length;
  progress.say(
      concat("\nThe whole paper-1.7b, random weights, bfloat16, ", length, " tokens",
             m.index_every == 1 ? "" : concat(", gsa with an indexer in every ", m.index_every, "-th layer"),
             "\n", table_line({"", "gsa", "standard", "×", "attention: gsa", "dense", "dense by torch"})));
  if (m.whole) progress.say(table_row("prefill", m.gsa.prefill, m.standard.prefill));
  progress.say(table_line({concat("prefill, runs of ", options.run), duration(m.gsa.prefill_of_runs),
                           duration(m.standard.prefill_of_runs),
                           format("%.2f", m.standard.prefill_of_runs / m.gsa.prefill_of_runs)}));
  progress.say(concat("union/k of the runs, 16 neighbours: ", format("%.1f", m.gsa.unions->mean), " (layers ",
                      format("%.1f", m.gsa.unions->lowest), " to ", format("%.1f", m.gsa.unions->highest),
                      ")"));
  for (const auto& [batch, times] : m.gsa.decode) {
    const std::string name = concat("decode step, ", batch, batch == 1 ? " sequence" : " sequences");
    if (m.whole) {
      progress.say(table_row(name, times, m.standard.decode.at(batch)));
    } else {
      progress.say(table_line({name, duration(times.whole), "", "", duration(times.stage)}));
    }
  }
  if (!m.whole)
    progress.say(concat("standard: by L² from ", options.dense_limit, " tokens, not run at ", length));
  const auto memory = [&](const char* name, const SystemTimes& times) {
    progress.say(concat(name, ": ", memory_line("weights", times.weight_bytes, times.cost.weight_bytes), ", ",
                        memory_line("cache of a sequence", times.cache_bytes, times.cost.cache.total()),
                        ", beside them in prefill ",
                        format("%.2f GB", static_cast<double>(times.beside_bytes) * 1e-9)));
  };
  memory("gsa", m.gsa);
  if (m.whole) memory("standard", m.standard);
}

// From which length on sparse attention pays.
void print_crossover(const std::vector<Measured>& all, const GpuOptions& options, Progress& progress) {
  const auto row = [](const std::vector<std::string>& cells) {
    constexpr std::size_t kWidths[] = {10, 9, 11, 11, 11, 15, 14};
    std::vector<Cell> line_cells;
    for (std::size_t i = 0; i < cells.size(); ++i) line_cells.push_back({cells[i], kWidths[i], false});
    return line(line_cells);
  };
  progress.say(concat(
      "\nPrefill by length, tokens in runs of ", options.run,
      all.front().index_every == 1 ? ""
                                   : concat(", an indexer in every ", all.front().index_every, "-th layer"),
      "\n", row({"tokens", "union/k", "gsa", "run dense", "standard", "gsa / standard", "dense / std."})));
  for (const Measured& m : all) {
    const double standard = m.standard.prefill_of_runs, gsa = m.gsa.prefill_of_runs;
    const auto& dense = m.gsa.dense_of_runs;
    progress.say(row({concat(m.gsa.length), format("%.1f", m.gsa.unions->mean), duration(gsa),
                      dense ? duration(*dense) : "", concat(duration(standard), m.whole ? "" : " (L²)"),
                      format("%.2f", gsa / standard), dense ? format("%.2f", *dense / standard) : ""}));
  }
}

}  // namespace

json run_gpu(const GpuOptions& options, Progress& progress) {
  if (!torch::cuda::is_available()) throw Error("--device cuda: expected a GPU that torch sees, got none");
  if (!ops::built_with_cuda())
    throw Error("--device cuda: expected a build with the CUDA operators, got one without");
  const auto run = [&](nn::System system, std::int64_t length, std::int64_t index_every) {
    progress.start(concat(nn::name_of(system), ", ", length, " tokens"));
    SystemTimes times = SystemRun(system, length, index_every, options, progress).run();
    c10::getDeviceAllocator(kGpu.type())->emptyCache();
    return times;
  };
  std::map<std::int64_t, SystemTimes> standard;  // by length
  json document = json::array();
  for (const std::int64_t index_every : options.index_every) {
    std::vector<Measured> all;
    for (const std::int64_t length : options.lengths) {
      Measured m{.index_every = index_every,
                 .gsa = run(nn::System::gsa, length, index_every),
                 .standard = {},
                 .whole = length <= options.dense_limit};
      const std::int64_t read = std::min(length, options.dense_limit);
      if (!standard.contains(read)) standard[read] = run(nn::System::standard, read, 1);
      m.standard = m.whole ? standard[read] : extrapolated(standard[read], length);
      print(m, options, progress);
      json entry = {{"length", length},
                    {"index_every", index_every},
                    {"gsa", json_of(m.gsa)},
                    {"standard", json_of(m.standard)}};
      if (!m.whole) entry["standard_from"] = read;
      document.push_back(entry);
      all.push_back(std::move(m));
    }
    if (all.size() > 1) print_crossover(all, options, progress);
  }
  return document;
}

}  // namespace gsa::bench
