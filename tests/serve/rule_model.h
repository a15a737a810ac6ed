// A model made by rule, for tests of the server: no tensors, any speed. The token after a prefix is a function of the
// prefix alone, so that whatever the scheduler does, a text can be told beforehand.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gsa/error.h"
#include "serve/core/model.h"

namespace gsa::serve {

struct RuleOptions {
  std::int64_t vocab_size = 258;  // of data::byte_tokenizer(); 257 ends a text
  std::int64_t max_positions = 4096;
  std::int64_t page_size = 8;
  std::int64_t capacity = 1024;  // pages
  std::int64_t max_chunk = 64;
  std::int64_t max_batch = 64;
  std::int64_t dense_below = 0;
  std::int64_t end_after = 1 << 30;  // a sequence of so many tokens is followed by the end mark
  // Time that a pass takes, each of its prompt tokens, and each of these for every 1,000 tokens before it.
  std::chrono::microseconds a_step{0}, a_token{0}, a_context{0};
};

class RuleModel : public Model {
 public:
  explicit RuleModel(const RuleOptions& options = {})
      : options_(options), pool_(std::make_shared<infer::PagePool>(options.page_size)) {
    pool_->grow(options.capacity);
    facts_ = {.vocab_size = options.vocab_size,
              .max_positions = options.max_positions,
              .page_size = options.page_size,
              .capacity = options.capacity,
              .max_chunk = options.max_chunk,
              .max_batch = options.max_batch,
              .layers = 2,
              .bytes_per_page = 100,
              .ends = {options.vocab_size - 1}};
  }

  const ModelFacts& facts() const override { return facts_; }
  Sequence start() override { return Sequence(pool_); }
  std::int64_t free_pages() const override { return pool_->available(); }
  bool sparse_at(std::int64_t length) const override { return length >= options_.dense_below; }

  // Which token follows: a printable byte, or the end mark.
  std::int64_t next(const std::vector<std::int64_t>& tokens) const {
    if (static_cast<std::int64_t>(tokens.size()) >= options_.end_after) return options_.vocab_size - 1;
    std::uint64_t hash = 1469598103934665603U;
    for (const std::int64_t token : tokens)
      hash = (hash ^ static_cast<std::uint64_t>(token)) * 1099511628211U;
    return 'a' + static_cast<std::int64_t>((hash >> 33) % 26);
  }

  std::span<const float> prefill(std::span<const Chunk> chunks) override {
    rows_.clear();
    std::int64_t tokens = 0;
    std::chrono::microseconds time = options_.a_step;
    for (const Chunk& chunk : chunks) {
      const auto count = static_cast<std::int64_t>(chunk.tokens.size());
      time += count * options_.a_token + count * chunk.sequence->length() * options_.a_context / 1000;
      tokens += static_cast<std::int64_t>(chunk.tokens.size());
      for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        append(*chunk.sequence, chunk.tokens[i]);
        if (chunk.all_rows || i + 1 == chunk.tokens.size()) add_row(chunk.sequence->tokens());
      }
    }
    prefilled += tokens;
    if (tokens > options_.max_chunk) throw Error("RuleModel: more than max_chunk tokens");
    spend(time);
    fail();
    return rows_;
  }

  std::span<const float> decode(std::span<const NextToken> steps) override {
    rows_.clear();
    if (static_cast<std::int64_t>(steps.size()) > options_.max_batch)
      throw Error("RuleModel: more than max_batch");
    for (const NextToken& step : steps) {
      append(*step.sequence, step.token);
      add_row(step.sequence->tokens());
    }
    spend(options_.a_step);
    longest_turn = std::max(longest_turn.load(), turn_.count());
    turn_ = {};
    fail();
    return rows_;
  }

  // A thread each, so that what is not meant to be shared is found (under ThreadSanitizer for certain).
  void share(std::int64_t count, const std::function<void(std::int64_t)>& work) override {
    if (count > 4) return Model::share(count, work);
    std::vector<std::jthread> threads;
    for (std::int64_t i = count; i-- > 0;) threads.emplace_back([&work, i] { work(i); });
  }

  infer::Look look(Sequence& sequence, std::int64_t token) override {
    append(sequence, token);
    spend(options_.a_step);
    infer::Look look{.position = sequence.length() - 1, .sparse = true, .layers = {}};
    look.layers.resize(2);
    for (infer::LayerLook& layer : look.layers) {
      layer = {.k_t = 1,
               .positions = {0},
               .weights = {1},
               .kept_mass = 0.5,
               .value_gate = 0.5,
               .output_gate = 0.5};
    }
    return look;
  }

  std::int64_t pages_in_use() const { return pool_->in_use(); }

  std::atomic<std::int64_t> prefilled = 0;  // tokens, in all
  std::atomic<bool> fail_next = false;      // the next pass throws
  std::atomic<bool> fail_all = false;       // every pass does,
  std::atomic<bool> lost = false;           // saying that no other will succeed
  // Microseconds that the passes from one step to the next should have taken; what the machine adds is not counted.
  std::atomic<std::chrono::microseconds::rep> longest_turn = 0;

 private:
  void spend(std::chrono::microseconds time) {
    turn_ += time;
    std::this_thread::sleep_for(time);
  }

  void fail() {
    if (lost) throw ModelLost("RuleModel: the model is lost");
    if (fail_all || fail_next.exchange(false)) throw Error("RuleModel: the pass failed");
  }

  void append(Sequence& sequence, std::int64_t token) {
    std::vector<std::int32_t>& pages = held_;
    pages = sequence.pages();
    std::vector<std::int64_t> tokens = sequence.tokens();
    tokens.push_back(token);
    const std::size_t wanted = (tokens.size() - 1) / static_cast<std::size_t>(options_.page_size) + 1;
    const bool more = pages.size() < wanted;
    if (more) {
      if (pool_->available() == 0) throw Error("RuleModel: no page is free");
      pages.push_back(pool_->take());
    }
    // Sequences grow through a full one that is cut back.
    const std::size_t length = tokens.size();
    tokens.resize(pages.size() * static_cast<std::size_t>(options_.page_size));
    Sequence grown(pool_);
    grown.adopt(pages, tokens);
    grown.truncate(static_cast<std::int64_t>(length));
    if (more) pool_->release(pages.back());
    sequence = std::move(grown);
  }

  void add_row(const std::vector<std::int64_t>& tokens) {
    const std::size_t begin = rows_.size();
    rows_.resize(begin + static_cast<std::size_t>(options_.vocab_size), 0.0F);
    rows_[begin + static_cast<std::size_t>(next(tokens))] = 12;
  }

  RuleOptions options_;
  ModelFacts facts_;
  std::shared_ptr<infer::PagePool> pool_;
  std::vector<std::int32_t> held_;
  std::vector<float> rows_;
  std::chrono::microseconds turn_{0};  // since the last step
};

}  // namespace gsa::serve
