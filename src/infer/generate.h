// Text from prompts: prefill, then a token a step for all of them together, until each has ended.
//
//   Sequence sequence = engine.start();
//   const auto [texts, times] = generate(engine, tokenizer, {{{&sequence, tokens}}}, {.max_tokens = 100});
//
// A text depends on its own prompt, the options and the bits of its logits; who else is in the batch does not
// enter into sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "infer/core/sampling.h"
#include "infer/engine.h"
#include "nn/torch.h"

namespace gsa::infer {

enum class Ending {
  eos,        // the model ended it
  stop,       // a stop string came up
  length,     // max_tokens
  cancelled,  // by the caller
};

const char* name_of(Ending ending);  // "eos", "stop", "length", "cancelled"

struct GenerateOptions {
  SamplingOptions sampling = {};  // sample i of a prompt draws from stream + i
  std::int64_t max_tokens = 256;
  std::int64_t samples = 1;  // texts for each prompt; they share its pages
  std::vector<std::string> stops = {};
  bool ignore_eos = false;
};

struct GeneratedText {
  std::size_t prompt = 0;  // which one, and which of its samples
  std::int64_t sample = 0;
  std::vector<SampledToken> tokens;  // without the mark that ended it; the tokens of a stop string are in it
  std::string text;                  // valid UTF-8, without the stop string
  Ending ending = Ending::cancelled;
  std::string stop;  // the stop string that ended it, if one did
};

// All may be empty.
struct GenerateEvents {
  std::function<void(std::int64_t done, std::int64_t total)> prefill;            // tokens, after each pass
  std::function<void(const GeneratedText& text, const std::string& more)> text;  // more: never empty
  std::function<void(const GeneratedText& text)> finished;
  std::function<bool()> cancelled;  // asked between passes; true ends every text where it is
};

struct GenerateTimes {
  std::int64_t prefill_tokens = 0;
  double prefill_seconds = 0;
  std::int64_t decode_tokens = 0;  // of steps: the first token of a text comes out of its prefill
  double decode_seconds = 0;       // sampling included
};

struct GenerateResult {
  std::vector<GeneratedText> texts;  // by prompt, then by sample
  GenerateTimes times;
};

// data::prompt_ids(), as wide as the engine takes them.
std::vector<std::int64_t> first_tokens(const data::Tokenizer& tokenizer, std::string_view text);

// Each prompt's tokens go behind what its sequence holds. Afterwards the sequence holds the prompt and the
// tokens of its first sample, but for the last one, which no step has read. Memory for all of it is taken
// before any work, or refused with the numbers.
GenerateResult generate(Engine& engine, const data::Tokenizer& tokenizer, std::span<const Prompt> prompts,
                        const GenerateOptions& options, const GenerateEvents& events = {});

}  // namespace gsa::infer
