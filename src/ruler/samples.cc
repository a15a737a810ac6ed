#include "ruler/samples.h"

#include <algorithm>
#include <cmath>

#include "core/number_text.h"
#include "gsa/error.h"

namespace gsa::ruler {
namespace {

// Attempts to draw a sample that fits where its shortest form is about as long as the length allows.
constexpr std::uint64_t kAttempts = 16;
// Of variable tracking, its answer aside, as in the definition.
constexpr std::int64_t kMaxExampleTokens = 500;

std::uint64_t key_of(std::uint64_t seed, const Task& task, std::int64_t length) {
  const auto number = static_cast<std::uint64_t>(&task - all_tasks().data());
  return philox_bits(seed, number, static_cast<std::uint64_t>(length));
}

}  // namespace

std::string missing_material(const Task& task, const Material& material) {
  switch (task.source) {
    case Source::none:
      return "";
    case Source::essays:
      return material.essays ? "" : "needs a text to hide needles in: --essays or --haystack";
    case Source::squad:
      return material.squad ? "" : "needs SQuAD's questions: --squad";
    case Source::hotpotqa:
      return material.hotpotqa ? "" : "needs HotpotQA's questions: --hotpotqa";
  }
  bad_argument("ruler", "source", "a known one", concat(static_cast<int>(task.source)));
}

SampleMaker::SampleMaker(const Task& task, std::int64_t length, std::uint64_t seed, const Material& material,
                         CountTokens count)
    : task_(task),
      length_(length),
      random_(key_of(seed, task, length)),
      material_(material),
      count_(std::move(count)) {
  if (task.kind == Kind::variable_tracking) {
    const std::int64_t max_tokens = std::min(kMaxExampleTokens, length / 4);
    const auto tokens = [&](std::int64_t lines) {
      return count_(variable_tracking_example(lines, random_.stream(0), random_.stream(1)).text);
    };
    example_lines_ = kMinNoiseLines;
    while (example_lines_ < max_tokens && tokens(example_lines_ + 1) <= max_tokens) ++example_lines_;
  }
  // The first sample says how much haystack the others take, about.
  available(1);
  const Fit first = made(0);
  first_guess_ = first.units;
  if (!first.sample) {
    note_needed(first.needed);
    refusal_ = concat("needs at least ", grouped(needed_ + task.new_tokens), " tokens with this tokenizer");
  }
}

// number: of the sample and the attempt, or of the question.
Draft SampleMaker::draft(std::uint64_t number) const {
  const Random random = random_.stream(1 + number);
  switch (task_.kind) {
    case Kind::needles:
      return needle_draft(task_, material_.essays ? &*material_.essays : nullptr, random);
    case Kind::variable_tracking:
      return variable_tracking_draft(example_lines_, random_.stream(0), random);
    case Kind::common_words:
      return common_words_draft(length_, random);
    case Kind::frequent_words:
      return frequent_words_draft(length_, random);
    case Kind::questions:
      return question_draft(question_set(), question_set().questions[number], random);
  }
  bad_argument("ruler", "kind", "a known one", concat(static_cast<int>(task_.kind)));
}

const QuestionSet& SampleMaker::question_set() const {
  return task_.source == Source::squad ? *material_.squad : *material_.hotpotqa;
}

// Questions count that fit with no documents but their own.
std::int64_t SampleMaker::available(std::int64_t wanted) {
  if (task_.kind != Kind::questions) return wanted;
  for (;
       static_cast<std::int64_t>(questions_.size()) < wanted && looked_at_ < question_set().questions.size();
       ++looked_at_) {
    const Draft shortest = draft(looked_at_);
    const std::int64_t tokens = count_(shortest.build(shortest.min_units).text);
    if (tokens + task_.new_tokens <= length_) {
      questions_.push_back(looked_at_);
    } else {
      note_needed(tokens);
    }
  }
  return std::min(wanted, static_cast<std::int64_t>(questions_.size()));
}

void SampleMaker::note_needed(std::int64_t tokens) {
  if (tokens > 0) needed_ = needed_ == 0 ? tokens : std::min(needed_, tokens);
}

std::optional<Sample> SampleMaker::make(std::int64_t index) { return make(index, 1, serial())[0]; }

std::vector<std::optional<Sample>> SampleMaker::make(std::int64_t first, std::int64_t count,
                                                     const Parallel& parallel) {
  available(first + count);
  std::vector<std::optional<Sample>> samples(static_cast<std::size_t>(count));
  parallel.run(count,
               [&](std::int64_t i, int) { samples[static_cast<std::size_t>(i)] = made(first + i).sample; });
  return samples;
}

// Of what has been looked at: nothing here changes with it, so that threads may ask at the same time.
SampleMaker::Fit SampleMaker::made(std::int64_t index) const {
  Fit best;
  if (task_.kind == Kind::questions) {
    if (static_cast<std::size_t>(index) < questions_.size())
      best = fit(draft(questions_[static_cast<std::size_t>(index)]));
  } else {
    for (std::uint64_t attempt = 0; attempt < kAttempts && !best.sample; ++attempt) {
      const std::int64_t needed = best.needed;
      best = fit(draft(static_cast<std::uint64_t>(index) * kAttempts + attempt));
      if (needed > 0 && best.needed > 0) best.needed = std::min(needed, best.needed);
    }
  }
  if (best.sample) best.sample->index = index;
  return best;
}

// The most units that fit, or so many that less than a unit or 1/500 of the length is left. Tokens grow with the
// units almost along a line, so a few interpolations do.
SampleMaker::Fit SampleMaker::fit(const Draft& draft) const {
  const std::int64_t limit = length_ - task_.new_tokens;
  struct Point {
    std::int64_t units, tokens;
  };
  std::optional<Sample> best;
  const auto measure = [&](std::int64_t units) -> Point {
    Prompt prompt = draft.build(units);
    const std::int64_t tokens = count_(prompt.text);
    if (tokens <= limit && (!best || tokens > best->tokens)) {
      best = Sample{0, std::move(prompt.text), std::move(prompt.answers), tokens};
    }
    return {units, tokens};
  };

  Point low = measure(draft.min_units);
  if (low.tokens > limit) return {.sample = std::nullopt, .needed = low.tokens};
  Point high{limit + 1, 0};  // a unit has a token or more; tokens are known once one was too long
  Point before = low;
  std::int64_t next = first_guess_ > low.units ? first_guess_ : low.units + 32;
  for (int step = 1; high.units - low.units > 1; ++step) {
    const Point now = measure(std::clamp(next, low.units + 1, high.units - 1));
    (now.tokens <= limit ? low : high) = now;
    const double slope = std::max(1e-3, static_cast<double>(now.tokens - before.tokens) /
                                            static_cast<double>(now.units - before.units));
    const double room = std::max(slope, static_cast<double>(length_) / 500);
    const auto left = static_cast<double>(limit - best->tokens);
    if (left < room) break;
    before = now;
    if (step % 4 == 0 && high.tokens > 0) {  // where it is no line after all
      next = low.units + (high.units - low.units) / 2;
    } else {
      next = now.units + static_cast<std::int64_t>(
                             std::floor((static_cast<double>(limit - now.tokens) - room / 4) / slope));
    }
  }
  return {.sample = std::move(best), .units = low.units};
}

}  // namespace gsa::ruler
