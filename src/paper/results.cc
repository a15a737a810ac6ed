#include "paper/results.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <optional>

#include "core/file.h"
#include "core/machine.h"

namespace gsa::paper {
namespace {

constexpr std::int64_t kMaxFile = std::int64_t(1) << 31;
constexpr std::string_view kCurve = "loss at ";
// The trainer's guard compares with so many steps before, of the same phase (train/config.h).
constexpr std::int64_t kGuardWindow = 128;

// Calls take(line) for each line that is a JSON object; others are what commands say to people.
template <typename Take>
void each_object(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const Json object = Json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) take(object);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Mean of a key over the layers that have it.
std::optional<double> layer_mean(const Json& layers, const char* key) {
  double sum = 0;
  int count = 0;
  for (const Json& layer : layers) {
    if (!layer.contains(key)) continue;
    sum += layer[key].get<double>();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

void put(Values& values, const char* name, const Json& object, const char* key) {
  if (object.contains(key) && object[key].is_number()) values[name] = object[key].get<double>();
}

// Means of as many neighbouring steps as make at most kMaxCurve points.
void put_curve(Values& values, const std::vector<CurvePoint>& losses) {
  if (losses.empty()) return;
  const std::int64_t together = (losses.back().step + kMaxCurve - 1) / kMaxCurve;
  for (std::size_t i = 0; i < losses.size();) {
    const std::int64_t group = (losses[i].step - 1) / together;
    double sum = 0, count = 0;
    for (; i < losses.size() && (losses[i].step - 1) / together == group; ++i, ++count) sum += losses[i].loss;
    values[concat(kCurve, losses[i - 1].step)] = sum / count;
  }
}

Json read_json(const std::filesystem::path& file) {
  return parse_json(read_file(file, kMaxFile), file.string());
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

// A line of JSON that a command of another version wrote may lack a key, or have something else there.
template <typename Work>
Values reading(const std::filesystem::path& file, const Work& work) {
  try {
    return work();
  } catch (const Json::exception& error) {
    bad_file(file.string(), "figures as this program writes them", error.what());
  }
}

}  // namespace

Values training_values(std::string_view metrics) {
  Values values;
  std::vector<CurvePoint> losses;
  std::vector<double> speeds;
  double steps = 0, loss_spikes = 0, watched = 0, seconds = 0;
  std::string phase;
  std::int64_t seen = 0;  // losses of this phase
  each_object(metrics, [&](const Json& line) {
    const std::string kind = line.value("kind", "");
    if (kind == "validation") put(values, "validation", line, "loss");
    if (kind != "step") return;
    steps = std::max(steps, line.at("step").get<double>());
    put(values, "spikes", line, "spikes");
    if (line.value("phase", "") != phase) seen = 0;
    phase = line.value("phase", "");
    if (line.contains("loss") && line["loss"].is_number()) {
      losses.push_back({line["step"].get<std::int64_t>(), line["loss"].get<double>()});
      if (++seen > kGuardWindow) watched += 1;
    }
    if (line.value("spike", "").starts_with("loss")) loss_spikes += 1;
    seconds += line.at("seconds").get<double>();
    speeds.push_back(line.at("tokens_per_second").get<double>());
  });
  values["steps"] = steps;
  values["loss_spikes"] = loss_spikes;
  values["watched"] = watched;
  values["seconds"] = seconds;
  if (!speeds.empty()) values["tokens_per_second"] = median(std::move(speeds));
  if (!losses.empty()) {
    const std::size_t last = std::max<std::size_t>(1, losses.size() / 10);
    double sum = 0;
    for (std::size_t i = losses.size() - last; i < losses.size(); ++i) sum += losses[i].loss;
    values["loss"] = sum / static_cast<double>(last);
  }
  put_curve(values, losses);
  return values;
}

std::vector<CurvePoint> curve_of(const Values& values) {
  std::vector<CurvePoint> curve;
  for (const auto& [name, value] : values) {
    if (!name.starts_with(kCurve)) continue;
    CurvePoint point{.step = 0, .loss = value};
    std::from_chars(name.data() + kCurve.size(), name.data() + name.size(), point.step);
    curve.push_back(point);
  }
  std::sort(curve.begin(), curve.end(),
            [](const CurvePoint& a, const CurvePoint& b) { return a.step < b.step; });
  return curve;
}

Values evaluation_values(const Json& json) {
  Values values;
  put(values, "parameters", json, "parameters");
  if (json.contains("device"))
    values["on_gpu"] = json["device"].get<std::string>().starts_with("cuda") ? 1 : 0;
  const Json& report = json.at("reports").at(0);
  const Json& perplexity = report.at("perplexity");
  values["perplexity"] = perplexity.at("per_token").get<double>();
  values["loss"] = perplexity.at("nats_per_token").get<double>();
  if (report.contains("sinks")) {
    const Json& sinks = report["sinks"];
    put(values, "first_token", sinks, "first_token_mean");
    put(values, "even_share", sinks, "even_share");
    put(values, "largest", sinks, "largest_activation");
    for (const char* gate : {"value_gate", "output_gate"}) {
      if (const auto mean = layer_mean(sinks.at("layers"), gate)) values[gate] = *mean;
    }
  }
  if (report.contains("selection")) {
    const Json& selection = report["selection"];
    put(values, "kept", selection, "kept_mass_mean");
    put(values, "k_mean", selection, "k_mean");
    if (selection.contains("oracle")) {
      put(values, "kept_over_oracle", selection["oracle"], "kept_over_oracle_mean");
      put(values, "oracle_recall", selection["oracle"], "recall_mean");
    }
  }
  return values;
}

Values ruler_values(const Json& json) {
  Values values;
  for (const Json& mean : json.at("means")) {
    const std::string length = concat(mean.at("length").get<std::int64_t>());
    if (mean.at("mean").is_number()) values[length] = mean["mean"].get<double>();
    values[length + " tasks"] = mean.at("tasks").get<double>();
  }
  for (const Json& cell : json.at("cells")) {
    values[concat(cell.at("length").get<std::int64_t>(), " ", cell.at("task").get<std::string>())] =
        cell.at("score").get<double>();
  }
  return values;
}

Values speed_values(std::string_view printed) {
  Values values;
  each_object(printed, [&](const Json& line) {
    if (!line.contains("stats")) return;
    const Json& stats = line["stats"];
    put(values, "prefill", stats, "prefill_tokens_per_second");
    put(values, "decode", stats, "decode_tokens_per_second");
    put(values, "prompt", stats, "prefill_tokens");
    put(values, "cache", stats, "cache_bytes_per_token");
  });
  return values;
}

Values values_of(const Step& step, const std::filesystem::path& folder) {
  const std::filesystem::path output = folder / step.output;
  switch (step.kind) {
    case Kind::data:
      return reading(folder / kDataDone, [&] {
        Values values;
        const Json facts = read_json(folder / kDataDone);
        for (const char* key : {"text_rows", "text_rows_different"}) put(values, key, facts, key);
        return values;
      });
    case Kind::training:
      return reading(output, [&] { return training_values(read_file(output / "metrics.jsonl", kMaxFile)); });
    case Kind::evaluation:
      return reading(output, [&] { return evaluation_values(read_json(output)); });
    case Kind::ruler:
      return reading(output, [&] { return ruler_values(read_json(output / "ruler.json")); });
    case Kind::speed:
      return reading(output, [&] { return speed_values(read_file(output, kMaxFile)); });
  }
  bad_argument("paper", "kind", "a kind of step", concat(static_cast<int>(step.kind)));
}

std::filesystem::path result_file(const Step& step, const std::filesystem::path& folder) {
  return folder / "results" / (step.name + ".json");
}

void write_result(const Step& step, const Values& values, const std::filesystem::path& folder) {
  const std::filesystem::path path = result_file(step, folder);
  std::filesystem::create_directories(path.parent_path());
  OrderedJson json{
      {"step", step.name}, {"arguments", step.arguments}, {"machine", machine_name()}, {"date", utc_date()}};
  json["values"] = OrderedJson::object();
  for (const auto& [name, value] : values)
    json["values"][name] = std::isfinite(value) ? OrderedJson(value) : OrderedJson();
  AtomicFile file(path);
  file.write(json.dump(1) + "\n");
  file.commit();
}

std::string machines_in(const std::vector<Step>& plan, const std::filesystem::path& folder) {
  std::map<std::string, std::string> machines;  // and the device that evaluations had there
  for (const Step& step : plan) {
    const std::filesystem::path path = result_file(step, folder);
    if (step.kind == Kind::data || !std::filesystem::exists(path)) continue;
    const Json json = read_json(path);
    if (!json.contains("machine") || !json["machine"].is_string()) continue;  // of an earlier version
    std::string& device = machines[json["machine"].get<std::string>()];
    const Json on_gpu = json.value("values", Json::object()).value("on_gpu", Json());
    if (on_gpu.is_number()) device = on_gpu > 0 ? " (on the GPU)" : " (on the CPU)";
  }
  std::string text;
  for (const auto& [machine, device] : machines) text += concat(text.empty() ? "" : "; ", machine, device);
  return text;
}

std::string dates_in(const std::vector<Step>& plan, const std::filesystem::path& folder) {
  std::string first, last;
  std::size_t without = 0;
  for (const Step& step : plan) {
    const std::filesystem::path path = result_file(step, folder);
    if (!std::filesystem::exists(path)) continue;
    const Json json = read_json(path);
    if (!json.contains("date") || !json["date"].is_string()) {
      ++without;
      continue;
    }
    const std::string date = json["date"].get<std::string>();
    if (first.empty() || date < first) first = date;
    last = std::max(last, date);
  }
  if (first.empty()) return "";
  return concat(first, first == last ? "" : " to " + last,
                without > 0 ? concat(" (", without, " earlier results do not say when)") : "");
}

std::int64_t seeds_in(const std::filesystem::path& folder) {
  std::int64_t seeds = 0;
  while (std::filesystem::exists(folder / "results" / seed_name(seeds + 1))) ++seeds;
  return seeds;
}

Results read_results(const std::vector<Step>& plan, const std::filesystem::path& folder) {
  Results results;
  for (const Step& step : plan) {
    const std::filesystem::path path = result_file(step, folder);
    if (!std::filesystem::exists(path)) continue;
    const Json json = read_json(path);
    Values& values = results[step.name];
    values = reading(path, [&] {
      Values found;
      for (const auto& [name, value] : json.at("values").get<Json::object_t>()) {
        found[name] = value.is_number() ? value.get<double>() : std::nan("");
      }
      return found;
    });
  }
  return results;
}

}  // namespace gsa::paper
