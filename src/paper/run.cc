#include "paper/run.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/file.h"
#include "core/parallel.h"

namespace gsa::paper {
namespace {

constexpr const char* kMark = "paper.json";
constexpr std::int64_t kMaxJson = 1 << 24;

bool is_measurement(const Step& step) { return step.kind == Kind::evaluation || step.kind == Kind::ruler; }

const Step& step_named(const std::vector<Step>& plan, const std::string& name) {
  for (const Step& step : plan) {
    if (step.name == name) return step;
  }
  bad_argument("paper", "plan", concat("a step '", name, "'"), "none");
}

bool depends_on(const Step& step, const std::string& name, const std::vector<Step>& plan) {
  return std::any_of(step.needs.begin(), step.needs.end(), [&](const std::string& need) {
    return need == name || depends_on(step_named(plan, need), name, plan);
  });
}

// What others began with a model that is trained again now: `gsa ruler` refuses a folder of other weights, and a
// training would go on from the ones that are gone.
void remove_begun(const Step& model, const std::vector<Step>& plan, const std::filesystem::path& folder,
                  const RunOptions& options) {
  for (const Step& step : plan) {
    if (!depends_on(step, model.name, plan)) continue;
    if (is_done(step, folder) && options.available(step, folder)) continue;
    const std::filesystem::path output = folder / step.output;
    if (step.kind != Kind::training) {
      std::filesystem::remove_all(output);
    } else {  // beside it lie measurements, which may be whole
      std::filesystem::remove(output / "latest");
      std::filesystem::remove_all(output / "checkpoints");
    }
  }
}

// False: stopped.
bool provide_needs(const Step& step, const std::vector<Step>& plan, const std::filesystem::path& folder,
                   const RunOptions& options) {
  for (const std::string& name : step.needs) {
    const Step& need = step_named(plan, name);
    if (!is_done(need, folder)) {
      bad_argument("paper", "plan", concat("'", name, "' before '", step.name, "'"), "it behind");
    }
    if (options.available(need, folder)) continue;
    if (!provide_needs(need, plan, folder, options)) return false;
    if (need.kind == Kind::training) remove_begun(need, plan, folder, options);
    options.begin(need);
    if (!options.perform(need)) return false;
  }
  return true;
}

RunReport stopped(RunReport report) {
  report.ended = Ended::stopped;
  return report;
}

// All in which a folder's identity differs from ours: 'device "cpu", not "cuda"; scale "smoke", not "small"'. Where two
// scales or texts have the same name, what differs in them.
std::string identity_differences(const Json& theirs, const Json& ours) {
  std::vector<std::string> found;
  const auto differs = [](const Json& a, const Json& b, const std::string& key) {
    return a.contains(key) && b.contains(key) && a[key] != b[key];
  };
  const auto values = [](const Json& other, const Json& mine) {
    return concat(shown(other), ", not ", shown(mine));
  };
  for (const auto& [part, mine] : ours.items()) {
    if (!theirs.contains(part)) {
      found.push_back(concat("one without ", part));
      continue;
    }
    const Json& other = theirs[part];
    if (other == mine) continue;
    if (!mine.is_object() || !other.is_object()) {
      found.push_back(concat(part, " ", values(other, mine)));
      continue;
    }
    const std::string name = part == "scale" ? "name" : "text";
    if (differs(other, mine, name)) {
      found.push_back(concat(part, " ", values(other[name], mine[name])));
      continue;
    }
    const std::size_t before = found.size();
    for (const auto& [key, value] : mine.items()) {
      if (!other.contains(key)) found.push_back(concat(part, " without ", key));
      if (differs(other, mine, key))
        found.push_back(concat(part, " with another ", key, ": ", values(other[key], value)));
    }
    if (found.size() == before) found.push_back(concat(part, " with more keys"));
  }
  if (found.empty()) return "one with more keys";
  std::string text = found.front();
  for (std::size_t i = 1; i < found.size(); ++i) text += "; " + found[i];
  return text;
}

// Something that took work: a figure, or a model that was begun.
bool holds_work(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "runs")) return true;
  if (!std::filesystem::exists(folder / "results")) return false;
  const std::filesystem::recursive_directory_iterator all(folder / "results");
  return std::any_of(begin(all), end(all),
                     [](const auto& entry) { return entry.path().extension() == ".json"; });
}

Json read_mark(const std::filesystem::path& mark) {
  Json json = parse_json(read_file(mark, kMaxJson), mark.string());
  if (!json.is_object()) bad_file(mark.string(), "what a folder of gsa paper is of", shown(json));
  return json;
}

// The step of the newest checkpoint; -1 where there is none.
std::int64_t newest_step(const std::filesystem::path& run) {
  const std::filesystem::path manifest = run / "latest" / "manifest.json";
  if (!std::filesystem::exists(manifest)) return -1;
  const Json json = parse_json(read_file(manifest, kMaxJson), manifest.string());
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
    bad_file(manifest.string(), "the step of a checkpoint", shown(json));
  return json["step"].get<std::int64_t>();
}

std::string command_line(const std::vector<std::string>& arguments) {
  std::string line = "gsa";
  for (const std::string& argument : arguments) line += ' ' + argument;
  return line;
}

}  // namespace

bool is_done(const Step& step, const std::filesystem::path& folder) {
  return std::filesystem::exists(result_file(step, folder));
}

bool has_output(const Step& step, const std::filesystem::path& folder) {
  if (step.kind == Kind::data) {
    // An empty one is of an earlier version, which made less.
    std::error_code none;
    const auto size = std::filesystem::file_size(folder / kDataDone, none);
    return !none && size > 0;
  }
  return step.kind != Kind::training || newest_step(folder / step.output) == step.steps;
}

RunReport run_plan(const std::vector<Step>& plan, const std::filesystem::path& folder,
                   const RunOptions& options) {
  RunReport report;
  for (auto step = plan.begin(); step != plan.end();) {
    // Measurements of one model, which may run side by side, or one step.
    std::vector<const Step*> together;
    for (; step != plan.end(); ++step) {
      if (is_done(*step, folder)) {
        ++report.before;
        continue;
      }
      if (!together.empty() && !(is_measurement(*together.front()) && is_measurement(*step) &&
                                 together.front()->needs == step->needs)) {
        break;
      }
      together.push_back(&*step);
    }
    for (const Step* one : together) {
      if (!provide_needs(*one, plan, folder, options)) return stopped(report);
    }
    std::mutex mutex;
    std::atomic<bool> was_stopped = false;
    ThreadParallel(options.jobs).run(static_cast<std::int64_t>(together.size()), [&](std::int64_t i, int) {
      const Step& one = *together[static_cast<std::size_t>(i)];
      if (was_stopped) return;
      {
        const std::lock_guard lock(mutex);
        options.begin(one);
      }
      if (!options.perform(one)) {
        was_stopped = true;
        return;
      }
      const std::lock_guard lock(mutex);
      write_result(one, options.values(one, folder), folder);
      ++report.now;
      options.end(one);
    });
    if (was_stopped) return stopped(report);
  }
  return report;
}

void check_results(const std::vector<Step>& plan, const std::filesystem::path& folder) {
  for (const Step& step : plan) {
    if (!is_done(step, folder)) continue;
    const std::filesystem::path file = result_file(step, folder);
    const Json json = parse_json(read_file(file, kMaxJson), file.string());
    std::vector<std::string> theirs;
    try {
      theirs = json.at("arguments").get<std::vector<std::string>>();
    } catch (const Json::exception& error) {
      bad_file(file.string(), "the arguments of a step's command", error.what());
    }
    if (theirs == step.arguments) continue;
    const auto [ours, other] =
        std::mismatch(step.arguments.begin(), step.arguments.end(), theirs.begin(), theirs.end());
    const auto named = [](auto place, auto end) { return place == end ? "nothing" : "'" + *place + "'"; };
    bad_file(file.string(), concat("figures of this step's command (", command_line(step.arguments), ")"),
             concat("those of another, with ", named(other, theirs.end()), " instead of ",
                    named(ours, step.arguments.end()),
                    ": of another version of gsa paper. --output names another folder; without the file the "
                    "step is done again"));
  }
}

void claim_folder(const std::filesystem::path& folder, const Identity& identity) {
  namespace fs = std::filesystem;
  const OrderedJson ours{{"made_by", "gsa paper"},
                         {"scale", to_json(identity.scale)},
                         {"data", identity.data},
                         {"device", identity.device}};
  const fs::path mark = folder / kMark;
  if (fs::exists(mark)) {
    const Json theirs = read_mark(mark);
    const Json wanted = Json::parse(ours.dump());
    if (theirs == wanted) return;
    if (holds_work(folder) || theirs.value("made_by", Json()) != wanted["made_by"]) {
      bad_file(folder.string(), "a folder of the same scale, data and device (--output names another)",
               identity_differences(theirs, wanted));
    }
    // A run that failed or was stopped before it came to anything; its rows may be half there.
    fs::remove_all(folder / "data");
  } else if (fs::exists(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with(".")) continue;  // a lock
      bad_file(folder.string(), "an empty folder, or one of gsa paper (--output names another)",
               concat(entry.path().filename().string(), " in it"));
    }
  }
  AtomicFile file(mark);
  file.write(ours.dump(1) + "\n");
  file.commit();
}

std::string device_of_folder(const std::filesystem::path& folder) {
  const std::filesystem::path mark = folder / kMark;
  if (!std::filesystem::exists(mark)) return "";
  const Json device = read_mark(mark).value("device", Json());
  return device.is_string() ? device.get<std::string>() : "";
}

}  // namespace gsa::paper
