#include "paper/run.h"

#include "core/file.h"

namespace gsa::paper {
namespace {

constexpr const char* kMark = "paper.json";
constexpr std::int64_t kMaxMark = 1 << 20;

bool is_done(const Step& step, const std::filesystem::path& folder) {
  return std::filesystem::exists(result_file(step, folder));
}

const Step& step_named(const std::vector<Step>& plan, const std::string& name) {
  for (const Step& step : plan) {
    if (step.name == name) return step;
  }
  bad_argument("paper", "plan", concat("a step '", name, "'"), "none");
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
    options.begin(need);
    if (!options.perform(need)) return false;
  }
  return true;
}

RunReport stopped(RunReport report) {
  report.ended = Ended::stopped;
  return report;
}

// The first key whose values differ.
std::string difference(const Json& a, const Json& b) {
  for (const auto& [key, value] : a.items()) {
    if (!b.contains(key) || b[key] != value) return key;
  }
  return "more keys";
}

}  // namespace

bool has_output(const Step& step, const std::filesystem::path& folder) {
  if (step.kind == Kind::data) return std::filesystem::exists(folder / "data" / "train" / "dataset.json");
  return step.kind != Kind::training || std::filesystem::exists(folder / step.output / "latest");
}

RunReport run_plan(const std::vector<Step>& plan, const std::filesystem::path& folder,
                   const RunOptions& options) {
  RunReport report;
  for (const Step& step : plan) {
    if (is_done(step, folder)) {
      ++report.before;
      continue;
    }
    if (!provide_needs(step, plan, folder, options)) return stopped(report);
    options.begin(step);
    if (!options.perform(step)) return stopped(report);
    write_result(step, options.values(step, folder), folder);
    ++report.now;
    options.end(step);
  }
  return report;
}

void claim_folder(const std::filesystem::path& folder, const Scale& scale, const OrderedJson& data) {
  namespace fs = std::filesystem;
  const OrderedJson ours{{"made_by", "gsa paper"}, {"scale", to_json(scale)}, {"data", data}};
  const fs::path mark = folder / kMark;
  if (fs::exists(mark)) {
    const Json theirs = parse_json(read_file(mark, kMaxMark), mark.string());
    const Json wanted = Json::parse(ours.dump());
    if (theirs == wanted) return;
    std::string what = "other options";
    for (const char* part : {"scale", "data"}) {
      if (theirs.contains(part) && theirs[part] != wanted[part]) {
        const std::string key = difference(wanted[part], theirs[part]);
        what = concat(part, " with another ", key);
        if (theirs[part].contains(key) && wanted[part].contains(key)) {
          what += concat(": ", shown(theirs[part][key]), ", not ", shown(wanted[part][key]));
        }
        break;
      }
    }
    bad_file(folder.string(), "a folder of the same scale and data (--output names another)", what);
  }
  if (fs::exists(folder)) {
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

}  // namespace gsa::paper
