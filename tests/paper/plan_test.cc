// The plan: what is trained from what, in which order, and what systems have in common.
#include "paper/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/errors.h"
#include "paper/material.h"

namespace gsa::paper {
namespace {

using gsa::testing::expect_error;

std::vector<Step> plan_of(const std::string& scale, std::int64_t seeds = 1) {
  return make_plan({.scale = scale_by_name(scale), .seeds = seeds});
}

const Step& step(const std::vector<Step>& plan, const std::string& name) {
  const auto found = std::find_if(plan.begin(), plan.end(), [&](const Step& s) { return s.name == name; });
  if (found == plan.end()) throw std::runtime_error("no step " + name);
  return *found;
}

// Values of --set.
std::map<std::string, std::string> settings(const Step& step) {
  std::map<std::string, std::string> found;
  for (std::size_t i = 0; i + 1 < step.arguments.size(); ++i) {
    if (step.arguments[i] != "--set") continue;
    const std::string& assignment = step.arguments[i + 1];
    const std::size_t equals = assignment.find('=');
    EXPECT_TRUE(found.emplace(assignment.substr(0, equals), assignment.substr(equals + 1)).second)
        << assignment;
  }
  return found;
}

TEST(PaperPlan, EveryStepComesOnceAndAfterWhatItNeeds) {
  for (const std::string& scale : scale_names()) {
    std::set<std::string> done;
    for (const Step& s : plan_of(scale, 2)) {
      for (const std::string& need : s.needs)
        EXPECT_TRUE(done.contains(need)) << scale << ": " << s.name << " needs " << need;
      EXPECT_TRUE(done.insert(s.name).second) << scale << ": " << s.name << " twice";
      EXPECT_TRUE(s.kind == Kind::data || !s.arguments.empty()) << s.name;
      EXPECT_GT(s.cost, 0) << s.name;
    }
  }
}

// A cut costs one system, and times are taken while a seed's models are there.
TEST(PaperPlan, OneSystemAfterTheOtherAndAblationsLast) {
  std::vector<std::string> order;  // runs and groups as they come up
  for (const Step& s : plan_of("small", 2)) {
    const std::string run = s.name.substr(0, s.name.rfind('/'));
    const std::string what = s.group == "main" ? run : s.group;
    if (order.empty() || order.back() != what) order.push_back(what);
    const bool of_all_seeds = s.group == "main" || s.group == "speed" || s.group == "ruler";
    EXPECT_TRUE(of_all_seeds || !s.name.starts_with("seed-2")) << s.name;  // ablations have one seed
  }
  std::vector<std::string> expected = {"data"};
  for (const std::string seed : {"seed-1/", "seed-2/"}) {
    for (const char* run : {"base-standard", "standard", "sparse-only", "base-gated", "gated-only", "gsa"})
      expected.push_back(seed + run);
    expected.push_back("speed");
  }
  for (const char* group : {"ruler", "k", "indexer", "stability", "gates"}) expected.push_back(group);
  EXPECT_EQ(order, expected);
}

// What the gap in RULER comes from: the open gates of every seed, then the selection of gsa itself, whose base is
// another one.
TEST(PaperPlan, RulersGapIsTakenApart) {
  std::vector<std::string> names;
  for (const Step& s : make_plan({.scale = scale_by_name("small"), .seeds = 2, .groups = {"ruler"}})) {
    if (s.name != "data") names.push_back(s.name);
  }
  std::vector<std::string> expected;
  for (const std::string seed : {"seed-1/", "seed-2/"}) {
    for (const char* name :
         {"base-open/train", "open-gated/train", "open-gated/eval-1", "open-gated/ruler", "open/train",
          "open/eval-1", "open/eval-dense", "open/ruler", "open/eval-ruler", "open/ruler-dense"})
      expected.push_back(seed + name);
  }
  for (const std::string seed : {"seed-1/", "seed-2/"}) {
    for (const char* name :
         {"base-gated/train", "gsa/train", "gsa/ruler", "gsa/eval-ruler", "gsa/ruler-dense"})
      expected.push_back(seed + name);
  }
  EXPECT_EQ(names, expected);
  const std::vector<Step> plan = plan_of("small", 2);
  const auto& dense = step(plan, "seed-2/gsa/ruler-dense").arguments;
  EXPECT_EQ(std::vector<std::string>(dense.end() - 2, dense.end()),
            (std::vector<std::string>{"--phase", "dense"}));
  // Asked the same.
  auto sparse = step(plan, "seed-2/gsa/ruler").arguments;
  EXPECT_TRUE(std::equal(sparse.begin(), sparse.begin() + 10, dense.begin()));
  EXPECT_EQ(step(plan, "seed-1/open/eval-ruler").arguments[3], "data/ruler-rows");
  EXPECT_EQ(settings(step(plan, "seed-2/open-gated/train")).at("phases.dense"), "300");
}

TEST(PaperPlan, RulerReadsWhatAUserHas) {
  const auto arguments = [](const RulerFiles& files) {
    const auto plan = make_plan({.scale = with_files(scale_by_name("small"), files)});
    return step(plan, "seed-1/gsa/ruler").arguments;
  };
  const auto value = [](const std::vector<std::string>& all, const char* option) -> std::string {
    const auto found = std::find(all.begin(), all.end(), option);
    return found == all.end() ? "" : *(found + 1);
  };
  const auto rule = arguments({}),
             brought = arguments({"/a/PaulGrahamEssays.json", "/b/dev.json", "/c/d.json"});
  EXPECT_EQ(value(rule, "--haystack"), "data/haystack.txt");
  EXPECT_EQ(value(rule, "--squad") + value(rule, "--hotpotqa") + value(rule, "--essays"), "");
  EXPECT_EQ(value(brought, "--haystack"), "");
  EXPECT_EQ(value(brought, "--essays"), "data/essays.json");
  EXPECT_EQ(value(brought, "--squad"), "data/squad.json");
  EXPECT_EQ(value(brought, "--hotpotqa"), "data/hotpotqa.json");
  EXPECT_TRUE(value(brought, "--tasks").ends_with("fwe,qa_1,qa_2"));
}

TEST(PaperPlan, EveryKIsAskedRulerAtTheTrainedLength) {
  const std::vector<Step> plan = plan_of("small");
  for (const char* k : {"96", "192", "768"}) {
    const Step& s = step(plan, concat("seed-1/k-", k, "/ruler"));
    EXPECT_EQ(s.arguments[3], "4096") << k;
    EXPECT_EQ(s.group, "k");
  }
}

TEST(PaperPlan, TimesAreTakenOfEverySeed) {
  const std::vector<Step> plan = plan_of("small", 2);
  for (const std::string& system : systems())
    EXPECT_EQ(step(plan, "seed-2/" + system + "/speed-65536").arguments[1],
              "runs/seed-2/" + system + "/latest");
}

TEST(PaperPlan, BudgetsComeToTheSameMeanK) {
  const std::vector<Step> plan = plan_of("small");
  const auto k_of = [&](const std::string& run) {
    return settings(step(plan, "seed-1/" + run + "/train")).at("model.k_base");
  };
  for (const char* run : {"sparse-only", "fixed", "rate-2-sparse-only"}) EXPECT_EQ(k_of(run), "512") << run;
  for (const char* run : {"gsa", "relu", "g1", "no-gates", "rate-2-gsa"}) EXPECT_EQ(k_of(run), "384") << run;
  EXPECT_EQ(k_of("k-96"), "96");
}

TEST(PaperPlan, SparseSystemsAreMeasuredDenselyToo) {
  const std::vector<Step> plan = plan_of("small", 2);
  for (const std::string& system : systems()) {
    const auto found = std::find_if(plan.begin(), plan.end(), [&](const Step& s) {
      return s.name == "seed-2/" + system + "/eval-dense";
    });
    const bool sparse = system == "gsa" || system == "sparse-only";
    ASSERT_EQ(found != plan.end(), sparse) << system;
    if (!sparse) continue;
    const std::vector<std::string> last(found->arguments.end() - 4, found->arguments.end());
    EXPECT_EQ(last, (std::vector<std::string>{"--measure", "perplexity", "--phase", "dense"}));
  }
}

// Of the language model; and the guard watches a phase after 128 steps.
TEST(PaperPlan, StabilityHasAsManyStepsForAll) {
  const std::vector<Step> plan = plan_of("small");
  for (const std::string& system : systems()) {
    const auto set = settings(step(plan, "seed-1/rate-4-" + system + "/train"));
    EXPECT_EQ(std::stoll(set.at("phases.dense")) + std::stoll(set.at("phases.sparse")), 650) << system;
    const std::int64_t sparse = std::stoll(set.at("phases.sparse"));
    EXPECT_TRUE(sparse == 0 || sparse >= 2 * 128) << system;
  }
}

TEST(PaperPlan, SystemsShareDataTokensAndSeeds) {
  const std::vector<Step> plan = plan_of("small", 2);
  for (const char* seed : {"1", "2"}) {
    for (const std::string& system : systems()) {
      const Step& last = step(plan, "seed-" + std::string(seed) + "/" + system + "/train");
      const auto set = settings(last);
      ASSERT_EQ(last.needs.size(), 1u);
      const Step& base = step(plan, last.needs[0]);
      const auto base_set = settings(base);
      EXPECT_EQ(set.at("model.from"), base.output + "/latest");
      for (const auto& s : {set, base_set}) {
        EXPECT_EQ(s.at("data.train"), "data/train");
        EXPECT_EQ(s.at("seed"), seed);
      }
      EXPECT_EQ(base_set.at("data.seed"), seed);
      EXPECT_EQ(set.at("data.seed"),
                std::string("100") + seed);  // in another order, the same for all systems
      const Scale scale = scale_by_name("small");
      const auto steps = [](const auto& s) {
        return std::stoll(s.at("phases.dense")) + std::stoll(s.at("phases.warmup")) +
               std::stoll(s.at("phases.sparse"));
      };
      EXPECT_EQ(steps(base_set), scale.base_steps);
      EXPECT_EQ(steps(set), scale.warmup + scale.sparse);
      EXPECT_EQ(last.steps, steps(set));
      EXPECT_EQ(base.steps, steps(base_set));
    }
  }
  EXPECT_EQ(step(plan, "seed-1/gsa/train").needs, step(plan, "seed-1/gated-only/train").needs);
  EXPECT_EQ(step(plan, "seed-1/sparse-only/train").needs, step(plan, "seed-1/standard/train").needs);
}

// gsa train refuses them.
TEST(PaperPlan, SystemsWithoutAnIndexerAreToldNothingOfOne) {
  for (const Step& s : plan_of("medium")) {
    if (s.kind != Kind::training) continue;
    const auto set = settings(s);
    const bool dense = set.at("phases.warmup") == "0" && set.at("phases.sparse") == "0";
    for (const auto& [key, value] : set) {
      const bool of_indexer =
          key.starts_with("model.index_") || key == "model.k_base" || key == "model.budget";
      EXPECT_FALSE(dense && of_indexer) << s.name << ": " << key;
    }
  }
}

TEST(PaperPlan, LengthsBeyondTheTrainedOneAreExtended) {
  const std::vector<Step> plan = plan_of("small");
  const auto extension = [](const Step& s) -> std::string {
    const auto found = std::find(s.arguments.begin(), s.arguments.end(), "--extend");
    return found == s.arguments.end() ? "" : *(found + 1);
  };
  EXPECT_EQ(extension(step(plan, "seed-1/gsa/ruler")), "");
  EXPECT_EQ(extension(step(plan, "seed-1/gsa/ruler-8192")), "2");
  EXPECT_EQ(extension(step(plan, "seed-1/gsa/ruler-16384")), "4");
  EXPECT_EQ(extension(step(plan, "seed-1/gsa/speed-65536")), "16");
}

TEST(PaperPlan, AblationsReuseWhatTheMainTablesTrained) {
  const std::vector<Step> plan = plan_of("small");
  const auto named = [&](const std::string& end) {
    return std::count_if(plan.begin(), plan.end(), [&](const Step& s) { return s.name.ends_with(end); });
  };
  EXPECT_EQ(named("/base-gated/train"), 1);
  EXPECT_EQ(named("/gsa/eval-1"), 1);
  EXPECT_EQ(named("/k-384/train"), 0);  // that is gsa itself
  EXPECT_EQ(settings(step(plan, "seed-1/g1/train")).at("model.from"), "runs/seed-1/base-g1/latest");
}

TEST(PaperPlan, GatesThatStartOpenAreABaseOfTheirOwn) {
  const std::vector<Step> plan = plan_of("small");
  EXPECT_EQ(settings(step(plan, "seed-1/base-open/train")).at("model.gate_init"), "0.9");
  const auto adapted = settings(step(plan, "seed-1/open/train"));
  EXPECT_EQ(adapted.at("model.from"), "runs/seed-1/base-open/latest");
  EXPECT_FALSE(adapted.contains("model.gate_init"));  // its gates are where training has left them
}

TEST(PaperPlan, WhereGatesStartIsSaidOfEveryGatedModelFromScratch) {
  const std::vector<Step> plan = plan_of("small");
  for (const char* run : {"base-gated", "base-g1", "base-g2", "rate-2-gsa", "rate-4-gated-only"}) {
    EXPECT_EQ(settings(step(plan, concat("seed-1/", run, "/train"))).at("model.gate_init"), "0.5") << run;
  }
  for (const char* run : {"base-standard", "rate-2-standard", "rate-2-sparse-only", "gsa", "no-gates"}) {
    EXPECT_FALSE(settings(step(plan, concat("seed-1/", run, "/train"))).contains("model.gate_init")) << run;
  }
}

TEST(PaperPlan, StabilityHasSmallerBatches) {
  const std::vector<Step> plan = plan_of("small");
  const auto batch = [&](const char* name) {
    const auto set = settings(step(plan, name));
    return set.at("batch.tokens") + " by " + set.at("batch.rows");
  };
  EXPECT_EQ(batch("seed-1/rate-4-gsa/train"), "32768 by 8");
  EXPECT_EQ(batch("seed-1/base-gated/train"), "131072 by 32");
}

TEST(PaperPlan, OnlyWhatIsAskedFor) {
  const std::vector<Step> some =
      make_plan({.scale = scale_by_name("smoke"), .systems = {"standard", "gated-only"}, .groups = {"main"}});
  for (const Step& s : some) {
    EXPECT_EQ(s.group, "main");
    EXPECT_EQ(s.name.find("gsa"), std::string::npos) << s.name;
  }
  // What an ablation needs is trained with it.
  const std::vector<Step> ks = make_plan({.scale = scale_by_name("smoke"), .groups = {"k"}});
  EXPECT_NO_THROW(step(ks, "seed-1/base-gated/train"));
  EXPECT_NO_THROW(step(ks, "seed-1/gsa/eval-1"));
}

TEST(PaperPlan, NamesThatDoNotExist) {
  expect_error([] { scale_by_name("smal"); },
               {"argument 'scale'", "smoke, small or medium", "did you mean 'small'?"});
  expect_error([] { make_plan({.scale = scale_by_name("smoke"), .systems = {"gated"}}); },
               {"argument 'systems'", "'gated'"});
  expect_error([] { make_plan({.scale = scale_by_name("smoke"), .groups = {"gate"}}); },
               {"argument 'tables'", "did you mean 'gates'?"});
}

TEST(PaperPlan, TheKOfAllSystemsIsAmongThoseOfTheAblation) {
  for (const std::string& name : scale_names()) {
    const Scale scale = scale_by_name(name);
    EXPECT_TRUE(std::find(scale.ks.begin(), scale.ks.end(), scale.k()) != scale.ks.end()) << name;
    EXPECT_TRUE(std::is_sorted(scale.ruler_lengths.begin(), scale.ruler_lengths.end())) << name;
    EXPECT_EQ(scale.batch_tokens % (scale.batch_rows * scale.length), 0) << name;
  }
}

}  // namespace
}  // namespace gsa::paper
