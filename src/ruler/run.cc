#include "ruler/run.h"

#include <algorithm>
#include <optional>

#include "core/number_text.h"
#include "gsa/error.h"
#include "ruler/metric.h"

namespace gsa::ruler {
namespace {

// How far a run is, in tokens: a sample costs about its length.
class Work {
 public:
  Work(const RunEvents& events, double total) : events_(events), total_(total) {}

  void show(const Cell& cell, std::int64_t done, std::int64_t of, double more) const {
    if (!events_.progress) return;
    events_.progress(done_ + more, total_,
                     concat(cell.task->name, " at ", grouped(cell.length), ", ", done, " of ", of));
  }
  void add(double tokens) { done_ += tokens; }
  void remove(double tokens) { total_ -= tokens; }  // that will not come

 private:
  const RunEvents& events_;
  double done_ = 0, total_;
};

bool stopped(const RunEvents& events) { return events.stopped && events.stopped(); }

std::vector<Cell> cells_of(const RunOptions& options, const Material& material) {
  std::vector<Cell> cells;
  for (const Task* task : options.tasks) {
    for (const std::int64_t length : options.lengths) {
      cells.push_back(
          {.task = task, .length = length, .samples = {}, .skipped = missing_material(*task, material)});
    }
  }
  return cells;
}

// Why a cell cannot have so many samples; empty where it can.
std::string no_samples(SampleMaker& maker, std::int64_t samples) {
  if (!maker.refusal().empty()) return maker.refusal();
  const std::int64_t available = maker.available(samples);
  return available == samples ? ""
                              : concat("has ", available, " questions that fit, for ", samples, " samples");
}

std::string no_sample(std::int64_t index) {
  return concat("sample ", index, " does not fit, however it is drawn");
}

// Of the samples that a cell still has to get.
double tokens_missing(const Cell& cell, std::int64_t samples) {
  if (!cell.skipped.empty()) return 0;
  return static_cast<double>((samples - static_cast<std::int64_t>(cell.samples.size())) * cell.length);
}

}  // namespace

RunResult run(const RunOptions& options, const Material& material, const CountTokens& count,
              const std::function<Subject()>& open, const std::filesystem::path& folder,
              const RunEvents& events) {
  RunResult result{.cells = cells_of(options, material)};
  double total = 0;
  for (Cell& cell : result.cells) {
    cell.samples = read_samples(folder, *cell.task, cell.length, options.samples);
    // What has been answered needs no data.
    if (static_cast<std::int64_t>(cell.samples.size()) == options.samples) cell.skipped.clear();
    total += tokens_missing(cell, options.samples);
  }
  Work work(events, total);
  std::optional<Subject> subject;
  const auto next_of = [](const Cell& cell) { return static_cast<std::int64_t>(cell.samples.size()); };

  for (Cell& cell : result.cells) {
    if (tokens_missing(cell, options.samples) == 0) continue;
    if (!result.complete) {  // stopped in an earlier one
      cell.skipped = concat("has ", next_of(cell), " of ", options.samples, " samples");
      continue;
    }
    SampleMaker maker(*cell.task, cell.length, options.seed, material, count);
    if (const std::string reason = no_samples(maker, options.samples); !reason.empty()) {
      work.remove(tokens_missing(cell, options.samples));
      cell.skipped = reason;
      continue;
    }
    while (next_of(cell) < options.samples) {
      if (!subject) subject = open();
      const std::int64_t first = next_of(cell);
      const std::int64_t size =
          std::min(std::max<std::int64_t>(1, subject->batch(cell.length)), options.samples - first);
      const auto tokens = static_cast<double>(size * cell.length);
      work.show(cell, first, options.samples, 0);
      std::vector<Sample> samples;
      while (static_cast<std::int64_t>(samples.size()) < size && cell.skipped.empty() && !stopped(events)) {
        const auto next = static_cast<std::int64_t>(samples.size());
        const auto some = std::min<std::int64_t>(options.parallel.workers(), size - next);
        for (std::optional<Sample>& sample : maker.make(first + next, some, options.parallel)) {
          if (!sample) {
            cell.skipped = no_sample(first + static_cast<std::int64_t>(samples.size()));
            break;
          }
          samples.push_back(std::move(*sample));
        }
      }
      if (!cell.skipped.empty()) {
        work.remove(static_cast<double>((options.samples - first) * cell.length));
        break;
      }
      std::vector<std::string> texts;
      if (!stopped(events)) {
        texts = subject->answer(*cell.task, samples, [&](double share) {
          work.show(cell, first, options.samples, share * tokens);
        });
      }
      if (texts.empty()) {
        result.complete = false;
        cell.skipped = concat("has ", first, " of ", options.samples, " samples");
        break;
      }
      if (texts.size() != samples.size()) {
        bad_argument("ruler", "answer", concat(samples.size(), " texts"), concat(texts.size()));
      }
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const double points = score(cell.task->metric, texts[i], samples[i].answers);
        cell.samples.push_back({samples[i].index, samples[i].tokens, samples[i].answers, texts[i], points});
      }
      write_samples(folder, cell);
      result.answered += size;
      work.add(tokens);
    }
    if (cell.skipped.empty() && events.finished) events.finished(cell);
  }
  return result;
}

RunResult write_all_prompts(const RunOptions& options, const Material& material, const CountTokens& count,
                            const std::filesystem::path& folder, const RunEvents& events) {
  RunResult result{.cells = cells_of(options, material)};
  double total = 0;
  const auto is_done = [&](const Cell& cell) {
    return count_prompts(folder, *cell.task, cell.length) >= options.samples;
  };
  for (const Cell& cell : result.cells) total += is_done(cell) ? 0 : tokens_missing(cell, options.samples);
  Work work(events, total);
  for (Cell& cell : result.cells) {
    if (!cell.skipped.empty() || is_done(cell)) continue;
    SampleMaker maker(*cell.task, cell.length, options.seed, material, count);
    cell.skipped = no_samples(maker, options.samples);
    if (!cell.skipped.empty()) {
      work.remove(static_cast<double>(options.samples * cell.length));
      continue;
    }
    const bool written = write_prompts(
        folder, *cell.task, cell.length, options.samples, [&](std::int64_t i) -> std::optional<Sample> {
          result.complete = !stopped(events);
          if (!result.complete) return std::nullopt;
          work.show(cell, i, options.samples, 0);
          std::optional<Sample> sample = maker.make(i);
          if (sample) {
            work.add(static_cast<double>(cell.length));
          } else {
            work.remove(static_cast<double>((options.samples - i) * cell.length));
            cell.skipped = no_sample(i);
          }
          return sample;
        });
    if (!result.complete) break;
    if (written) result.answered += options.samples;
  }
  return result;
}

}  // namespace gsa::ruler
