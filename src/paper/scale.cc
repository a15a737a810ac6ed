#include "paper/scale.h"

#include "core/suggest.h"
#include "gsa/error.h"

namespace gsa::paper {
namespace {

// Needs no data of others; qa_1 and qa_2 do.
const std::vector<std::string> kAllTasks = {"niah_single_1",
                                            "niah_single_2",
                                            "niah_single_3",
                                            "niah_multikey_1",
                                            "niah_multikey_2",
                                            "niah_multikey_3",
                                            "niah_multivalue",
                                            "niah_multiquery",
                                            "vt",
                                            "cwe",
                                            "fwe"};

// Learns next to nothing: it shows that everything runs, and that the page says so.
Scale smoke() {
  Scale scale{.name = "smoke", .model = {"preset=tiny", "layers=2", "d_model=64", "intermediate_size=128"}};
  scale.tells = false;
  scale.vocabulary = 1024;  // most texts have some hundred characters, each a piece of its own
  scale.length = 512;
  scale.batch_tokens = 1024;
  scale.batch_rows = 2;
  scale.base_steps = 12;
  scale.warmup = 2;
  scale.sparse = 4;
  scale.rate = 3e-3;
  scale.adapt_rate = 1e-3;
  scale.kl_share = 1;
  scale.stability = {6, 1, 3};
  scale.stability_rates = {1, 2, 4};
  scale.stability_tokens = 1024;
  scale.save_every = 5;
  scale.train_tokens = 32 * 1024;
  scale.validation_tokens = 4 * 1024;
  scale.ruler_lengths = {512, 1024};
  scale.ruler_tasks = {"niah_single_1", "niah_multikey_2"};
  scale.ruler_samples = 1;
  scale.speed_lengths = {512, 1024};
  scale.speed_tokens = 4;
  scale.ks = {12, 24, 48, 96};
  scale.jobs = 4;
  return scale;
}

// About 12 minutes a seed for the main tables on an H200.
Scale small() {
  Scale scale{.name = "small",
              .model = {"preset=small", "layers=6", "d_model=384", "intermediate_size=1024", "heads=6",
                        "kv_heads=2", "head_size=64", "index_head_size=64"}};
  scale.vocabulary = 16384;
  scale.length = 4096;
  scale.batch_tokens = 131'072;
  scale.batch_rows = 32;
  scale.base_steps = 2100;
  scale.warmup = 50;
  scale.sparse = 250;
  scale.rate = 1e-3;
  scale.adapt_rate = 3e-4;
  scale.kl_share = 1.0 / 64;
  scale.stability = {300, 50, 350};
  scale.stability_rates = {1, 2, 4};
  scale.stability_tokens = scale.batch_tokens / 4;
  scale.save_every = 250;
  scale.train_tokens = scale.steps() * scale.batch_tokens;
  scale.validation_tokens = 524'288;
  scale.ruler_lengths = {1024, 2048, 4096, 8192, 16'384};
  scale.ruler_tasks = kAllTasks;
  scale.ruler_samples = 30;
  scale.speed_lengths = {4096, 16'384, 65'536};
  scale.speed_tokens = 64;
  scale.ks = {96, 192, 384, 768};
  scale.jobs = 4;
  return scale;
}

Scale medium() {
  Scale scale = small();
  scale.name = "medium";
  scale.model = {"preset=small", "layers=12",  "d_model=768",  "intermediate_size=2048",
                 "heads=12",     "kv_heads=4", "head_size=64", "index_head_size=64"};
  scale.vocabulary = 32'768;
  scale.length = 8192;
  scale.batch_tokens = 262'144;
  scale.batch_rows = 16;
  scale.base_steps = 21'000;
  scale.warmup = 500;
  scale.sparse = 2500;
  scale.rate = 6e-4;
  scale.adapt_rate = 2e-4;
  scale.stability = {2000, 200, 1000};
  scale.stability_tokens = scale.batch_tokens / 4;
  scale.save_every = 500;
  scale.train_tokens = scale.steps() * scale.batch_tokens;
  scale.validation_tokens = 2'097'152;
  scale.ruler_lengths = {4096, 8192, 16'384, 32'768, 65'536};
  scale.ruler_samples = 200;
  scale.speed_lengths = {8192, 32'768, 131'072};
  scale.ks = {192, 384, 768, 1536};
  scale.jobs = 1;  // its caches are large
  return scale;
}

}  // namespace

const std::vector<std::string>& scale_names() {
  static const std::vector<std::string> names = {"smoke", "small", "medium"};
  return names;
}

Scale scale_by_name(const std::string& name) {
  if (name == "smoke") return smoke();
  if (name == "small") return small();
  if (name == "medium") return medium();
  bad_argument("paper", "scale", alternatives(scale_names()), with_suggestion(name, scale_names()));
}

OrderedJson to_json(const Scale& s) {
  return {{"name", s.name},
          {"model", s.model},
          {"vocabulary", s.vocabulary},
          {"length", s.length},
          {"batch_tokens", s.batch_tokens},
          {"batch_rows", s.batch_rows},
          {"base_steps", s.base_steps},
          {"warmup", s.warmup},
          {"sparse", s.sparse},
          {"rate", s.rate},
          {"adapt_rate", s.adapt_rate},
          {"kl_share", s.kl_share},
          {"stability", {s.stability.dense, s.stability.warmup, s.stability.sparse}},
          {"stability_rates", s.stability_rates},
          {"stability_tokens", s.stability_tokens},
          {"train_tokens", s.train_tokens},
          {"validation_tokens", s.validation_tokens},
          {"ruler_lengths", s.ruler_lengths},
          {"ruler_tasks", s.ruler_tasks},
          {"ruler_samples", s.ruler_samples},
          {"speed_lengths", s.speed_lengths},
          {"speed_tokens", s.speed_tokens},
          {"ks", s.ks}};
}

}  // namespace gsa::paper
