
#include "cli/generate_output.h"

#include <cmath>
#include <iostream>

#include "cli/progress.h"
#include "cli/text.h"
#include "core/json.h"
#include "core/median.h"
#include "core/memory.h"
#include "gsa/error.h"
#include "nn/torch.h"

namespace gsa::cli {
namespace {

// A token's bytes need not be whole characters: JSON gets U+FFFD for those.
std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

std::string speed(std::int64_t tokens, double seconds) {
  if (tokens == 0) return "none";
  const double each = rate(tokens, seconds);
  return concat(grouped(tokens), tokens == 1 ? " token" : " tokens", " in ",
                seconds < 60 ? three_digits(seconds) + " s" : duration(seconds), ", ",
                each < 1000 ? three_digits(each) : grouped(std::llround(each)), " tokens/s");
}

}  // namespace

TextOutput::TextOutput(std::vector<std::string> titles, std::vector<std::string> openings)
    : titles_(std::move(titles)), openings_(std::move(openings)) {
  waiting_.resize(titles_.size());
  done_.resize(titles_.size());
}

void TextOutput::write(const std::string& text) {
  if (text.empty()) return;
  std::cout << text << std::flush;
  in_line_ = text.back() != '\n';
}

void TextOutput::close() {
  if (in_line_) write("\n");
}

void TextOutput::begin() {
  begun_ = true;
  if (titles_.size() > 1) write(concat(turn_ == 0 ? "" : "\n", symbol("── ", "-- "), titles_[turn_], "\n"));
  write(openings_[turn_]);
}

void TextOutput::text(std::size_t index, const std::string& more) {
  if (index != turn_) {
    waiting_[index] += more;
    return;
  }
  if (!begun_) begin();
  write(more);
}

void TextOutput::finished(std::size_t index) {
  done_[index] = true;
  while (turn_ < done_.size() && done_[turn_]) {
    if (!begun_) begin();
    close();
    ++turn_;
    begun_ = false;
    if (turn_ == done_.size()) break;
    begin();
    write(waiting_[turn_]);
  }
}

std::string json_line(const infer::GeneratedText& text, std::int64_t prompt_tokens,
                      const data::Tokenizer& tokenizer) {
  OrderedJson line{{"prompt", text.prompt}, {"sample", text.sample}, {"text", text.text}};
  line["ending"] = infer::name_of(text.ending);
  if (text.ending == infer::Ending::stop) line["stop"] = text.stop;
  line["prompt_tokens"] = prompt_tokens;
  OrderedJson ids = OrderedJson::array(), logprobs = OrderedJson::array();
  for (const infer::SampledToken& token : text.tokens) {
    ids.push_back(token.id);
    if (!token.logprob) continue;
    OrderedJson top = OrderedJson::array();
    for (const auto& [id, logprob] : token.top) {
      const bool known =
          id < tokenizer.vocab_size();  // a model's vocabulary may be larger than its tokenizer's
      top.push_back({{"id", id}, {"text", known ? tokenizer.bytes_of(id) : ""}, {"logprob", logprob}});
    }
    logprobs.push_back({{"id", token.id},
                        {"text", tokenizer.bytes_of(token.id)},
                        {"logprob", *token.logprob},
                        {"top", top}});
  }
  line["tokens"] = ids;
  if (!logprobs.empty()) line["logprobs"] = logprobs;
  return dumped(line);
}

infer::GenerateTimes median_of(const std::vector<infer::GenerateTimes>& passes) {
  std::vector<double> prefill, decode;
  for (const infer::GenerateTimes& pass : passes) {
    prefill.push_back(pass.prefill_seconds);
    decode.push_back(pass.decode_seconds);
  }
  infer::GenerateTimes result = passes.front();
  result.prefill_seconds = median(std::move(prefill));
  result.decode_seconds = median(std::move(decode));
  return result;
}

std::string describe(const GenerateCosts& costs) {
  const auto& [times, cache, keys, weights, passes] = costs;
  std::string text =
      concat("prefill   ", speed(times.prefill_tokens, times.prefill_seconds), "\n", "decode    ",
             speed(times.decode_tokens, times.decode_seconds), "\n", "cache     ", grouped(cache.tokens),
             " tokens in ", format_bytes(cache.bytes), ", ", grouped(cache.bytes_per_token),
             " bytes a token; room for ", grouped(cache.budget / cache.bytes_per_token), " in ",
             format_bytes(cache.budget), "\n", "weights   ", format_bytes(weights), "\n");
  if (keys > 0) text += concat("k_t       ", three_digits(keys), " keys a query read, mean\n");
  if (!passes.empty()) {
    text += concat("measured  ", passes.size(),
                   passes.size() == 1 ? " pass" : " passes, of which times are medians",
                   ", after one that was not timed\n");
  }
  return text;
}

std::string json_line(const GenerateCosts& costs) {
  const auto& [times, cache, keys, weights, passes] = costs;
  OrderedJson stats{{"prefill_tokens", times.prefill_tokens},
                    {"prefill_seconds", times.prefill_seconds},
                    {"prefill_tokens_per_second", rate(times.prefill_tokens, times.prefill_seconds)},
                    {"decode_tokens", times.decode_tokens},
                    {"decode_seconds", times.decode_seconds},
                    {"decode_tokens_per_second", rate(times.decode_tokens, times.decode_seconds)},
                    {"keys_per_query", keys},
                    {"cache_tokens", cache.tokens},
                    {"cache_bytes", cache.bytes},
                    {"cache_bytes_per_token", cache.bytes_per_token},
                    {"cache_budget_bytes", cache.budget},
                    {"weight_bytes", weights}};
  for (const infer::GenerateTimes& pass : passes) {
    stats["passes"].push_back(
        {{"prefill_seconds", pass.prefill_seconds}, {"decode_seconds", pass.decode_seconds}});
  }
  return dumped({{"stats", std::move(stats)}});
}

}  // namespace gsa::cli
