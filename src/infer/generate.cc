#include "infer/generate.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "gsa/error.h"
#include "infer/core/text_stream.h"
#include "infer/share_rows.h"

namespace gsa::infer {
namespace {

constexpr char kGenerateOp[] = "generate";

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(Steady::now() - start_).count(); }

 private:
  using Steady = std::chrono::steady_clock;
  Steady::time_point start_ = Steady::now();
};

// One text that is being written.
struct Live {
  GeneratedText* result;
  Sequence* sequence;
  Sampler sampler;
  TextStream stream;
};

class Generation {
 public:
  Generation(Engine& engine, const data::Tokenizer& tokenizer, const GenerateOptions& options,
             const GenerateEvents& events)
      : engine_(engine), tokenizer_(tokenizer), options_(options), events_(events) {
    ends_ = engine.config().eos_ids;
    ends_.push_back(tokenizer.eos());
  }

  GenerateResult run(std::span<const Prompt> prompts) {
    check(prompts);
    reserve(prompts);
    result_.texts.resize(prompts.size() * static_cast<std::size_t>(options_.samples));
    const PrefillResult prefilled = prefill(prompts);
    start(prompts);
    if (!prefilled.complete) {
      finish_all(Ending::cancelled);
    } else if (options_.max_tokens == 0) {
      finish_all(Ending::length);
    } else {
      const Clock clock;
      // The samples of a prompt all begin with its logits.
      take(prefilled.logits.repeat_interleave(options_.samples, 0));
      decode();
      result_.times.decode_seconds = clock.seconds();
    }
    return std::move(result_);
  }

 private:
  void check(std::span<const Prompt> prompts) const {
    options_.sampling.validate();
    TextStream(tokenizer_, options_.stops);  // checks them
    if (options_.max_tokens < 0) {
      bad_argument(kGenerateOp, "max_tokens", "0 or a number of tokens", concat(options_.max_tokens));
    }
    if (options_.samples < 1) bad_argument(kGenerateOp, "samples", "1 or more", concat(options_.samples));
    if (tokenizer_.vocab_size() > engine_.config().vocab_size) {
      bad_argument(kGenerateOp, "tokenizer",
                   concat("at most the ", engine_.config().vocab_size, " tokens of the model"),
                   concat(tokenizer_.vocab_size(), ": it belongs to another model"));
    }
    for (const Prompt& prompt : prompts) {
      if (prompt.sequence == nullptr) bad_argument(kGenerateOp, "prompts", "a sequence for each", "none");
      if (prompt.tokens.empty())
        bad_argument(kGenerateOp, "prompts", "at least one token in each", "an empty one");
    }
  }

  // Several samples of a prompt take pages of their own only behind its end, and one copy of the page where
  // it ends. They do not exist yet: their pages are taken for the prompt and given back, which leaves the
  // memory with the cache.
  void reserve(std::span<const Prompt> prompts) {
    if (options_.samples == 1) {
      engine_.reserve(prompts, options_.max_tokens);
      return;
    }
    engine_.reserve(prompts, options_.samples * (options_.max_tokens + engine_.options().page_size));
    for (const Prompt& prompt : prompts) prompt.sequence->truncate(prompt.sequence->length());
  }

  PrefillResult prefill(std::span<const Prompt> prompts) {
    const Clock clock;
    PrefillResult prefilled =
        engine_.prefill(prompts, {.progress = [&](std::int64_t done, std::int64_t total) {
                          result_.times.prefill_tokens = done;
                          if (events_.prefill) events_.prefill(done, total);
                          return done == total || !cancelled();
                        }});
    // To the CPU: waits for a GPU, so that the time is the work's.
    if (prefilled.complete) prefilled.logits = prefilled.logits.to(at::kCPU);
    result_.times.prefill_seconds = clock.seconds();
    return prefilled;
  }

  void start(std::span<const Prompt> prompts) {
    for (std::size_t i = 0; i < result_.texts.size(); ++i) {
      GeneratedText& text = result_.texts[i];
      text.prompt = i / static_cast<std::size_t>(options_.samples);
      text.sample = static_cast<std::int64_t>(i) % options_.samples;
      Sequence* sequence = prompts[text.prompt].sequence;
      if (text.sample > 0) sequence = &forks_.emplace_back(sequence->fork());
      const std::vector<std::int64_t>& known = sequence->tokens();
      SamplingOptions sampling = options_.sampling;
      sampling.stream += static_cast<std::uint64_t>(text.sample);
      live_.push_back({&text, sequence, Sampler(sampling, tokenizer_.vocab_size()),
                       TextStream(tokenizer_, options_.stops, is_empty_text(tokenizer_, known))});
      if (sampling.repetition_penalty == 1) continue;
      live_.back().sampler.remember(std::vector<std::int32_t>(known.begin(), known.end()));
    }
  }

  bool cancelled() const { return events_.cancelled && events_.cancelled(); }

  void show(Live& live, const std::string& more) {
    if (more.empty()) return;
    live.result->text += more;
    if (events_.text) events_.text(*live.result, more);
  }

  void finish(Live& live, Ending ending) {
    live.result->ending = ending;
    show(live, live.stream.finish());
    if (live.stream.stopped()) {  // which may show in the last character only
      live.result->ending = Ending::stop;
      live.result->stop = live.stream.stop();
    }
    if (events_.finished) events_.finished(*live.result);
  }

  void finish_all(Ending ending) {
    for (Live& live : live_) finish(live, ending);
    live_.clear();
  }

  // Draws a token for each text from its row and drops the texts that end with it.
  void take(const at::Tensor& logits) {
    const at::Tensor rows = logits.to(at::kCPU, at::kFloat).contiguous();
    const auto width = static_cast<std::size_t>(rows.size(1));
    std::vector<SampledToken> drawn(live_.size());
    share_rows(rows.size(0), rows.size(1), [&](std::int64_t i) {
      const auto own = static_cast<std::size_t>(i);
      drawn[own] = live_[own].sampler.sample({rows.const_data_ptr<float>() + own * width, width});
    });
    std::vector<Live> going_on;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      Live& live = live_[i];
      const SampledToken& token = drawn[i];
      if (!options_.ignore_eos && std::find(ends_.begin(), ends_.end(), token.id) != ends_.end()) {
        finish(live, Ending::eos);
        continue;
      }
      live.result->tokens.push_back(token);
      show(live, live.stream.push(token.id));
      if (live.stream.stopped()) {
        finish(live, Ending::stop);
      } else if (static_cast<std::int64_t>(live.result->tokens.size()) == options_.max_tokens) {
        finish(live, Ending::length);
      } else {
        going_on.push_back(std::move(live));
      }
    }
    live_ = std::move(going_on);
  }

  void decode() {
    std::vector<Step> steps;
    while (!live_.empty()) {
      if (cancelled()) {
        finish_all(Ending::cancelled);
        return;
      }
      steps.clear();
      for (const Live& live : live_) steps.push_back({live.sequence, live.result->tokens.back().id});
      take(engine_.decode(steps));
      result_.times.decode_tokens += static_cast<std::int64_t>(steps.size());
    }
  }

  Engine& engine_;
  const data::Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  const GenerateEvents& events_;
  std::vector<std::int64_t> ends_;
  GenerateResult result_;
  std::deque<Sequence> forks_;
  std::vector<Live> live_;
};

}  // namespace

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::eos:
      return "eos";
    case Ending::stop:
      return "stop";
    case Ending::length:
      return "length";
    case Ending::cancelled:
      return "cancelled";
  }
  bad_argument(kGenerateOp, "ending", "one of four", concat(static_cast<int>(ending)));
}

std::vector<std::int64_t> first_tokens(const data::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::int32_t> ids = data::prompt_ids(tokenizer, text);
  return {ids.begin(), ids.end()};
}

GenerateResult generate(Engine& engine, const data::Tokenizer& tokenizer, std::span<const Prompt> prompts,
                        const GenerateOptions& options, const GenerateEvents& events) {
  return Generation(engine, tokenizer, options, events).run(prompts);
}

}  // namespace gsa::infer
