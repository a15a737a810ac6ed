// What `gsa paper` does, as data: steps in the order in which they run. Each is one command of the program, or the
// making of the data, and has a result of a few named numbers.
//
// All paths are relative to the output folder:
//   data/          datasets, a haystack, prompts
//   runs/NAME/     trainings and what was measured of them; NAME is seed-1/gsa and the like
//   results/STEP.json   what a step came to, written when it has ended: a step without one is yet to be done
//   logs/STEP.log       what its command printed
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paper/scale.h"

namespace gsa::paper {

enum class Kind { data, training, evaluation, ruler, speed };

struct Step {
  std::string name;  // "seed-1/gsa/train"
  Kind kind = Kind::data;
  std::string group;                    // of which tables it is: one of group_names()
  std::vector<std::string> needs = {};  // names of steps before it
  // Of the program, run in the output folder; none for data. All that the figures depend on besides data and device:
  // who runs them adds device and threads.
  std::vector<std::string> arguments = {};
  std::string output = "";   // the file or folder that the command leaves its figures in
  std::int64_t steps = 0;    // of a training
  double cost = 1;           // about, for the time left: tokens that are trained on
  bool may_diverge = false;  // NaN is a finding, not a failure
};

// In their order: "main" (perplexity, RULER, sinks), "speed", "ruler" (why RULER's scores differ), "k", "indexer",
// "stability", "gates".
const std::vector<std::string>& group_names();

struct PlanOptions {
  Scale scale;
  std::int64_t seeds = 1;                 // of main, speed and ruler; ablations have the first one
  std::vector<std::string> systems = {};  // of the four; none: all
  std::vector<std::string> groups = {};   // none: all
};

// The main tables come first, seed by seed and in each system by system, with the times of a seed's models behind them.
// Throws gsa::Error for a system or a group that does not exist.
std::vector<Step> make_plan(const PlanOptions& options);

// ---- names that plan and tables share

// Where gates start: as the paper has it, and in one ablation as new models of this project have it.
constexpr double kPaperGates = 0.5, kOpenGates = 0.9;

// Datasets for perplexity, under data/.
constexpr const char* kValidation[] = {"validation-1", "validation-2"};
// RULER's own prompts, each with its answers behind it, at longest_near().
constexpr const char* kRulerRows = "ruler-rows";
// What qa_1 and qa_2 read, where a user has brought it.
constexpr const char *kSquad = "squad.json", *kHotpotqa = "hotpotqa.json";
// Written when all of data/ is there: what it came to, as JSON.
constexpr const char* kDataDone = "data/done";

const std::vector<std::string>& systems();  // in the paper's order
// The longest length of RULER that needs no YaRN; 0 where there is none.
std::int64_t longest_near(const Scale& scale);
std::string seed_name(std::int64_t seed);  // "seed-1"
std::string k_name(std::int64_t k);        // "k-96"; Scale::k() is "gsa" itself
std::string rate_name(double factor);      // "rate-2"

}  // namespace gsa::paper
