// The cache behind the engine: sharing, forgetting, files, and memory that is counted before it is taken.
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <random>

#include "core/file.h"
#include "engines.h"
#include "model/errors.h"
#include "model/temporary_folder.h"
#include "nn/device.h"

namespace gsa::infer::testing {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

nn::Model gsa_model(torch::Dtype dtype = torch::kFloat32) {
  return make_model(nn::testing::four_systems()[3].config, dtype);
}

std::int64_t pages_in_use(const Engine& engine) {
  return engine.cache_use().tokens / engine.options().page_size;
}

TEST(CacheSharing, AForkThatDivergesEqualsSeparateRuns) {
  for (const NamedConfig& system : nn::testing::four_systems()) {
    nn::Model model = make_model(system.config, torch::kFloat32);
    for (const std::int64_t length : {15, 16, 17, 40}) {  // around the edge of a page
      SCOPED_TRACE(concat(system.name, ", prefix of ", length));
      expect_forks_keep_apart(model, {.page_size = 16}, length);
    }
  }
}

TEST(CacheSharing, OnlyTheWrittenPageIsCopied) {
  nn::Model model = gsa_model();
  Engine engine(model, {.page_size = 16});
  Sequence a = engine.start();
  engine.prefill({{&a, random_tokens(40)}});
  EXPECT_EQ(pages_in_use(engine), 3);
  Sequence b = a.fork();
  EXPECT_EQ(pages_in_use(engine), 3);
  EXPECT_EQ(a.pages(), b.pages());
  engine.decode({{&b, 1}});
  EXPECT_EQ(pages_in_use(engine), 4);
  EXPECT_EQ(a.pages()[1], b.pages()[1]);
  EXPECT_NE(a.pages()[2], b.pages()[2]);
  {
    const Sequence whole_pages = a.fork(32);
    EXPECT_EQ(pages_in_use(engine), 4);
  }
  a = engine.start();  // lets go of its page, not of the shared ones
  EXPECT_EQ(pages_in_use(engine), 3);
  b.clear();
  EXPECT_EQ(pages_in_use(engine), 0);
}

TEST(CacheSharing, ForksInOneBatchGetPagesOfTheirOwn) {
  nn::Model model = gsa_model();
  Engine engine(model, {.page_size = 16});
  const Tokens prompt = random_tokens(20);
  Sequence a = engine.start();
  engine.prefill({{&a, prompt}});
  Sequence b = a.fork(), c = a.fork();
  const Tensor rows = engine.decode({{&a, 1}, {&b, 2}, {&c, 1}});
  EXPECT_EQ(pages_in_use(engine), 4);
  EXPECT_TRUE(torch::equal(rows[0], rows[2]));
  EXPECT_FALSE(torch::equal(rows[0], rows[1]));
}

TEST(CacheTruncate, ForgetsAndGoesOn) {
  nn::Model model = gsa_model();
  const Tokens prompt = random_tokens(50, 1), wrong = random_tokens(30, 2), right = random_tokens(30, 3);
  for (const std::int64_t kept : {0, 1, 16, 33, 50}) {
    Engine engine(model, {.page_size = 16});
    Sequence sequence = engine.start(), fresh = engine.start();
    engine.prefill({{&sequence, prompt}});
    decode_all(engine, sequence, wrong);
    sequence.truncate(kept);
    EXPECT_EQ(pages_in_use(engine), (kept + 15) / 16);
    if (kept > 0) engine.prefill({{&fresh, std::span(prompt).first(static_cast<std::size_t>(kept))}});
    const Tensor again = decode_all(engine, sequence, right);
    EXPECT_LT(relative_error(again, decode_all(engine, fresh, right)), 1e-5) << kept;
  }
}

TEST(CacheFiles, ASavedSequenceGoesOnBitForBit) {
  const TemporaryFolder folder;
  for (const NamedConfig& system : nn::testing::four_systems()) {
    for (const bool int8 : {false, true}) {
      if (int8 && !system.config.sparse) continue;
      nn::Model model = make_model(system.config, torch::kFloat32);
      const Tokens prompt = random_tokens(45, 1), rest = random_tokens(10, 2);
      Engine engine(model, {.page_size = 16, .index_int8 = int8});
      Sequence sequence = engine.start();
      engine.prefill({{&sequence, prompt}});
      engine.save(sequence, folder / "cache");
      const Tensor expected = decode_all(engine, sequence, rest);
      Engine other(model, {.page_size = 8, .index_int8 = int8});  // pages leave no trace in a file
      Sequence loaded = other.load(folder / "cache");
      EXPECT_EQ(loaded.tokens(), prompt);
      EXPECT_TRUE(torch::equal(decode_all(other, loaded, rest), expected)) << system.name << " " << int8;
    }
  }
}

TEST(CacheFiles, RefusedOnesChangeNothing) {
  const TemporaryFolder folder;
  nn::Model model = gsa_model();
  Engine engine(model);
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, random_tokens(30)}});
  engine.save(sequence, folder / "good");
  const std::int64_t before = engine.cache_use().bytes;
  const auto refused = [&](Engine& by, const char* file, std::initializer_list<std::string> parts) {
    expect_error([&] { by.load(folder / file); }, parts);
    EXPECT_EQ(engine.cache_use().bytes, before);
  };
  refused(engine, "nowhere", {"nowhere"});

  nn::Model trained = gsa_model();
  {
    const torch::NoGradGuard no_grad;
    trained->model->layers[1]->mlp->down_proj->weight.mul_(1.001);
  }
  Engine foreign(trained), bf16(model, {.dtype = at::kBFloat16}), int8(model, {.index_int8 = true});
  refused(foreign, "good", {"another model"});
  refused(bf16, "good", {"bfloat16", "float32"});
  refused(int8, "good", {"bits of an indexer key"});
  nn::ModelConfig config = nn::testing::small_model(nn::testing::four_systems()[3].config);
  config.attention.rope.theta = 5000;
  Engine rotated(make_model(config, torch::kFloat32));
  refused(rotated, "good", {"another model"});

  const std::string bytes = read_file(folder / "good", 1 << 24);
  const auto write = [&](const std::string& text) {
    std::ofstream(folder / "bad", std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  };
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
    write(bytes.substr(0, size));
    refused(engine, "bad", {"bad"});
  }
  std::string damaged = bytes;
  damaged[bytes.size() * 3 / 4] = static_cast<char>(damaged[bytes.size() * 3 / 4] ^ 16);
  write(damaged);
  refused(engine, "bad", {"checksum", "damaged"});
  Sequence empty = engine.start();
  expect_error([&] { engine.save(empty, folder / "empty"); }, {"at least one token"});
  EXPECT_FALSE(std::filesystem::exists(folder / "empty"));
}

TEST(CacheMemory, WhatDoesNotFitIsRefusedWithTheNumbers) {
  nn::Model model = gsa_model();
  const std::int64_t token = Engine(model).cache_use().bytes_per_token;
  Engine engine(model, {.page_size = 16, .cache_bytes = 9 * 16 * token});  // eight pages and nobody's one
  Sequence a = engine.start(), b = engine.start();
  const Tokens long_prompt = random_tokens(129), half = random_tokens(64), page = random_tokens(16);
  expect_error(
      [&] {
        engine.prefill({{&a, long_prompt}});
      },
      {"at most 128 tokens", "got 129 tokens", format_bytes(9 * 16 * token), format_bytes(token)});
  EXPECT_EQ(a.length(), 0);
  EXPECT_EQ(engine.cache_use().bytes, 0);
  engine.prefill({{&a, half}});
  expect_error(
      [&] {
        engine.reserve(std::vector<Prompt>{{&b, half}}, 1);
      },
      {"at most 64 tokens", "got 65 tokens"});
  engine.prefill({{&b, half}});
  EXPECT_LE(engine.cache_use().taken, engine.cache_use().budget);
  // Full: nothing more for anyone, and what is there stays.
  expect_error([&] { engine.decode({{&a, 1}}); }, {"at most 0 tokens"});
  EXPECT_EQ(a.length(), 64);
  b.truncate(48);
  engine.decode({{&a, 1}});
  EXPECT_EQ(a.length(), 65);
  expect_error([&] { Engine(model, {.cache_bytes = 10}); }, {"budget", "two pages", "10 bytes"});
}

TEST(CacheMemory, TheDefaultBudgetIsWhatTheMachineHas) {
  nn::Model model = gsa_model();
  const std::int64_t resident = nn::memory_in_use(torch::kCPU);
  Engine engine(model);
  const CacheUse use = engine.cache_use();
  EXPECT_GT(use.budget, std::int64_t{1} << 20);
  EXPECT_LT(use.budget, std::int64_t{1} << 50);
  EXPECT_LE(use.taken, use.budget);
  EXPECT_LT(nn::memory_in_use(torch::kCPU) - resident, 64 << 20) << "memory is taken as it is used";
}

TEST(CacheMemory, MoreThanTheMachineHasIsRefusedBeforeItIsTouched) {
  Engine engine(gsa_model(), {.cache_bytes = std::int64_t{1} << 44});
  Sequence sequence = engine.start();
  const Tokens prompt = random_tokens(40);
  const Cache::Growth growth{&sequence, (std::int64_t{1} << 43) / engine.cache_use().bytes_per_token};
  expect_error([&] { engine.cache().reserve({&growth, 1}); }, {"8.00 TiB of memory", "left", "budget"});
  EXPECT_EQ(engine.cache_use().bytes, 0);
  engine.prefill({{&sequence, prompt}});
  EXPECT_EQ(sequence.length(), 40);
}

// A limit of the address space, far away; undone at the end.
class AddressLimit {
 public:
  AddressLimit() {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{.rlim_cur = std::min(rlim_t{1} << 46, before_.rlim_max), .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

// Where the system reserves space for the whole budget, a growing cache stays where it is; where it does not, as under
// ulimit -v, pages move. Both to the same bits.
TEST(CacheMemory, GrowthMovesPagesOnlyWhereSpaceIsLimited) {
  nn::Model model = gsa_model();
  std::vector<Tensor> logits;
  for (const bool limited : {false, true}) {
    SCOPED_TRACE(limited ? "limited" : "reserved");
    std::optional<AddressLimit> limit;
    if (limited) limit.emplace();
    Engine engine(model, {.page_size = 8});
    Sequence first = engine.start(), second = engine.start();
    engine.prefill({{&first, random_tokens(20)}});
    const void* begin = engine.cache().pages(0).k.const_data_ptr();
    const std::int64_t generation = engine.cache().generation();
    const std::int64_t taken = engine.cache_use().taken;
    const Cache::Growth growth{&second, 4000};
    engine.cache().reserve({&growth, 1});
    EXPECT_GT(engine.cache_use().taken, taken);
    EXPECT_EQ(engine.cache().pages(0).k.const_data_ptr() == begin, !limited);
    EXPECT_EQ(engine.cache().generation() == generation, !limited);
    engine.prefill({{&second, random_tokens(100)}});
    logits.push_back(torch::cat({engine.decode({{&first, 1}}), engine.decode({{&second, 2}})}));
  }
  EXPECT_TRUE(torch::equal(logits[0], logits[1]));
}

TEST(CacheMemory, TenThousandStepsLeaveItFlat) {
  nn::ModelConfig config = nn::testing::small_model(nn::testing::four_systems()[3].config);
  config.layers = 1;
  Engine engine(make_model(config, torch::kFloat32), {.page_size = 8});
  Sequence sequence = engine.start();
  engine.prefill({{&sequence, random_tokens(20)}});
  std::int64_t taken = 0, resident = 0;
  for (int step = 0; step < 10'000; ++step) {
    if (step == 1000) {  // everything has had its largest size by now
      taken = engine.cache_use().taken;
      resident = nn::memory_in_use(torch::kCPU);
    }
    if (sequence.length() == 120) sequence.truncate(20);
    Sequence branch = sequence.fork();
    engine.decode({{step % 2 == 0 ? &branch : &sequence, step % nn::testing::kVocabulary}});
  }
  EXPECT_EQ(engine.cache_use().taken, taken);
  EXPECT_LT(nn::memory_in_use(torch::kCPU) - resident, 4 << 20);
}

// Random forks, truncations and steps over many sequences: whatever happened, every sequence continues as if
// it had been alone.
TEST(CacheSharing, RandomHistoriesKeepSequencesApart) {
  nn::Model model = make_model(nn::testing::four_systems()[3].config);
  Engine engine(model, {.page_size = 8, .chunk = 13});
  std::mt19937 random(5);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n));
  };
  std::vector<Sequence> sequences;
  for (int round = 0; round < 60; ++round) {
    const std::int64_t action = below(4);
    if (sequences.empty() || action == 0) {
      sequences.push_back(engine.start());
      engine.prefill({{&sequences.back(), random_tokens(1 + below(40), static_cast<std::uint64_t>(round))}});
    } else if (action == 1) {
      const Sequence& from =
          sequences[static_cast<std::size_t>(below(static_cast<std::int64_t>(sequences.size())))];
      Sequence fork = from.fork(1 + below(from.length()));
      sequences.push_back(std::move(fork));
    } else if (action == 2) {
      Sequence& any = sequences[static_cast<std::size_t>(below(static_cast<std::int64_t>(sequences.size())))];
      any.truncate(1 + below(any.length()));
    } else {
      std::vector<Step> steps;
      for (Sequence& any : sequences) steps.push_back({&any, below(nn::testing::kVocabulary)});
      engine.decode(steps);
    }
    if (sequences.size() > 6) sequences.erase(sequences.begin() + below(6));
  }
  for (Sequence& sequence : sequences) {
    Tokens tokens = sequence.tokens();
    tokens.push_back(1);
    EXPECT_LT(max_difference(engine.decode({{&sequence, 1}})[0], full_logits(model, tokens)[-1]), 1e-11);
  }
  sequences.clear();
  EXPECT_EQ(pages_in_use(engine), 0);
}

}  // namespace
}  // namespace gsa::infer::testing
