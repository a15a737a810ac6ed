#include "paper/plan.h"

#include <algorithm>

#include "core/suggest.h"
#include "gsa/error.h"

namespace gsa::paper {
namespace {

using Arguments = std::vector<std::string>;

// A model that comes of a base model.
struct Variant {
  std::string name, base;
  Arguments settings;  // of model, the budget's k aside; none: the base goes on learning densely
  bool sparse() const { return !settings.empty(); }
};

// gsa and gated-only whose gates start as new models' do.
const Variant& open_variant() {
  static const Variant variant = {"open", "base-open", {"system=gsa"}};
  return variant;
}
const Variant& open_gated_variant() {
  static const Variant variant = {"open-gated", "base-open", {}};
  return variant;
}

const std::vector<Variant>& main_variants() {
  static const std::vector<Variant> variants = {{"standard", "base-standard", {}},
                                                {"sparse-only", "base-standard", {"system=sparse-only"}},
                                                {"gated-only", "base-gated", {}},
                                                {"gsa", "base-gated", {"system=gsa"}}};
  return variants;
}

std::string gates_from(double start) { return concat("gate_init=", start); }

Arguments base_settings(const std::string& base) {
  if (base == "base-standard") return {"system=standard"};
  Arguments settings = {"system=gated-only", gates_from(base == "base-open" ? kOpenGates : kPaperGates)};
  if (base == "base-g1") settings.push_back("value_gate=none");
  if (base == "base-g2") settings.push_back("output_gate=none");
  return settings;
}

void append(Arguments& to, const Arguments& more) { to.insert(to.end(), more.begin(), more.end()); }

class Planner {
 public:
  explicit Planner(const PlanOptions& options) : o_(options), s_(options.scale) {}

  std::vector<Step> plan() {
    check();
    steps_.push_back({.name = "data",
                      .kind = Kind::data,
                      .group = "main",
                      .cost = 0.02 * static_cast<double>(s_.train_tokens)});
    for (std::int64_t seed = 1; seed <= o_.seeds; ++seed) {
      if (wants("main")) main(seed);
      if (wants("speed")) speed(seed);  // of the same models
    }
    if (wants("ruler")) {
      // What needs one base model comes first, for all seeds.
      for (std::int64_t seed = 1; seed <= o_.seeds; ++seed) open_gates(seed);
      for (std::int64_t seed = 1; seed <= o_.seeds; ++seed) {
        const Variant& gsa = main_variants().back();
        selection_on_ruler(adapt("ruler", gsa, seed));
      }
    }
    if (wants("k")) {
      for (const std::int64_t k : s_.ks) {
        const bool own = k != s_.k();
        ablation("k", {k_name(k), "base-gated", {"system=gsa", concat("k_base=", k)}}, own);
        // The main tables' gsa has been asked at this length among others.
        if (own && longest_near(s_) > 0)
          ruler_step("k", concat(seed_name(1), "/", k_name(k)), "ruler", {longest_near(s_)}, 1);
      }
      if (!s_.speed_lengths.empty()) {
        for (const std::int64_t k : s_.ks)
          speed_of("k", k == s_.k() ? "gsa" : k_name(k), 1, s_.speed_lengths.back());
      }
    }
    if (wants("indexer")) {
      ablation("indexer", {"relu", "base-gated", {"system=gsa", "score_form=relu"}});
      ablation("indexer", {"fixed", "base-gated", {"system=gsa", "budget=fixed"}});
      ablation("indexer", {"proportional", "base-gated", {"system=gsa", "budget=proportional"}});
      ablation("indexer", {"gsa", "base-gated", {"system=gsa"}}, false);
    }
    if (wants("stability")) stability();
    if (wants("gates")) {
      ablation("gates", {"no-gates", "base-standard", {"system=gsa", "value_gate=none", "output_gate=none"}});
      ablation("gates", {"g2", "base-g2", {"system=gsa", "output_gate=none"}});
      ablation("gates", {"g1", "base-g1", {"system=gsa", "value_gate=none"}});
      ablation("gates", {"gsa", "base-gated", {"system=gsa"}}, false);
      ablation("gates", open_variant());
    }
    return std::move(steps_);
  }

 private:
  void check() const {
    if (o_.seeds < 1) bad_argument("paper", "seeds", "at least 1", concat(o_.seeds));
    const auto known = [](const char* what, const Arguments& names, const Arguments& all) {
      for (const std::string& name : names) {
        if (std::find(all.begin(), all.end(), name) == all.end()) {
          bad_argument("paper", what, alternatives(all), with_suggestion(name, all));
        }
      }
    };
    known("systems", o_.systems, systems());
    known("tables", o_.groups, group_names());
  }

  static bool chosen(const Arguments& from, const std::string& name) {
    return from.empty() || std::find(from.begin(), from.end(), name) != from.end();
  }
  bool wants(const std::string& group) const { return chosen(o_.groups, group); }
  bool has(const std::string& step) const {
    return std::any_of(steps_.begin(), steps_.end(), [&](const Step& s) { return s.name == step; });
  }
  // Steps that several tables need come once, where the first of them wants it.
  void add(Step step) {
    if (!has(step.name)) steps_.push_back(std::move(step));
  }

  static void set(Arguments& arguments, const std::string& assignment) {
    append(arguments, {"--set", assignment});
  }

  struct Recipe {
    Phases phases;
    double rate;
    std::int64_t seed, data_seed, batch_tokens;
  };

  // model: settings of the table [model].
  Step training(const std::string& group, const std::string& name, const Arguments& model,
                const Recipe& recipe) const {
    const Phases& phases = recipe.phases;
    Step step{.name = name + "/train", .kind = Kind::training, .group = group, .needs = {"data"}};
    step.output = "runs/" + name;
    Arguments& a = step.arguments;
    a = {"train"};
    for (const std::string& setting : model) set(a, "model." + setting);
    set(a, "data.train=data/train");
    set(a, "data.validation=data/validation-1");
    set(a, concat("data.length=", s_.length));
    set(a, concat("data.seed=", recipe.data_seed));
    set(a, concat("seed=", recipe.seed));
    set(a, concat("batch.tokens=", recipe.batch_tokens));
    set(a, concat("batch.rows=", std::min(s_.batch_rows, recipe.batch_tokens / s_.length)));
    set(a, concat("phases.dense=", phases.dense));
    set(a, concat("phases.warmup=", phases.warmup));
    set(a, concat("phases.sparse=", phases.sparse));
    set(a, concat("optimizer.lr=", recipe.rate));
    set(a, concat("kl_share=", s_.kl_share));
    set(a, concat("output.save_every=", s_.save_every));
    set(a, "output.keep_last=1");
    set(a, "output.tensorboard=false");
    set(a, concat("output.validate_every=", std::max<std::int64_t>(1, phases.steps() / 4)));
    set(a, concat("output.validation_tokens=", std::min<std::int64_t>(s_.validation_tokens, 16 * s_.length)));
    set(a, "output.folder=" + step.output);
    step.steps = phases.steps();
    step.cost = static_cast<double>(phases.steps() * recipe.batch_tokens);
    return step;
  }

  // Systems without an indexer refuse what is said of one.
  Arguments dense_settings() const {
    Arguments settings;
    for (const std::string& setting : s_.model) {
      if (!setting.starts_with("index_")) settings.push_back(setting);
    }
    return settings;
  }

  std::string base(const std::string& group, const std::string& name, std::int64_t seed) {
    const std::string run = seed_name(seed) + "/" + name;
    Arguments model = dense_settings();
    append(model, base_settings(name));
    add(training(group, run, model,
                 {.phases = {s_.base_steps, 0, 0},
                  .rate = s_.rate,
                  .seed = seed,
                  .data_seed = seed,
                  .batch_tokens = s_.batch_tokens}));
    return run;
  }

  // Where the settings do not say one: such that budgets come to alike mean k (Scale::k).
  void add_k(Arguments& model) const {
    const auto says = [&](const char* what) {
      return std::any_of(model.begin(), model.end(), [&](const auto& s) { return s.starts_with(what); });
    };
    if (says("k_base=")) return;
    const bool fixed = says("system=sparse-only") || says("budget=fixed");
    model.push_back(concat("k_base=", fixed ? s_.fixed_k() : s_.k()));
  }

  std::string adapt(const std::string& group, const Variant& variant, std::int64_t seed) {
    const std::string from = base(group, variant.base, seed);
    const std::string run = seed_name(seed) + "/" + variant.name;
    const Phases phases =
        variant.sparse() ? Phases{0, s_.warmup, s_.sparse} : Phases{s_.warmup + s_.sparse, 0, 0};
    Arguments model = {"from=runs/" + from + "/latest"};
    append(model, variant.settings);
    // Of the indexer, which is new here; what else the scale says is in the folder.
    if (variant.sparse()) {
      for (const std::string& setting : s_.model) {
        if (setting.starts_with("index_")) model.push_back(setting);
      }
      add_k(model);
    }
    // In another order than the base had, whose first rows it would read again.
    constexpr std::int64_t kOtherOrder = 1000;
    Step step = training(group, run, model,
                         {.phases = phases,
                          .rate = s_.adapt_rate,
                          .seed = seed,
                          .data_seed = kOtherOrder + seed,
                          .batch_tokens = s_.batch_tokens});
    step.needs = {from + "/train"};
    add(std::move(step));
    return run;
  }

  void evaluation_step(const std::string& group, const std::string& run, const std::string& name,
                       const char* data, const Arguments& more) {
    Step step{.name = run + "/" + name, .kind = Kind::evaluation, .group = group, .needs = {run + "/train"}};
    step.output = concat("runs/", run, "/", name, ".json");
    step.arguments = {"eval",     "runs/" + run + "/latest",
                      "--data",   concat("data/", data),
                      "--length", concat(s_.length),
                      "--stride", concat(s_.length),
                      "--tokens", concat(s_.validation_tokens),
                      "--json",   step.output};
    append(step.arguments, more);
    step.cost = 0.7 * static_cast<double>(s_.validation_tokens);
    add(std::move(step));
  }

  // Everything that is measured, on the first text.
  void evaluation(const std::string& group, const std::string& run) {
    evaluation_step(group, run, "eval-1", kValidation[0], {});
  }

  // Lengths beyond the trained one by YaRN, in a step of their own: YaRN changes short ones too.
  void ruler(const std::string& group, const std::string& run) {
    ruler_near(group, run, "ruler");
    for (const std::int64_t length : s_.ruler_lengths) {
      if (length <= s_.length) continue;
      ruler_step(group, run, concat("ruler-", length), {length}, (length + s_.length - 1) / s_.length);
    }
  }

  void ruler_near(const std::string& group, const std::string& run, const std::string& name,
                  const Arguments& more = {}) {
    std::vector<std::int64_t> near;
    for (const std::int64_t length : s_.ruler_lengths) {
      if (length <= s_.length) near.push_back(length);
    }
    if (!near.empty()) ruler_step(group, run, name, near, 1, more);
  }

  void ruler_step(const std::string& group, const std::string& run, const std::string& name,
                  const std::vector<std::int64_t>& lengths, std::int64_t extend, const Arguments& more = {}) {
    Step step{.name = run + "/" + name, .kind = Kind::ruler, .group = group, .needs = {run + "/train"}};
    step.output = "runs/" + run + "/" + name;
    std::string list, tasks;
    double tokens = 0;
    for (const std::int64_t length : lengths) {
      list += concat(list.empty() ? "" : ",", length);
      tokens += static_cast<double>(length) * static_cast<double>(s_.ruler_samples) *
                static_cast<double>(s_.ruler_tasks.size());
    }
    for (const std::string& task : s_.ruler_tasks) tasks += (tasks.empty() ? "" : ",") + task;
    step.arguments = {"ruler",
                      "runs/" + run + "/latest",
                      "--lengths",
                      list,
                      "--tasks",
                      tasks,
                      "--samples",
                      concat(s_.ruler_samples),
                      s_.essays.empty() ? "--haystack" : "--essays",
                      "data/" + (s_.essays.empty() ? "haystack.txt" : s_.essays),
                      "--output",
                      step.output};
    const auto asks = [&](const char* task) {
      return std::find(s_.ruler_tasks.begin(), s_.ruler_tasks.end(), task) != s_.ruler_tasks.end();
    };
    if (asks("qa_1")) append(step.arguments, {"--squad", concat("data/", kSquad)});
    if (asks("qa_2")) append(step.arguments, {"--hotpotqa", concat("data/", kHotpotqa)});
    if (extend > 1) append(step.arguments, {"--extend", concat(extend)});
    append(step.arguments, more);
    step.cost = tokens;
    add(std::move(step));
  }

  void main(std::int64_t seed) {
    // One system after the other, to its end: a run that is cut off has whole systems.
    for (const Variant& variant : main_variants()) {
      if (!chosen(o_.systems, variant.name)) continue;
      const std::string run = adapt("main", variant, seed);
      evaluation("main", run);
      evaluation_step("main", run, "eval-2", kValidation[1], {"--measure", "perplexity"});
      if (variant.sparse()) dense_evaluation("main", run);
      ruler("main", run);
    }
  }

  // What its own dense attention gives: whose fault a gap is.
  void dense_evaluation(const std::string& group, const std::string& run) {
    evaluation_step(group, run, "eval-dense", kValidation[0],
                    {"--measure", "perplexity", "--phase", "dense"});
  }

  // What selection keeps of attention in RULER's prompts, and what they score without it.
  void selection_on_ruler(const std::string& run) {
    ruler_near("ruler", run, "ruler");
    evaluation_step("ruler", run, "eval-ruler", kRulerRows, {"--measure", "perplexity,selection"});
    ruler_near("ruler", run, "ruler-dense", {"--phase", "dense"});
  }

  void open_gates(std::int64_t seed) {
    const std::string gated = adapt("ruler", open_gated_variant(), seed);
    evaluation("ruler", gated);
    ruler_near("ruler", gated, "ruler");
    const std::string gsa = adapt("ruler", open_variant(), seed);
    evaluation("ruler", gsa);
    dense_evaluation("ruler", gsa);
    selection_on_ruler(gsa);
  }

  void speed_of(const std::string& group, const std::string& name, std::int64_t seed, std::int64_t length) {
    const std::string run = seed_name(seed) + "/" + name;
    Step step{.name = concat(run, "/speed-", length), .kind = Kind::speed, .group = group};
    step.needs = {run + "/train"};
    step.output = "logs/" + step.name + ".log";  // what it prints
    step.arguments = {"generate",      "runs/" + run + "/latest",
                      "--prompt-file", concat("data/prompt-", length, ".txt"),
                      "--max-tokens",  concat(s_.speed_tokens),
                      "--temperature", "0",
                      "--ignore-eos",  "--json",
                      "--stats"};
    append(step.arguments, {"--repeat", "5"});  // a process pays for what it sets up in the first pass
    if (length > s_.length)
      append(step.arguments, {"--extend", concat((length + s_.length - 1) / s_.length)});
    step.cost = 2 * static_cast<double>(length);
    add(std::move(step));
  }

  void speed(std::int64_t seed) {
    for (const Variant& variant : main_variants()) {
      if (!chosen(o_.systems, variant.name)) continue;
      adapt("speed", variant, seed);
      for (const std::int64_t length : s_.speed_lengths) speed_of("speed", variant.name, seed, length);
    }
  }

  // own: not the gsa of the main tables, which stands in the table too.
  void ablation(const std::string& group, Variant variant, bool own = true) {
    if (!own) variant = main_variants().back();
    evaluation(group, adapt(group, variant, 1));
  }

  void stability() {
    for (const double factor : s_.stability_rates) {
      for (const std::string& system : systems()) {
        if (!chosen(o_.systems, system)) continue;
        const bool sparse = system == "gsa" || system == "sparse-only";
        // The warm-up teaches the indexer alone.
        const Phases phases = sparse ? s_.stability : Phases{s_.stability.dense + s_.stability.sparse, 0, 0};
        Arguments model = sparse ? s_.model : dense_settings();
        model.push_back("system=" + system);
        if (system == "gsa" || system == "gated-only") model.push_back(gates_from(kPaperGates));
        if (sparse) add_k(model);
        Step step = training("stability", concat(seed_name(1), "/", rate_name(factor), "-", system), model,
                             {.phases = phases,
                              .rate = factor * s_.rate,
                              .seed = 1,
                              .data_seed = 1,
                              .batch_tokens = s_.stability_tokens});
        step.may_diverge = true;
        add(std::move(step));
      }
    }
  }

  const PlanOptions& o_;
  const Scale& s_;
  std::vector<Step> steps_;
};

}  // namespace

const std::vector<std::string>& group_names() {
  static const std::vector<std::string> names = {"main",    "speed",     "ruler", "k",
                                                 "indexer", "stability", "gates"};
  return names;
}

const std::vector<std::string>& systems() {
  static const std::vector<std::string> names = {"standard", "sparse-only", "gated-only", "gsa"};
  return names;
}

std::int64_t longest_near(const Scale& scale) {
  std::int64_t longest = 0;
  for (const std::int64_t length : scale.ruler_lengths) {
    if (length <= scale.length) longest = length;
  }
  return longest;
}

std::string seed_name(std::int64_t seed) { return concat("seed-", seed); }
std::string k_name(std::int64_t k) { return concat("k-", k); }
std::string rate_name(double factor) { return concat("rate-", factor); }

std::vector<Step> make_plan(const PlanOptions& options) { return Planner(options).plan(); }

}  // namespace gsa::paper
