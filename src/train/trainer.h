// The training loop: phases dense -> warm-up -> sparse over one model, one optimiser, one schedule and one
// stream of data; guards before every optimiser step; checkpoints from which it goes on bit for bit.
//
// What learns from what:
//   dense    base and gates from the language model's loss; the indexer is frozen
//   warmup   the indexer alone, from its KL over all visible keys; the language model's loss is not computed
//   sparse   base and gates from the language model's loss, the indexer from its KL over all visible keys, or
//            over what it selected
//
// A KL over all keys is taken of a sample of the queries, drawn from (seed, step, micro-batch, layer): a run
// that is resumed draws the same.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/packer.h"
#include "data/tokenizer.h"
#include "nn/model.h"
#include "nn/torch.h"
#include "train/adamw.h"
#include "train/batch.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/guard.h"
#include "train/schedule.h"

namespace gsa::train {

struct LayerStats {
  double k_mean = 0, kept_mass = 1;
  std::optional<double> value_gate_mean, output_gate_mean;
};

struct StepReport {
  std::int64_t step = 0;  // counted from 1
  nn::Phase phase = nn::Phase::dense;
  std::optional<double> loss;           // nats a token; none in warm-up
  std::vector<double> kl;               // one an indexer; empty in the dense phase
  std::vector<std::int64_t> kl_layers;  // whose indexers these are
  std::vector<double> kept;        // kept mass, one a layer, from the KL's sample; empty where it has none
  std::vector<LayerStats> layers;  // on steps that are logged
  double model_norm = 0, indexer_norm = 0;
  double lr = 0;
  std::string spike;          // empty: none; else which number, and the bar it passed
  bool skipped = false;       // a spike, left out
  std::int64_t spikes = 0;    // of the run so far
  std::int64_t tokens = 0;    // of this step
  double epoch = 0;           // of the data, with its fraction in documents
  double floating_point = 0;  // operations of this step (model/cost.h), nothing counted twice
  double seconds = 0;
  bool logged = false;
};

// What the loop tells while it runs.
struct TrainEvents {
  std::function<void(const StepReport&)> step = [](const StepReport&) {};
  std::function<void(std::int64_t step, double loss)> validation = [](std::int64_t, double) {};
  std::function<void(std::int64_t step, const std::string& text)> sample = [](std::int64_t,
                                                                              const std::string&) {};
  std::function<void(std::int64_t step, const std::filesystem::path&)> saved =
      [](std::int64_t, const std::filesystem::path&) {};
  // Something done before this step that the options only imply.
  std::function<void(std::int64_t step, const std::string& text)> note = [](std::int64_t,
                                                                            const std::string&) {};
};

// NaN or infinity; names the step and the culprit. The optimiser has not seen that step.
class NotFinite : public Error {
 public:
  using Error::Error;
};

class Trainer {
 public:
  // Reads data and model, or the newest checkpoint where resume is set.
  Trainer(const TrainConfig& config, bool resume, TrainEvents events = {});

  // Runs until the last step, or until stop() says so after a step; saves in both cases. Returns whether all
  // steps are done.
  bool run(const std::function<bool()>& stop = [] { return false; });

  std::int64_t step() const { return step_; }
  const TrainConfig& config() const { return config_; }  // resolved
  nn::Model& model() { return model_; }
  torch::Device device() const { return device_; }
  const data::Dataset& dataset() const { return data_; }
  // Tensors that model.from did not have and that were initialised.
  const std::vector<std::string>& initialised() const { return initialised_; }
  // What was chosen for a model that starts from a folder, a line each; none where the run is resumed.
  const std::vector<std::string>& notes() const { return notes_; }

  // Mean over the first output.validation_tokens tokens of data.validation, attention as in the phase of the
  // last step (dense in warm-up).
  double validation_loss();

 private:
  // What the guards watch: the loss of the language model, the sum of KL, and the two norms.
  enum Watched { language_loss, kl_sum, model_norm, indexer_norm, kWatched };

  struct Sums {  // of one step, over its micro-batches, on the device
    at::Tensor loss;
    at::Tensor kl;    // [indexers]
    at::Tensor kept;  // [layers]; undefined where the KL does not give it
  };

  nn::Phase phase_of(std::int64_t step) const;
  nn::Phase phase_of_last_step() const;
  void build_model(const std::filesystem::path& from, bool resume);
  void choose_indexer_start(const std::optional<nn::ModelConfig>& stored);
  void take_note(const std::string& note);  // empty: none
  void set_learning(nn::Phase phase);
  StepReport one_step();
  std::vector<Batch> take_batches();  // of the next step
  std::vector<Batch> read_batches();
  nn::ModelForwardOptions forward_options(const Batch& batch, std::size_t number,
                                          const StepReport& report) const;
  Sums run_backward(const std::vector<Batch>& batches, StepReport& report);
  void check_finite(const StepReport& report, const std::vector<Batch>& batches) const;
  std::string first_not_finite_block(const StepReport& report, const std::vector<Batch>& batches) const;
  void watch_spikes(StepReport& report);
  double operations(const std::vector<Batch>& batches, nn::Phase phase);
  void sample();
  void save();
  void restore(std::int64_t step);
  OrderedJson state() const;

  TrainConfig config_;
  TrainEvents events_;
  torch::Device device_;
  data::Dataset data_;
  std::optional<data::Dataset> validation_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  data::Packer packer_;
  std::vector<Batch> ready_;  // read ahead for the next step; empty: nothing was
  data::PackerState place_;   // in the data, behind the step that was taken last
  nn::Model model_{nullptr};
  std::vector<std::string> initialised_, notes_;
  bool indexer_from_attention_ = false;  // to be done before its first step (train/indexer_start.h)
  std::unique_ptr<AdamW> optimizer_;
  Schedule schedule_;
  std::vector<SpikeGuard> guards_;
  Checkpoints checkpoints_;
  std::map<std::int64_t, double> operations_;  // of a sequence by its length, in the phase of now
  std::int64_t step_ = 0;                      // steps done
  std::int64_t saved_ = -1;                    // the step of the newest checkpoint
  std::int64_t spikes_ = 0;
};

}  // namespace gsa::train
