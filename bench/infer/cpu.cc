#include "cpu.h"

#include <algorithm>
#include <map>
#include <set>

#include "../machine.h"
#include "../text.h"
#include "../timing.h"
#include "gsa/error.h"
#include "subject.h"

namespace gsa::bench {

namespace {

using at::Tensor;
using json = nlohmann::ordered_json;
using infer::Sequence;

// Seconds. torch: the faster of the ways to ask it; only for the standard layer.
struct Times {
  double stage = 0, whole = 0;
  std::optional<double> torch;

  // Dense attention is taken from whoever is faster; where that is torch, the layer is given the difference.
  double fastest_stage() const { return std::min(stage, torch.value_or(stage)); }
  double fastest_whole() const { return whole - stage + fastest_stage(); }
};

struct SystemTimes {
  std::map<std::int64_t, Times> decode, chunks;  // by length; by start
};

// Chunks of prefill take long, and many are timed: few samples each.
double median_of_few(const std::function<void()>& body, const std::function<void()>& prepare) {
  constexpr double kLong = 1;
  Samples samples;
  do {
    if (prepare) prepare();
    const Stopwatch watch;
    body();
    samples.seconds.push_back(watch.seconds());
  } while (samples.seconds.size() < 3 && samples.seconds.back() < kLong);
  return samples.median();
}

Tensor heads_first(const Tensor& q) { return q.transpose(1, 2).contiguous(); }

class SystemRun {
 public:
  SystemRun(nn::System system, at::ScalarType type, std::int64_t layers, Progress& progress)
      : layers_(layers),
        subject_({.system = system, .type = type, .layers = layers, .index_every = layers}),
        progress_(progress) {}

  SystemTimes run(const std::vector<std::int64_t>& lengths) {
    progress_.step("filling the cache");
    const Sequence all = subject_.filled(*std::max_element(lengths.begin(), lengths.end()));
    SystemTimes times;
    for (const std::int64_t length : lengths) {
      progress_.step(concat("decoding behind ", length, " tokens"));
      times.decode[length] = decode(all.fork(length - 1));
    }
    for (const std::int64_t start : chunk_starts(lengths)) {
      progress_.step(concat("the chunk at ", start));
      times.chunks[start] = chunk(all.fork(start));
    }
    return times;
  }

 private:
  // Processor caches are flushed before each sample: between two steps of a model its other layers have gone
  // through them.
  Times decode(Sequence sequence) {
    const std::int64_t before = sequence.length();
    infer::Engine& engine = subject_.engine();
    const std::vector<std::int64_t> token = {1};
    const auto again = [&] {
      sequence.truncate(before);
      const infer::Prompt prompt[] = {{&sequence, token}};
      engine.reserve(prompt, 0);
      flush_();
    };
    again();
    engine.decode({{&sequence, 1}});
    Times times;
    times.whole = of_a_layer(measure([&] { engine.decode({{&sequence, 1}}); }, again).median());

    Subject::Stage stage = subject_.stage({&sequence}, 1);
    run_layers(stage);
    times.stage = of_a_layer(measure([&] { run_layers(stage); }, flush_).median());
    if (!subject_.sparse()) {
      const Subject::Dense cache = subject_.dense({&sequence});
      for (const TorchWay& way : torch_decode(heads_first(stage.q), cache)) {
        way.run();
        const double seconds = measure([&] { way.run(); }, flush_).median();
        times.torch = std::min(times.torch.value_or(seconds), seconds);
      }
    }
    return times;
  }

  Times chunk(Sequence sequence) {
    const std::int64_t before = sequence.length();
    const std::vector<std::int64_t> tokens(static_cast<std::size_t>(kChunk), 1);
    const auto whole = [&] { subject_.engine().prefill({{&sequence, tokens}}); };
    const auto again = [&] { sequence.truncate(before); };
    if (before == 0) whole();  // warms up
    Times times;
    times.whole = of_a_layer(median_of_few(whole, again));
    Subject::Stage stage = subject_.stage({&sequence}, kChunk);
    if (before == 0) run_layers(stage);
    times.stage = of_a_layer(median_of_few([&] { run_layers(stage); }, {}));
    if (!subject_.sparse()) {
      const Subject::Dense cache = subject_.dense({&sequence});
      const Tensor q = heads_first(stage.q);
      times.torch = median_of_few([&] { torch_chunk(q, cache, before); }, {});
    }
    return times;
  }

  void run_layers(Subject::Stage& stage) {
    for (std::int64_t n = 0; n < layers_; ++n) subject_.run(stage, n);
  }
  double of_a_layer(double seconds) const { return seconds / static_cast<double>(layers_); }

  const at::NoGradGuard no_grad_;
  const std::int64_t layers_;  // a group that shares a selection, or one
  Subject subject_;
  Progress& progress_;
  const CacheFlusher flush_;
};

// One row of the tables, for decoding or prefill.
struct Row {
  std::string type;
  std::int64_t length = 0, tokens = 0;  // tokens: that the times are for
  Times gsa, standard;
};

Row prefill_row(const Row& decode, const SystemTimes& gsa, const SystemTimes& standard) {
  Row row = decode;
  row.tokens = row.length;
  const auto sum = [&](const SystemTimes& times, auto value) {
    std::vector<std::pair<std::int64_t, double>> timed;
    for (const auto& [start, chunk] : times.chunks) timed.emplace_back(start, value(chunk));
    return sum_of_chunks(timed, row.length);
  };
  for (const auto& [times, target] : {std::pair(&gsa, &row.gsa), std::pair(&standard, &row.standard)}) {
    target->stage = sum(*times, [](const Times& t) { return t.stage; });
    target->whole = sum(*times, [](const Times& t) { return t.whole; });
  }
  row.standard.torch = sum(standard, [](const Times& t) { return t.torch.value(); });
  return row;
}

std::string table_line(const std::vector<std::string>& cells) {
  constexpr std::size_t kWidths[] = {9, 7, 9, 9, 9, 6, 12, 9, 6, 13, 13};
  std::vector<Cell> line_cells;
  for (std::size_t i = 0; i < cells.size(); ++i) line_cells.push_back({cells[i], kWidths[i], i == 0});
  return line(line_cells);
}

std::string table_head(const char* title) {
  return concat("\n", title, "\n",
                table_line({"type", "length", "gsa", "dense", "by torch", "×", "layer: gsa", "standard", "×",
                            "gsa tok/s", "standard tok/s"}));
}

std::string table_row(const Row& row) {
  const auto ratio = [](double dense, double gsa) { return format("%.2f", dense / gsa); };
  const auto speed = [&](double seconds) {
    return format("%.1f", static_cast<double>(row.tokens) / seconds);
  };
  const Times &gsa = row.gsa, &standard = row.standard;
  return table_line(
      {row.type, concat(row.length), duration(gsa.stage), duration(standard.stage), duration(*standard.torch),
       ratio(standard.fastest_stage(), gsa.stage), duration(gsa.whole), duration(standard.fastest_whole()),
       ratio(standard.fastest_whole(), gsa.whole), speed(gsa.whole), speed(standard.fastest_whole())});
}

json json_of(const char* kind, const Row& row) {
  const auto one = [](const Times& times) {
    json object = {{"attention_s", times.stage}, {"layer_s", times.whole}};
    if (times.torch) object["attention_by_torch_s"] = *times.torch;
    return object;
  };
  return {{"kind", kind},
          {"type", row.type},
          {"length", row.length},
          {"tokens", row.tokens},
          {"gsa", one(row.gsa)},
          {"standard", one(row.standard)},
          {"attention_ratio", row.standard.fastest_stage() / row.gsa.stage},
          {"layer_ratio", row.standard.fastest_whole() / row.gsa.whole}};
}

}  // namespace

std::vector<std::int64_t> chunk_starts(const std::vector<std::int64_t>& lengths) {
  std::set<std::int64_t> starts = {0};
  for (const std::int64_t length : lengths) {
    for (const std::int64_t start : {length / 4, length / 2, length * 3 / 4, length - kChunk}) {
      const std::int64_t whole = start / kChunk * kChunk;
      // Two lengths may ask for neighbours.
      if (!starts.contains(whole - kChunk) || whole < 4 * kChunk) starts.insert(whole);
    }
  }
  return {starts.begin(), starts.end()};
}

double sum_of_chunks(const std::vector<std::pair<std::int64_t, double>>& timed, std::int64_t length) {
  double sum = 0;
  for (std::int64_t start = 0; start < length; start += kChunk) {
    const auto next = std::lower_bound(timed.begin(), timed.end(), std::pair(start, -1.0));
    if (next == timed.end()) throw Error(concat("no chunk was timed at or behind ", start));
    if (next->first == start) {
      sum += next->second;
      continue;
    }
    const auto last = next - 1;
    const double share =
        static_cast<double>(start - last->first) / static_cast<double>(next->first - last->first);
    sum += last->second + share * (next->second - last->second);
  }
  return sum;
}

json run_cpu(const CpuOptions& options, Progress& progress) {
  std::vector<Row> decode, prefill;
  progress.say(
      table_head("Decoding: one token behind a cache of random rows, processor caches flushed before each"));
  for (const at::ScalarType type : options.types) {
    const std::string name = type == at::kFloat ? "fp32" : "bf16";
    progress.start(name + ", gsa");
    const SystemTimes gsa =
        SystemRun(nn::System::gsa, type, options.index_every, progress).run(options.lengths);
    progress.start(name + ", standard");
    const SystemTimes standard = SystemRun(nn::System::standard, type, 1, progress).run(options.lengths);
    for (const std::int64_t length : options.lengths) {
      decode.push_back({name, length, 1, gsa.decode.at(length), standard.decode.at(length)});
      prefill.push_back(prefill_row(decode.back(), gsa, standard));
      progress.say(table_row(decode.back()));
    }
  }
  progress.say(table_head(
      "Prefill: a whole prompt in chunks of 1024; some chunks timed, the others between them interpolated"));
  for (const Row& row : prefill) progress.say(table_row(row));

  json rows = json::array();
  for (const Row& row : decode) rows.push_back(json_of("decode", row));
  for (const Row& row : prefill) rows.push_back(json_of("prefill", row));
  return rows;
}

}  // namespace gsa::bench
