#include "report.h"

#include <nlohmann/json.hpp>

#include "gsa/error.h"
#include "gsa/version.h"
#include "json_file.h"
#include "text.h"

namespace gsa::bench {

namespace {

using json = nlohmann::ordered_json;

constexpr char kNone[] = "-";

// One order of columns for headings and rows.
struct Columns {
  std::string name, shape, union_over_k, first, second, total, gflops, floor, gap, torch, speedup, every_key,
      bytes, runs, memory;
};

std::string table_line(Kind kind, const Columns& c) {
  std::vector<Cell> cells = {{c.name, 24, true}, {c.shape, 11}};
  if (kind != Kind::decode) cells.push_back({c.union_over_k, 7});
  if (kind != Kind::stage) {
    cells.push_back({c.first, 8});
    cells.push_back({c.second, 8});
  }
  cells.insert(cells.end(), {{c.total, 8}, {c.gflops, 6}, {c.floor, 8}, {c.gap, 5}});
  if (kind == Kind::stage) {
    cells.push_back({c.memory, 9});
  } else {
    cells.push_back({c.torch, 8});
    cells.push_back({c.speedup, 7});
  }
  if (kind == Kind::decode) {
    cells.push_back({c.every_key, 9});
    cells.push_back({c.bytes, 8});
  }
  cells.push_back({c.runs, 7});
  return line(cells);
}

const char* title(Kind kind) {
  switch (kind) {
    case Kind::prefill:
      return "Prefill: a whole sequence, forward";
    case Kind::train:
      return "Training: a whole sequence, forward and backward";
    case Kind::decode:
      return "Decoding: one query against a paged cache (caches of the processor flushed before each run)";
    case Kind::stage:
      return "Memory: one layer's attention stage, forward";
  }
  return "";
}

json seconds_of(const Samples& samples) {
  return {{"median_s", samples.median()}, {"samples_s", samples.seconds}};
}

json json_of(const std::vector<Timed>& list) {
  json object = json::object();
  for (const Timed& timed : list) object[timed.name] = seconds_of(timed.samples);
  return object;
}

json json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"threads", machine.threads},
          {"simd", machine.simd},
          {"torch_simd", machine.torch_simd},
          {"torch", machine.torch_version},
          {"gemm_fp32_gflops", machine.gemm_fp32 * 1e-9},
          {"gemm_bf16_gflops", machine.gemm_bf16 * 1e-9},
          {"sigmoids_g_per_s", machine.sigmoids * 1e-9},
          {"read_gb_per_s", machine.read_bytes * 1e-9}};
}

json json_of(const Result& result, const Machine& machine) {
  const Case& what = result.what;
  const double total = result.total.median(), floor = result.work.floor_seconds(machine);
  json object = {{"name", what.name},
                 {"kind", name_of(what.kind)},
                 {"queries", what.queries},
                 {"keys", what.keys},
                 {"type", type_name(what.type)},
                 {"inputs", name_of(what.pattern)},
                 {"stages", json_of(result.stages)},
                 {"total", seconds_of(result.total)},
                 {"gflop", result.work.flops() * 1e-9},
                 {"gflops", result.work.flops() / total * 1e-9},
                 {"floor_s", floor},
                 {"gap", total / floor},
                 {"torch", json_of(result.torch)}};
  if (result.union_over_k) object["union_over_k"] = *result.union_over_k;
  if (const Timed* torch = result.fastest_torch()) {
    object["torch_fastest"] = torch->name;
    object["speedup"] = torch->samples.median() / total;
  }
  if (result.peak_bytes) {
    object["peak_bytes"] = *result.peak_bytes;
    object["peak_includes_earlier_cases"] = result.peak_is_of_run;
  }
  return object;
}

}  // namespace

std::string heading(const Machine& m) {
  const auto giga = [](const char* pattern, double value) { return format(pattern, value * 1e-9); };
  return concat("gsa ", GSA_VERSION, " on ", m.cpu, ", ", m.cores, " cores, ", m.threads,
                " threads | Highway target ", m.simd, " | torch ", m.torch_version, " on ", m.torch_simd,
                "\n", "measured now: GEMM ", giga("%.0f", m.gemm_fp32), " GFLOPS fp32, ",
                giga("%.0f", m.gemm_bf16), " bf16 | sigmoid ", giga("%.2f", m.sigmoids),
                " G/s | memory read ", giga("%.1f", m.read_bytes), " GB/s\n", kHeads, "/", kKvHeads,
                " heads of ", kHeadSize, ", indexer ", kIndexerHeads, " heads of ", kIndexerHeadSize,
                ", k = ", kSelected, " | medians | torch = dense scaled_dot_product_attention, same threads");
}

std::string table_head(Kind kind) {
  const bool train = kind == Kind::train;
  const Columns names{.name = "case",
                      .shape = "q × keys",
                      .union_over_k = "union/k",
                      .first = train ? "forward" : "select",
                      .second = train ? "backward" : "attend",
                      .total = "total",
                      .gflops = "GFLOPS",
                      .floor = "floor",
                      .gap = "gap",
                      .torch = "torch",
                      .speedup = "× torch",
                      .every_key = "every key",
                      .bytes = "8-bit",
                      .runs = "runs",
                      .memory = "peak mem."};
  return concat("\n", title(kind), "\n", table_line(kind, names));
}

std::string table_row(const Result& result, const Machine& machine) {
  const Case& what = result.what;
  const double total = result.total.median(), floor = result.work.floor_seconds(machine);
  const Timed* torch = result.fastest_torch();
  const auto stage = [&result](std::size_t i) {
    return i < result.stages.size() ? duration(result.stages[i].samples.median()) : kNone;
  };
  std::string runs = concat(result.total.seconds.size());
  if (torch != nullptr) runs += concat("/", torch->samples.seconds.size());
  std::string memory = kNone;
  if (result.peak_bytes) {
    memory = concat(result.peak_is_of_run ? "≤ " : "",
                    format("%.2f GB", static_cast<double>(*result.peak_bytes) * 1e-9));
  }
  return table_line(what.kind,
                    {.name = what.name,
                     .shape = concat(short_length(what.queries), " × ", short_length(what.keys)),
                     .union_over_k = result.union_over_k ? format("%.2f", *result.union_over_k) : kNone,
                     .first = stage(0),
                     .second = stage(1),
                     .total = duration(total),
                     .gflops = format("%.1f", result.work.flops() / total * 1e-9),
                     .floor = duration(floor),
                     .gap = format("%.2f", total / floor),
                     .torch = torch != nullptr ? duration(torch->samples.median()) : kNone,
                     .speedup = torch != nullptr ? format("%.2f", torch->samples.median() / total) : kNone,
                     .every_key = stage(2),
                     .bytes = stage(3),
                     .runs = runs,
                     .memory = memory});
}

void write_json(const std::string& path, const Machine& machine, const std::vector<Result>& results) {
  json cases = json::array();
  for (const Result& result : results) cases.push_back(json_of(result, machine));
  write_json_file(path, {{"gsa", GSA_VERSION},
                         {"machine", json_of(machine)},
                         {"shape",
                          {{"heads", kHeads},
                           {"kv_heads", kKvHeads},
                           {"head_size", kHeadSize},
                           {"indexer_heads", kIndexerHeads},
                           {"indexer_head_size", kIndexerHeadSize},
                           {"k", kSelected},
                           {"rho", kRho}}},
                         {"cases", cases}});
}

}  // namespace gsa::bench
