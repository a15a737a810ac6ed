
#include "infer/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "gsa/error.h"
#include "infer/text_model.h"
#include "model/errors.h"
#include "nn/torch.h"

namespace gsa::infer {
namespace {

using gsa::testing::expect_error;
using testing::bytes;
using testing::text_model;

struct Batch {
  std::deque<Sequence> sequences;
  std::vector<std::vector<std::int64_t>> tokens;
  std::vector<Prompt> prompts;

  Batch(Engine& engine, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) tokens.push_back(first_tokens(bytes(), text));
    for (const auto& ids : tokens) prompts.push_back({&sequences.emplace_back(engine.start()), ids});
  }
};

GenerateResult run(Engine& engine, const std::vector<std::string>& texts, const GenerateOptions& options,
                   const GenerateEvents& events = {}) {
  Batch batch(engine, texts);
  return generate(engine, bytes(), batch.prompts, options, events);
}

std::vector<std::int32_t> ids_of(const GeneratedText& text) {
  std::vector<std::int32_t> ids;
  for (const SampledToken& token : text.tokens) ids.push_back(token.id);
  return ids;
}

const std::vector<std::string> kPrompts = {"the keeper of the lamp", "a",
                                           "walks to the harbour and back again", ""};

class GenerateSystems : public ::testing::TestWithParam<nn::System> {};

// Greedy text against a whole forward pass of the model for every token.
TEST_P(GenerateSystems, GoesOnAsTheModelDoes) {
  const torch::NoGradGuard no_grad;
  nn::Model model = text_model(GetParam());
  Engine engine(model);
  const auto result = run(engine, kPrompts, {.sampling = {.temperature = 0}, .max_tokens = 20});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    std::vector<std::int64_t> tokens = first_tokens(bytes(), kPrompts[i]);
    std::vector<std::int32_t> wanted;
    while (wanted.size() < 20) {
      const at::Tensor hidden = model->forward(torch::tensor(tokens).unsqueeze(0)).hidden.select(1, -1);
      const auto id = model->logits(hidden).argmax(-1).item<std::int64_t>();
      if (id == bytes().eos()) break;
      wanted.push_back(static_cast<std::int32_t>(id));
      tokens.push_back(id);
    }
    EXPECT_EQ(ids_of(result.texts[i]), wanted) << kPrompts[i];
    EXPECT_EQ(result.texts[i].prompt, i);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GenerateSystems,
                         ::testing::Values(nn::System::standard, nn::System::sparse_only,
                                           nn::System::gated_only, nn::System::gsa),
                         [](const auto& test) {
                           return "system" + std::to_string(static_cast<int>(test.param));
                         });

TEST(Generate, NeighboursInTheBatchChangeNothing) {
  Engine engine(text_model());
  const GenerateOptions options{.sampling = {.temperature = 0.9, .top_p = 0.9, .seed = 3}, .max_tokens = 30};
  const auto together = run(engine, kPrompts, options);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    const auto alone = run(engine, {kPrompts[i]}, options);
    EXPECT_EQ(ids_of(together.texts[i]), ids_of(alone.texts[0])) << kPrompts[i];
    EXPECT_EQ(together.texts[i].text, alone.texts[0].text);
  }
  GenerateOptions other = options;
  other.sampling.seed = 4;
  EXPECT_NE(ids_of(run(engine, {kPrompts[0]}, other).texts[0]), ids_of(together.texts[0]));
}

TEST(Generate, SamplesAreStreamsOfTheirOwn) {
  Engine engine(text_model());
  GenerateOptions options{.sampling = {.seed = 8}, .max_tokens = 25, .samples = 3};
  const auto result = run(engine, {kPrompts[0], kPrompts[2]}, options);
  ASSERT_EQ(result.texts.size(), 6u);
  std::set<std::vector<std::int32_t>> different;
  for (const GeneratedText& text : result.texts) {
    different.insert(ids_of(text));
    GenerateOptions single = options;
    single.samples = 1;
    single.sampling.stream = static_cast<std::uint64_t>(text.sample);
    EXPECT_EQ(ids_of(text), ids_of(run(engine, {kPrompts[text.prompt * 2]}, single).texts[0]));
  }
  EXPECT_EQ(different.size(), 6u);
  // The prompts' pages were shared, and all of them are free again.
  EXPECT_EQ(engine.cache_use().bytes, 0);
}

// So many that their tokens are drawn on several threads.
TEST(Generate, ManySamplesAreDrawnAsFewAre) {
  Engine engine(text_model(), {.dtype = torch::kDouble});
  GenerateOptions options{
      .sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 5}, .max_tokens = 6, .samples = 140};
  const GenerateResult many = run(engine, {"the keeper"}, options);
  options.samples = 3;
  const GenerateResult few = run(engine, {"the keeper"}, options);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(ids_of(many.texts[i]), ids_of(few.texts[i])) << i;
}

TEST(Generate, TextsEndAsTheyShould) {
  Engine engine(text_model());
  const GenerateOptions greedy{.sampling = {.temperature = 0}, .max_tokens = 40};
  // A random model may end its text at any token: what is compared with is its text past all marks.
  GenerateOptions unending = greedy;
  unending.ignore_eos = true;
  const GeneratedText whole = run(engine, {kPrompts[0]}, unending).texts[0];
  ASSERT_EQ(whole.tokens.size(), 40u);
  EXPECT_EQ(whole.ending, Ending::length);
  EXPECT_STREQ(name_of(whole.ending), "length");

  // A stop string: some characters of the text itself.
  GenerateOptions options = unending;
  const std::size_t middle = whole.text.size() / 2;
  options.stops = {"never there", whole.text.substr(middle, 3)};
  const GeneratedText stopped = run(engine, {kPrompts[0]}, options).texts[0];
  EXPECT_EQ(stopped.ending, Ending::stop);
  EXPECT_EQ(stopped.stop, options.stops[1]);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(options.stops[1])));
  EXPECT_LT(stopped.tokens.size(), 40u);

  // The mark that ends a text: whichever token comes eleventh.
  nn::Model model = text_model();
  nn::ModelConfig config = model->config();
  config.eos_ids = {whole.tokens[10].id};
  nn::Model ending(config);
  {
    const torch::NoGradGuard no_grad;
    const auto source = model->named_parameters();
    for (auto& item : ending->to(torch::kFloat64), ending->named_parameters())
      item.value().copy_(source[item.key()]);
  }
  ending->eval();
  Engine other(ending);
  const GeneratedText ended = run(other, {kPrompts[0]}, greedy).texts[0];
  EXPECT_EQ(ended.ending, Ending::eos);
  EXPECT_LE(ended.tokens.size(), 10u);
  EXPECT_TRUE(std::none_of(ended.tokens.begin(), ended.tokens.end(),
                           [&](const SampledToken& token) { return token.id == config.eos_ids[0]; }));
  EXPECT_EQ(ids_of(run(other, {kPrompts[0]}, unending).texts[0]), ids_of(whole));

  options = unending;
  options.max_tokens = 0;
  const auto nothing = run(engine, {kPrompts[0]}, options);
  EXPECT_TRUE(nothing.texts[0].tokens.empty());
  EXPECT_EQ(nothing.texts[0].ending, Ending::length);
  EXPECT_EQ(nothing.times.prefill_tokens, 23);
}

TEST(Generate, TheSequenceCanGoOn) {
  Engine engine(text_model());
  const GenerateOptions greedy{.sampling = {.temperature = 0}, .max_tokens = 30};
  const auto whole = ids_of(run(engine, {kPrompts[0]}, greedy).texts[0]);
  GenerateOptions part = greedy;
  part.max_tokens = 12;
  Batch batch(engine, {kPrompts[0]});
  auto ids = ids_of(generate(engine, bytes(), batch.prompts, part).texts[0]);
  EXPECT_EQ(batch.sequences[0].length(), 23 + 11);
  const std::vector<std::int64_t> last = {ids.back()};
  part.max_tokens = 18;
  const Prompt again[] = {{&batch.sequences[0], last}};
  const auto rest = ids_of(generate(engine, bytes(), again, part).texts[0]);
  ids.insert(ids.end(), rest.begin(), rest.end());
  EXPECT_EQ(ids, whole);
}

TEST(Generate, EventsTellWhatHappens) {
  Engine engine(text_model(), {.chunk = 16});
  std::vector<std::int64_t> done;
  std::vector<std::string> streamed(2);
  std::vector<std::size_t> finished;
  GenerateEvents events;
  events.prefill = [&](std::int64_t tokens, std::int64_t total) {
    done.push_back(tokens);
    EXPECT_EQ(total, 23 + 36);
  };
  events.text = [&](const GeneratedText& text, const std::string& more) {
    EXPECT_FALSE(more.empty());
    streamed[text.prompt] += more;
    EXPECT_EQ(streamed[text.prompt], text.text);
  };
  events.finished = [&](const GeneratedText& text) { finished.push_back(text.prompt); };
  const auto result = run(engine, {kPrompts[0], kPrompts[2]}, {.max_tokens = 15, .ignore_eos = true}, events);
  EXPECT_EQ(done.size(), 4u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 59);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(streamed[i], result.texts[i].text);
  EXPECT_EQ(finished, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(result.times.prefill_tokens, 59);
  EXPECT_EQ(result.times.decode_tokens, 2 * 14);
  EXPECT_GT(result.times.prefill_seconds, 0);
  EXPECT_GT(result.times.decode_seconds, 0);
}

TEST(Generate, CanBeCancelled) {
  Engine engine(text_model(), {.chunk = 8});
  const GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 20, .ignore_eos = true};
  const auto whole = run(engine, {kPrompts[0]}, options);
  for (const std::int64_t after : {1, 7}) {  // passes: three of prefill, then steps
    std::int64_t asked = 0;
    GenerateEvents events;
    events.cancelled = [&] { return ++asked > after; };
    const auto result = run(engine, {kPrompts[0]}, options, events);
    EXPECT_EQ(result.texts[0].ending, Ending::cancelled);
    const auto ids = ids_of(result.texts[0]);
    if (after == 1) {
      EXPECT_TRUE(ids.empty());
      EXPECT_LT(result.times.prefill_tokens, 23);
    } else {
      EXPECT_GE(ids.size(), 3u);
      EXPECT_LT(ids.size(), 10u);
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), ids_of(whole.texts[0]).begin()));
    }
  }
}

TEST(Generate, PenaltyKnowsThePrompt) {
  Engine engine(text_model());
  const auto result = run(engine, {kPrompts[0]},
                          {.sampling = {.temperature = 0, .repetition_penalty = 1e6}, .max_tokens = 20});
  std::set<std::int64_t> seen;
  for (const std::int64_t id : first_tokens(bytes(), kPrompts[0])) seen.insert(id);
  for (const SampledToken& token : result.texts[0].tokens)
    EXPECT_TRUE(seen.insert(token.id).second) << token.id;
}

TEST(Generate, WhatCannotBeIsRefusedBeforeAnyWork) {
  nn::Model model = text_model();
  Engine engine(model, {.cache_bytes = 1 << 20});
  GenerateEvents events;
  events.prefill = [](std::int64_t, std::int64_t) { ADD_FAILURE() << "work was done"; };
  expect_error([&] { run(engine, {kPrompts[0]}, {.max_tokens = 100000}, events); }, {"tokens", "iB"});
  expect_error([&] { run(engine, {kPrompts[0]}, {.max_tokens = 60, .samples = 1000}, events); },
               {"tokens", "iB"});
  expect_error([&] { run(engine, {kPrompts[0]}, {.max_tokens = -1}, events); }, {"max_tokens", "-1"});
  expect_error([&] { run(engine, {kPrompts[0]}, {.samples = 0}, events); }, {"samples", "got 0"});
  expect_error([&] { run(engine, {kPrompts[0]}, {.stops = {""}}, events); }, {"stop", "empty"});
  expect_error([&] { run(engine, {kPrompts[0]}, {.sampling = {.top_p = 2}}, events); }, {"top_p"});
  Sequence sequence = engine.start();
  const Prompt empty[] = {{&sequence, {}}};
  expect_error([&] { generate(engine, bytes(), empty, {}, events); }, {"prompts", "empty"});
  EXPECT_EQ(engine.cache_use().bytes, 0);
}

}  // namespace
}  // namespace gsa::infer
