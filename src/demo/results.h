// What the demo measured, as plain numbers: the report, the terminal and results.json are made of this alone.
// No torch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gsa::demo {

struct Curve {
  std::vector<double> step, value;
};

struct Settings {
  std::uint64_t seed = 1;
  std::int64_t threads = 0;
  std::string processor;
  std::int64_t vocabulary = 0, train_tokens = 0, validation_tokens = 0;
  std::int64_t length = 0, batch_tokens = 0;
  std::int64_t dense = 0, warmup = 0, sparse = 0;  // steps of gsa; the twin makes as many in all
  double learning_rate = 0;
  std::int64_t layers = 0, d_model = 0, heads = 0, kv_heads = 0;
  std::int64_t k_base = 0, k_min = 0, k_max = 0;
  double mean_visible = 0;  // keys that a query of a full row sees, mean

  std::int64_t steps() const { return dense + warmup + sparse; }
};

// Recall of the needles at one depth.
struct Depth {
  double depth = 0;     // 0: at the beginning of the text, 1: right before the question
  double distance = 0;  // tokens from the needle to the question, mean
  std::int64_t questions = 0;
  double recall = 0;    // share of right answers
  double selected = 0;  // share whose needle at least one layer selected; 1 where attention is dense
};

struct Sample {
  std::string prompt, text;  // text: what follows
};

struct Reply {  // to one question with a needle
  std::string said;
  double probability = 0;  // of the right answer
  bool right = false;
};

struct ModelResults {
  std::string system;
  std::string folder;  // the trained model's
  std::int64_t parameters = 0;
  double seconds = 0;  // of training
  double tokens_per_second = 0;

  Curve loss, validation;  // nats a token
  std::vector<Curve> kl;   // one a layer; empty without an indexer

  double validation_loss = 0, perplexity = 0;
  std::vector<std::vector<double>> first_token;  // [layer][head]: share of attention
  double first_token_mean = 0, even_share = 0;
  std::vector<double> value_gate, output_gate;  // one a layer; empty without gates
  std::vector<double> largest_activation;       // before the first layer, and after each

  // Of a selection; empty where attention is dense.
  std::vector<double> kept_mass, k_mean;            // one a layer
  std::vector<std::vector<std::int64_t>> k_counts;  // [layer][k]: queries that read k keys

  std::vector<Depth> recall;
  std::vector<Reply> replies;  // to Results::questions
  std::vector<Sample> samples;

  bool sparse() const { return !kept_mass.empty(); }
  double mean_k() const;     // over layers
  double mean_kept() const;  // over layers
  double mean_recall() const;
  // Over the depths from which the needle is more than `distance` tokens away; NaN where there is none.
  double recall_beyond(double distance) const;
};

struct AskedQuestion {
  std::string needle, question, answer;
  std::int64_t distance = 0;
};

struct Results {
  Settings settings;
  std::vector<AskedQuestion> questions;  // a few, to be shown
  double chance = 0;                     // recall of who guesses among the words that fit
  ModelResults standard, gsa;
  double seconds = 0;  // of everything

  // As JSON, for programs. What a model wrote may hold bytes that are no UTF-8: they become U+FFFD.
  std::string to_json() const;
};

// A curve with few points: means of neighbours.
Curve thinned(const Curve& curve, std::size_t points);

}  // namespace gsa::demo
