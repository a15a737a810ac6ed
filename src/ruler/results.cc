#include "ruler/results.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "core/file.h"
#include "gsa/error.h"
#include "ruler/metric.h"

namespace gsa::ruler {
namespace {

constexpr std::int64_t kMaxResultBytes = std::int64_t{1} << 36;
constexpr const char* kRunFile = "run.json";

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) bad_file(folder.string(), "a folder that can be made", error.message());
}

// Calls take(line) for every line of a file of JSON objects.
template <typename Take>
void read_lines(const std::filesystem::path& file, Take&& take) {
  const std::string content = read_file(file, kMaxResultBytes);
  std::int64_t number = 1;
  for (std::string_view rest = content; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string name = concat(file.string(), ":", number);
    if (end > 0) {
      const Json line = parse_json(rest.substr(0, end), name);
      try {
        take(line);
      } catch (const Json::exception& error) {
        bad_file(name, "a line as gsa ruler writes it", error.what());
      }
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::filesystem::path file_of(const std::filesystem::path& folder, const char* kind,
                              const std::string& cell) {
  return folder / kind / (cell + ".jsonl");
}

// The cell that a file is of; none where its name is not one of ours.
std::optional<Cell> cell_of(const std::filesystem::path& file) {
  const std::string name = file.stem().string();
  const std::size_t dash = name.rfind('-');
  if (file.extension() != ".jsonl" || dash == std::string::npos) return std::nullopt;
  for (const Task& task : all_tasks()) {
    if (name.substr(0, dash) != task.name) continue;
    Cell cell{.task = &task, .length = 0, .samples = {}, .skipped = ""};
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + dash + 1, end, cell.length);
    if (error == std::errc{} && rest == end && name == name_of(task, cell.length)) return cell;
  }
  return std::nullopt;
}

void sort_cells(std::vector<Cell>& cells) {
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
    return a.task != b.task ? a.task < b.task : a.length < b.length;
  });
}

}  // namespace

double Cell::score() const {
  if (!skipped.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> scores;
  for (const Answered& sample : samples) scores.push_back(sample.score);
  return percentage(scores);
}

std::int64_t Cell::empty() const {
  return std::count_if(samples.begin(), samples.end(),
                       [](const Answered& sample) { return cleaned(sample.prediction).empty(); });
}

std::string name_of(const Task& task, std::int64_t length) { return concat(task.name, "-", length); }

void write_text(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::vector<Answered> read_samples(const std::filesystem::path& folder, const Task& task, std::int64_t length,
                                   std::int64_t count) {
  std::vector<Answered> samples;
  const std::filesystem::path file = file_of(folder, "samples", name_of(task, length));
  if (!std::filesystem::exists(file)) return samples;
  read_lines(file, [&](const Json& line) {
    Answered sample{.index = line.at("index"),
                    .tokens = line.at("tokens"),
                    .answers = line.at("answers"),
                    .prediction = line.at("prediction")};
    const auto next = static_cast<std::int64_t>(samples.size());
    if (next == count) return;
    if (sample.index != next) bad_file(file.string(), concat("sample ", next), concat(sample.index));
    sample.score = score(task.metric, sample.prediction, sample.answers);
    samples.push_back(std::move(sample));
  });
  return samples;
}

void write_samples(const std::filesystem::path& folder, const Cell& cell) {
  make_folder(folder / "samples");
  std::string text;
  for (const Answered& sample : cell.samples) {
    text += OrderedJson{{"index", sample.index},
                        {"tokens", sample.tokens},
                        {"answers", sample.answers},
                        {"prediction", sample.prediction},
                        {"score", sample.score}}
                .dump() +
            "\n";
  }
  write_text(file_of(folder, "samples", name_of(*cell.task, cell.length)), text);
}

void add_answered(std::vector<Cell>& cells, const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder / "samples")) return;
  std::set<std::string> known;
  for (const Cell& cell : cells) known.insert(name_of(*cell.task, cell.length));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "samples")) {
    std::optional<Cell> cell = cell_of(entry.path());
    if (!cell || known.contains(name_of(*cell->task, cell->length))) continue;
    cell->samples = read_samples(folder, *cell->task, cell->length, std::numeric_limits<std::int64_t>::max());
    if (!cell->samples.empty()) cells.push_back(std::move(*cell));
  }
  sort_cells(cells);
}

std::int64_t count_prompts(const std::filesystem::path& folder, const Task& task, std::int64_t length) {
  const std::filesystem::path file = file_of(folder, "prompts", name_of(task, length));
  if (!std::filesystem::exists(file)) return 0;
  const MappedFile mapped(file);
  return std::count(mapped.bytes().begin(), mapped.bytes().end(), std::byte{'\n'});
}

bool write_prompts(const std::filesystem::path& folder, const Task& task, std::int64_t length,
                   std::int64_t count, const std::function<std::optional<Sample>(std::int64_t index)>& make) {
  make_folder(folder / "prompts");
  AtomicFile file(file_of(folder, "prompts", name_of(task, length)));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::optional<Sample> sample = make(i);
    if (!sample) return false;
    file.write(OrderedJson{{"index", sample->index},
                           {"tokens", sample->tokens},
                           {"max_new_tokens", task.new_tokens},
                           {"answers", sample->answers},
                           {"prompt", sample->prompt}}
                   .dump() +
               "\n");
  }
  file.commit();
  return true;
}

std::vector<Cell> score_predictions(const std::filesystem::path& folder) {
  std::vector<Cell> cells;
  if (!std::filesystem::is_directory(folder / "prompts")) {
    bad_file(folder.string(), "a folder that gsa ruler --write has filled", "one without prompts/");
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "prompts")) {
    std::optional<Cell> named = cell_of(entry.path());
    if (!named) continue;
    Cell& cell = *named;
    std::map<std::int64_t, std::string> predictions;
    if (const auto file = file_of(folder, "predictions", name_of(*cell.task, cell.length));
        std::filesystem::exists(file)) {
      read_lines(file, [&](const Json& line) { predictions[line.at("index")] = line.at("prediction"); });
    }
    std::int64_t asked = 0;
    read_lines(entry.path(), [&](const Json& line) {
      ++asked;
      const auto found = predictions.find(line.at("index"));
      if (found == predictions.end()) return;
      Answered sample{.index = line.at("index"),
                      .tokens = line.at("tokens"),
                      .answers = line.at("answers"),
                      .prediction = found->second};
      sample.score = score(cell.task->metric, sample.prediction, sample.answers);
      cell.samples.push_back(std::move(sample));
    });
    if (static_cast<std::int64_t>(cell.samples.size()) < asked) {
      cell.skipped = concat("has ", cell.samples.size(), " of ", asked, " predictions");
    }
    cells.push_back(std::move(cell));
  }
  // A task without prompts is named as well, at every length that others have.
  std::map<std::int64_t, std::set<const Task*>> found;
  for (const Cell& cell : cells) found[cell.length].insert(cell.task);
  for (const auto& [length, tasks] : found) {
    for (const Task& task : all_tasks()) {
      if (tasks.contains(&task)) continue;
      cells.push_back({.task = &task, .length = length, .samples = {}, .skipped = "has no prompts"});
    }
  }
  sort_cells(cells);
  return cells;
}

OrderedJson read_run(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kRunFile;
  const std::string text = read_file(file, kMaxResultBytes);
  if (!parse_json(text, file.string()).is_object())
    bad_file(file.string(), "a JSON object", "something else");
  return OrderedJson::parse(text);
}

void check_run(const std::filesystem::path& folder, const OrderedJson& run, const char* option) {
  // A run that came to no result leaves a name and nothing that it would be the name of.
  const bool begun =
      std::filesystem::exists(folder / "samples") || std::filesystem::exists(folder / "prompts");
  OrderedJson known = OrderedJson::object();
  if (begun) {
    if (!std::filesystem::exists(folder / kRunFile)) {
      throw Error(
          concat(option, ": '", folder.string(), "' holds a run without ", kRunFile,
                 ", which says of which model, seed and data it is; give this one a folder of its own"));
    }
    known = read_run(folder);
  }
  const OrderedJson before = known;
  for (const auto& [key, value] : run.items()) {
    if (!known.contains(key)) {
      known[key] = value;
    } else if (key != "model" && known[key] != value) {
      throw Error(concat(option, ": '", folder.string(), "' holds a run with ", key, " ", known[key].dump(),
                         ", this one has ", value.dump(), "; give it a folder of its own"));
    }
  }
  if (known == before) return;
  make_folder(folder);
  write_text(folder / kRunFile, known.dump(2) + "\n");
}

}  // namespace gsa::ruler
