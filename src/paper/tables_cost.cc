// Training stability and throughput.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/number_text.h"
#include "gsa/error.h"
#include "paper/figures.h"

namespace gsa::paper {
namespace {

constexpr double kPerSteps = 1000;  // rates of spikes are of so many steps

std::string run_at(double rate, const std::string& system) { return concat(rate_name(rate), "-", system); }

// Of what: the loss, or one of the other numbers that the guard watches (train/guard.h), which are norms of gradients
// and the indexer's KL.
enum class Spiking { loss, gradient };

// Steps that had a spike, of those that were watched.
struct Spikes {
  double count = 0, steps = 0;

  Cell rate() const { return {steps > 0 ? kPerSteps * count / steps : std::nan("")}; }
};

std::optional<Spikes> spikes_at(const Figures& figures, Spiking of, double rate, const std::string& system) {
  const std::string step = concat(seed_name(1), "/", run_at(rate, system), "/train");
  const double *of_loss = figures.find(step, "loss_spikes"), *all = figures.find(step, "spikes"),
               *steps = figures.find(step, "watched");
  if (of_loss == nullptr || all == nullptr || steps == nullptr) return std::nullopt;
  return Spikes{of == Spiking::loss ? *of_loss : *all - *of_loss, *steps};
}

std::optional<Spikes> spikes_at_all(const Figures& figures, Spiking of, const std::string& system) {
  Spikes sum;
  for (const double rate : figures.scale().stability_rates) {
    const auto part = spikes_at(figures, of, rate, system);
    if (!part) return std::nullopt;
    sum.count += part->count;
    sum.steps += part->steps;
  }
  return sum;
}

// Counts of rare events are Poisson's: twice the deviation of the difference of two rates if both were the same. An
// event more for each count, or two rates would differ for sure where the one has five and the other none.
double rate_floor(const Spikes& a, const Spikes& b) {
  const double common = (a.count + b.count + 2) / (a.steps + b.steps);
  return kPerSteps * 2 * std::sqrt(common * (1 / a.steps + 1 / b.steps));
}

Claim fewer_spikes(const Figures& figures, Spiking of, const std::string& left, const std::string& right) {
  Claim claim{
      .what = concat(of == Spiking::loss ? "loss" : "gradient", " spikes in 1,000 steps at all rates"),
      .left = left,
      .right = right,
      .a = {},
      .b = {}};
  claim.unit = Unit::points;
  const auto a = spikes_at_all(figures, of, left), b = spikes_at_all(figures, of, right);
  if (a) claim.a = a->rate();
  if (b) claim.b = b->rate();
  if (a && b) claim.floor = rate_floor(*a, *b);
  return claim;
}

// Whether it is the prompt that costs a step, or what every step has to do. Of the seeds that have all four times.
std::string decode_note(const Figures& figures) {
  const auto& lengths = figures.scale().speed_lengths;
  if (lengths.size() < 2) return "";
  std::vector<Cell> times;  // standard near and far, gsa near and far
  for (const char* system : {"standard", "gsa"}) {
    for (const std::int64_t length : {lengths.front(), lengths.back()}) {
      times.push_back(figures.cell(system, concat("speed-", length), "decode"));
      for (auto& [seed, tokens_per_second] : times.back().seeds) tokens_per_second = 1000 / tokens_per_second;
    }
  }
  for (Cell& cell : times) {
    std::erase_if(cell.seeds, [&](const auto& entry) {
      return std::any_of(times.begin(), times.end(),
                         [&](const Cell& other) { return !other.seeds.contains(entry.first); });
    });
  }
  if (!times.front().run()) return "";
  const auto milliseconds = [&](std::size_t i) { return fixed(times[i].mean(), 3); };
  return concat("A token takes standard ", milliseconds(0), " ms behind ", grouped(lengths.front()),
                " tokens and ", milliseconds(1), " behind ", grouped(lengths.back()), "; gsa ",
                milliseconds(2), " and ", milliseconds(3), ".");
}

Cell loss_at(const Figures& figures, double rate, const std::string& system) {
  const std::string run = run_at(rate, system);
  const double* diverged = figures.find(concat(seed_name(1), "/", run, "/train"), "diverged");
  if (diverged != nullptr && *diverged > 0) return {std::numeric_limits<double>::infinity()};
  return figures.first_seed(run, "train", "loss");
}

}  // namespace

Table stability_table(const Figures& figures) {
  const Scale& s = figures.scale();
  Table table{
      .id = "stability",
      .title = "Training stability",
      .about = concat(
          "Short runs from scratch at multiples of the rate that the main tables have (", s.rate, "), with ",
          grouped(s.stability_tokens),
          " tokens a step, one seed: how many of 1,000 steps had a loss, or a norm of the gradient, 6 "
          "deviations above the last 128 (the first 128 of a phase are not watched), and the loss of the "
          "last tenth. Of sparse systems the norm of the indexer's gradient and its KL count among the "
          "gradient's spikes: dense ones have fewer numbers that can spike. Time: of a training step of the "
          "main tables, over standard's."),
      .columns = {},
      .paper_columns = {"Spikes / 100K steps", "Max LR", "Wall time"}};
  const std::vector<std::vector<std::string>> paper = {{"12.3", "4e-3", "1.00×"},
                                                       {"8.7", "5e-3", "0.85×"},
                                                       {"0.8", "8e-3", "1.02×"},
                                                       {"0.3", "8e-3", "0.87×"}};
  const auto& rates = s.stability_rates;
  for (const double rate : rates) table.columns.push_back({concat("loss spikes, rate ", rate, "×"), 1});
  for (const double rate : rates) table.columns.push_back({concat("gradient spikes, rate ", rate, "×"), 1});
  for (const double rate : rates) table.columns.push_back({concat("loss, rate ", rate, "×"), 3});
  table.columns.push_back({"time of a step", 2, Form::times});
  for (std::size_t i = 0; i < systems().size(); ++i) {
    const std::string& system = systems()[i];
    Row row{system, {}, paper[i]};
    for (const Spiking of : {Spiking::loss, Spiking::gradient}) {
      for (const double rate : rates) {
        const auto spikes = spikes_at(figures, of, rate, system);
        row.ours.push_back(spikes ? spikes->rate() : Cell{});
      }
    }
    for (const double rate : rates) row.ours.push_back(loss_at(figures, rate, system));
    // Tokens a second: more of them is less time.
    row.ours.push_back(ratio(figures.cell("standard", "train", "tokens_per_second"),
                             figures.cell(system, "train", "tokens_per_second")));
    table.rows.push_back(std::move(row));
  }
  const std::size_t losses_begin = 2 * rates.size(), time = losses_begin + rates.size(), highest = time - 1;
  std::vector<Claim> claims;
  for (const Spiking of : {Spiking::loss, Spiking::gradient}) {
    for (const char* gated : {"gsa", "gated-only"})
      claims.push_back(fewer_spikes(figures, of, gated, "standard"));
  }
  for (const char* gated : {"gsa", "gated-only"}) {
    claims.push_back(make_claim(table, "loss at the highest rate", gated, "standard", highest, Sense::below,
                                Unit::percent, kLossFloor));
  }
  table.verdict = figures.judged(claims);
  // The paper has it in this table; it says nothing of stability.
  table.goals.push_back({"Time of a training step",
                         figures.judged({make_claim(table, "time of a training step", "gsa", "standard", time,
                                                    Sense::below, Unit::times, kTimeFloor)})});
  eval::LineChart chart{.title = "Loss by learning rate",
                        .x = {.label = "times the rate of the main tables"},
                        .y = {.label = "nats a token"}};
  for (const Row& row : table.rows) {
    eval::Series series{.name = row.name, .points = true};
    for (std::size_t i = 0; i < rates.size(); ++i) {
      series.x.push_back(rates[i]);
      series.y.push_back(row.ours[losses_begin + i].mean());
    }
    chart.series.push_back(std::move(series));
  }
  table.charts.push_back({"stability", std::move(chart)});
  for (const double rate : rates) {
    eval::LineChart losses{.title = concat("Loss by step at ", rate, " times the rate"),
                           .x = {.label = kStepsFromScratch},
                           .y = {.label = "nats a token"}};
    for (const std::string& system : systems())
      losses.series.push_back(figures.losses(run_at(rate, system), system));
    table.charts.push_back({concat("loss-", rate_name(rate)), std::move(losses)});
  }
  return table;
}

Table throughput_table(const Figures& figures) {
  const Scale& s = figures.scale();
  Table table{
      .id = "throughput",
      .title = "Throughput by length",
      .about = concat(
          "Time to read a prompt (prefill) and to write ", s.speed_tokens,
          " tokens behind it (decode), medians of five passes after one that is not timed, and bytes of "
          "cache a token, over standard's; one sequence, the models of the main tables. Less is better. "
          "Small models spend little on attention, so that less can be saved than at the paper's "
          "size. Sparse systems keep the indexer's keys in the cache besides; the paper gives memory as a "
          "whole."),
      .columns = {},
      .paper_columns = {"Prefill 128K", "Decode 128K", "Memory 128K"}};
  const std::vector<std::vector<std::string>> paper = {{"1.00×", "1.00×", "1.00×"},
                                                       {"0.08×", "0.12×", "0.95×"},
                                                       {"1.02×", "1.01×", "1.02×"},
                                                       {"0.09×", "0.13×", "0.97×"}};
  for (const char* what : {"prefill ", "decode "}) {
    for (const std::int64_t length : s.speed_lengths)
      table.columns.push_back({what + grouped(length), 2, Form::times});
  }
  table.columns.push_back({"cache", 2, Form::times});
  const auto step = [](std::int64_t length) { return concat("speed-", length); };
  for (std::size_t i = 0; i < systems().size(); ++i) {
    const std::string& system = systems()[i];
    Row row{system, {}, paper[i]};
    for (const char* what : {"prefill", "decode"}) {
      for (const std::int64_t length : s.speed_lengths) {
        // Tokens a second: more of them is less time.
        row.ours.push_back(
            ratio(figures.cell("standard", step(length), what), figures.cell(system, step(length), what)));
      }
    }
    const std::string last = step(s.speed_lengths.back());
    row.ours.push_back(ratio(figures.cell(system, last, "cache"), figures.cell("standard", last, "cache")));
    table.rows.push_back(std::move(row));
  }
  const std::size_t count = s.speed_lengths.size();
  const std::string at = concat(" at ", grouped(s.speed_lengths.back()), " tokens");
  const auto less = [&](const std::string& what, std::size_t column, double floor) {
    return make_claim(table, what, "gsa", "standard", column, Sense::below, Unit::times, floor);
  };
  table.verdict = figures.judged({less("time of prefill" + at, count - 1, kTimeFloor),
                                  less("time of decode" + at, 2 * count - 1, kTimeFloor),
                                  less("cache a token", 2 * count, /*floor=*/0)});  // counted, not timed
  if (const std::string note = decode_note(figures); !note.empty()) table.notes.push_back(note);
  for (const char* what : {"prefill", "decode"}) {
    eval::LineChart chart{
        .title = concat(what == std::string("prefill") ? "Prefill" : "Decode", ", tokens a second"),
        .x = {.label = "tokens of the prompt", .scale = eval::Scale::logarithmic},
        .y = {.label = "tokens a second", .scale = eval::Scale::logarithmic}};
    for (const std::string& system : systems()) {
      eval::Series series{.name = system, .points = true};
      for (const std::int64_t length : s.speed_lengths) {
        series.x.push_back(static_cast<double>(length));
        series.y.push_back(figures.cell(system, step(length), what).mean());
      }
      chart.series.push_back(std::move(series));
    }
    table.charts.push_back({concat("throughput-", what), std::move(chart)});
  }
  return table;
}

}  // namespace gsa::paper
