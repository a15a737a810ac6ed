
#include "infer/generate_shared.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>

#include "gsa/error.h"
#include "kernels/decode/decode.h"
#include "nn/torch.h"

namespace gsa::infer {
namespace {

constexpr char kSharedOp[] = "generate";

using Tokens = std::vector<std::int64_t>;

std::size_t common_tokens(const Tokens& a, const Tokens& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

std::int64_t fitting_sequences(Engine& engine, std::int64_t tokens) {
  // Whole pages each, and one more for the copy of a page that two sequences part in.
  const std::int64_t page = engine.options().page_size;
  const std::int64_t one = (tokens + page - 1) / page * page;
  const std::int64_t room = engine.cache().room();
  if (room < one) return 0;
  return std::clamp<std::int64_t>(room / (one + page), 1, kMaxDecodeSequences);
}

GenerateResult generate_shared(Engine& engine, const data::Tokenizer& tokenizer,
                               std::span<const Tokens> prompts, const GenerateOptions& options,
                               const SharedEvents& events) {
  if (options.samples != 1)
    bad_argument(kSharedOp, "samples", "1 for prompts that share", concat(options.samples));
  for (const Tokens& tokens : prompts) {
    if (tokens.empty()) bad_argument(kSharedOp, "prompts", "at least one token in each", "an empty one");
  }
  // In this order every prompt stands behind the one that it has most in common with, of all before it.
  std::vector<std::size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return prompts[a] < prompts[b]; });
  // Less than a page is not worth a fork. A prompt's last token is left for generate(), which wants its logits.
  std::vector<std::size_t> shared(prompts.size(), 0);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tokens& tokens = prompts[order[i]];
    if (i > 0) {
      const Tokens& before = prompts[order[i - 1]];
      const std::size_t common =
          std::min({common_tokens(before, tokens), before.size() - 1, tokens.size() - 1});
      if (static_cast<std::int64_t>(common) >= engine.options().page_size) shared[i] = common;
    }
    total += static_cast<std::int64_t>(tokens.size() - shared[i]);
  }

  GenerateResult result;
  std::int64_t read = 0;
  const auto start = std::chrono::steady_clock::now();
  std::deque<Sequence> sequences;
  std::vector<Prompt> waiting;  // that depend on nobody who waits
  bool stopped = false;
  const auto read_waiting = [&] {
    if (waiting.empty() || stopped) return;
    std::int64_t done_here = 0;
    const PrefillResult prefilled =
        engine.prefill(waiting, {.progress = [&](std::int64_t done, std::int64_t) {
                         done_here = done;
                         if (events.progress) events.progress(read + done, total);
                         return !(events.cancelled && events.cancelled());
                       }});
    stopped = !prefilled.complete;
    read += done_here;
    waiting.clear();
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tokens& tokens = prompts[order[i]];
    if (shared[i] > 0) read_waiting();
    if (stopped) break;
    sequences.push_back(shared[i] > 0 ? sequences.back().fork(static_cast<std::int64_t>(shared[i]))
                                      : engine.start());
    const auto rest = std::span(tokens).subspan(shared[i]);
    if (rest.size() > 1) {
      waiting.push_back(
          {&sequences.back(), rest.first(rest.size() - 1), static_cast<std::int64_t>(tokens.size())});
    }
  }
  read_waiting();

  if (stopped) {
    result.texts.resize(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) result.texts[i].prompt = i;
  } else {
    std::vector<Prompt> last;
    for (std::size_t i = 0; i < order.size(); ++i) {
      last.push_back({&sequences[i], std::span(prompts[order[i]]).last(1)});
    }
    GenerateEvents inner;
    inner.prefill = [&](std::int64_t done, std::int64_t) {
      if (events.progress) events.progress(read + done, total);
    };
    inner.cancelled = events.cancelled;
    result = generate(engine, tokenizer, last, options, inner);
    std::vector<GeneratedText> texts(prompts.size());
    for (GeneratedText& text : result.texts) {
      text.prompt = order[text.prompt];
      texts[text.prompt] = std::move(text);
    }
    result.texts = std::move(texts);
  }
  result.times.prefill_tokens += read;
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  result.times.prefill_seconds = all.count() - result.times.decode_seconds;
  return result;
}

}  // namespace gsa::infer
