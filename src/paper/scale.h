// How large the models of `gsa paper` are, and how long they train and are asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace gsa::paper {

struct Phases {
  std::int64_t dense = 0, warmup = 0, sparse = 0;

  std::int64_t steps() const { return dense + warmup + sparse; }
};

struct Scale {
  std::string name;
  bool tells = true;                    // whether models learn enough for their differences to mean anything
  std::vector<std::string> model = {};  // of every system: "preset=small", "layers=6"
  std::int64_t vocabulary = 0;          // of the tokenizer that is trained; 0: bytes
  std::int64_t length = 0;              // of a row
  std::int64_t batch_tokens = 0, batch_rows = 0;
  // Every system learns base_steps densely. Then half of them get an indexer (warm-up and sparse steps) while the
  // others go on as they are for as many steps: the same data and tokens for all.
  std::int64_t base_steps = 0, warmup = 0, sparse = 0;
  double rate = 0, adapt_rate = 0;  // learning rates
  double kl_share = 0;
  // Of each sparse run at each of stability_rates; dense ones have as many steps of the language model. More than 128
  // sparse ones: the guard that counts spikes watches a phase from there on (train/guard.h).
  Phases stability = {};
  std::vector<double> stability_rates = {};
  std::int64_t stability_tokens = 0;  // of a step: fewer than batch_tokens are noisier, and cost less
  std::int64_t save_every = 0;
  // Of the datasets. As many to train on as a system sees in all, so that what is made by rule does not repeat itself.
  std::int64_t train_tokens = 0, validation_tokens = 0;
  std::vector<std::int64_t> ruler_lengths = {};  // ascending; those beyond `length` by YaRN
  std::vector<std::string> ruler_tasks = {};
  std::string essays = "";  // under data/, that needles are hidden in; empty: text made by rule
  std::int64_t ruler_samples = 0;
  std::vector<std::int64_t> speed_lengths = {};
  std::int64_t speed_tokens = 0;      // that are generated behind the prompt
  std::vector<std::int64_t> ks = {};  // k_base of the ablation, k() among them
  std::int64_t jobs = 1;              // measurements that run side by side on a GPU

  std::int64_t steps() const { return base_steps + warmup + sparse; }  // of a system
  // A fixed budget's k; k_base of gsa's inverse one, which in docs/recipe.md came to about the
  // same mean k.
  std::int64_t fixed_k() const { return length / 8; }
  std::int64_t k() const { return fixed_k() * 3 / 4; }
};

const std::vector<std::string>& scale_names();
Scale scale_by_name(const std::string& name);  // throws gsa::Error with a suggestion

// Everything that results depend on: a folder remembers it.
OrderedJson to_json(const Scale& scale);

}  // namespace gsa::paper
