// Prompts that begin alike: the texts of each alone, for less work and memory.

#include "infer/generate_shared.h"

#include <gtest/gtest.h>

#include "infer/engines.h"
#include "infer/text_model.h"
#include "model/errors.h"
#include "nn/torch.h"

namespace gsa::infer {
namespace {

using gsa::testing::expect_error;
using testing::bytes;
using testing::text_model;

// A haystack with a needle at a place of its own, as RULER's are, and two that share nothing.
std::vector<std::vector<std::int64_t>> needle_prompts() {
  const std::string hay =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
  const std::string long_hay = hay + hay + hay + hay;
  std::vector<std::vector<std::int64_t>> prompts;
  for (const std::size_t at : {300, 90, 200, 90}) {
    prompts.push_back(
        first_tokens(bytes(), long_hay.substr(0, at) + std::to_string(at) + long_hay.substr(at)));
  }
  prompts.push_back(first_tokens(bytes(), "another text"));
  prompts.push_back(first_tokens(bytes(), ""));
  return prompts;
}

TEST(GenerateShared, texts_are_those_of_each_prompt_alone) {
  const torch::NoGradGuard no_grad;
  for (const nn::System system : {nn::System::gsa, nn::System::standard}) {
    Engine engine(text_model(system), {.page_size = 16});
    const auto prompts = needle_prompts();
    const GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 12};
    std::int64_t all = 0, last_read = 0, last_total = 0;
    const GenerateResult together = generate_shared(engine, bytes(), prompts, options,
                                                    {.progress =
                                                         [&](std::int64_t read, std::int64_t total) {
                                                           EXPECT_GE(read, last_read);
                                                           last_read = read;
                                                           last_total = total;
                                                         },
                                                     .cancelled = nullptr});
    ASSERT_EQ(together.texts.size(), prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Sequence sequence = engine.start();
      const Prompt alone{&sequence, prompts[i]};
      const GenerateResult one = generate(engine, bytes(), {&alone, 1}, options);
      EXPECT_EQ(together.texts[i].prompt, i);
      EXPECT_EQ(together.texts[i].text, one.texts[0].text) << i;
      EXPECT_EQ(together.texts[i].ending, Ending::length);
      all += static_cast<std::int64_t>(prompts[i].size());
    }
    // The four haystacks have 300, 200 and (twice the same text) all but one token in common with another.
    const auto haystack = static_cast<std::int64_t>(prompts[1].size());
    EXPECT_EQ(together.times.prefill_tokens, last_total);
    EXPECT_EQ(last_read, last_total);
    EXPECT_LT(last_total, all - (haystack - 1) - 90 - 200);
    EXPECT_EQ(engine.cache_use().bytes, 0) << "sequences let go of their pages";
  }
}

// A prompt whose last token brings it to dense_below selects from its first token on, whoever reads it.
TEST(GenerateShared, the_whole_prompt_decides_how_it_is_read) {
  const torch::NoGradGuard no_grad;
  const auto prompts = needle_prompts();
  nn::ModelConfig config = text_model()->config();
  config.attention.dense_below = static_cast<std::int64_t>(prompts[0].size());
  torch::manual_seed(5);
  nn::Model model(config);
  model->to(torch::kFloat64);
  model->eval();
  const GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 1};
  Engine engine(model, {.page_size = 16, .count_keys = true});
  const std::vector<std::vector<std::int64_t>> one = {prompts[0]};
  generate_shared(engine, bytes(), one, options);
  const double together = engine.keys_per_query();
  engine.reset_counts();
  Sequence sequence = engine.start();
  const Prompt alone{&sequence, prompts[0]};
  generate(engine, bytes(), {&alone, 1}, options);
  EXPECT_EQ(together, engine.keys_per_query());
  EXPECT_LE(together, 24);
}

TEST(GenerateShared, room_is_counted_in_pages) {
  Engine engine(text_model(nn::System::gsa), {.page_size = 16, .cache_bytes = std::int64_t{4} << 20});
  const std::int64_t room = engine.cache().room();
  EXPECT_EQ(fitting_sequences(engine, room), 1);
  EXPECT_EQ(fitting_sequences(engine, room + 1), 0);
  const std::int64_t many = fitting_sequences(engine, 100);
  EXPECT_EQ(many, std::min<std::int64_t>(2048, room / 128));
  // So many do fit.
  Engine small(text_model(nn::System::gsa), {.page_size = 16, .cache_bytes = std::int64_t{1} << 20});
  const std::int64_t count = fitting_sequences(small, 200);
  ASSERT_GE(count, 1);
  std::vector<std::vector<std::int64_t>> prompts;
  for (std::int64_t i = 0; i < count; ++i) {
    prompts.push_back(
        first_tokens(bytes(), std::string(100, 'a') + std::to_string(1000 + i) + std::string(85, 'b')));
  }
  const auto result =
      generate_shared(small, bytes(), prompts, {.sampling = {.temperature = 0}, .max_tokens = 10});
  EXPECT_EQ(result.texts.size(), prompts.size());
}

TEST(GenerateShared, stops_where_it_is_told_to) {
  Engine engine(text_model(nn::System::gsa), {.page_size = 16, .chunk = 32});
  int asked = 0;
  const auto result = generate_shared(engine, bytes(), needle_prompts(), {.max_tokens = 5},
                                      {.progress = nullptr, .cancelled = [&] { return ++asked == 3; }});
  for (const GeneratedText& text : result.texts) EXPECT_EQ(text.ending, Ending::cancelled);
  const std::vector<std::vector<std::int64_t>> none(1);
  expect_error([&] { generate_shared(engine, bytes(), none, {}); }, {"prompts", "at least one token"});
  expect_error([&] { generate_shared(engine, bytes(), needle_prompts(), {.samples = 2}); }, {"samples"});
}

}  // namespace
}  // namespace gsa::infer
