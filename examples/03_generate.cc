// Generating text: a model folder, prefill of a prompt, decoding token by token, and a second text that
// shares the prompt's part of the cache. `gsa generate` does the same with more comfort
// (src/infer/generate.h).
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "data/tokenizer.h"
#include "infer/core/sampling.h"
#include "infer/core/text_stream.h"
#include "infer/engine.h"
#include "nn/model_io.h"

namespace {

using namespace gsa;

// A tiny model that has learned one sentence by heart, as a folder.
void make_model(const std::filesystem::path& folder, const data::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids{tokenizer.bos()};
  tokenizer.encode("the keeper of the lamp walks to the harbour at night, and the lamp is lit. ", ids);
  const at::Tensor text = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end())).unsqueeze(0);
  torch::manual_seed(0);
  nn::ModelConfig config = nn::ModelConfig::preset("tiny");
  config.layers = 2;
  config.attention.budget = {.mode = BudgetMode::inverse, .base = 24, .min = 8, .max = 48};
  nn::Model model(config);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(4e-3));
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    const auto loss = model->loss(text.slice(1, 0, -1), text.slice(1, 1), {.want_kl = true});
    (loss.sum / loss.count + nn::total(loss.kl)).backward();
    optimizer.step();
  }
  nn::save_model(model, folder);
  tokenizer.save(folder);
}

// Goes on from `logits` behind what `sequence` holds, until a full stop or 60 tokens.
void go_on(infer::Engine& engine, infer::Sequence& sequence, at::Tensor logits,
           const data::Tokenizer& tokenizer, const infer::SamplingOptions& options) {
  infer::Sampler sampler(options, tokenizer.vocab_size());
  infer::TextStream stream(tokenizer, {"."});
  for (int i = 0; i < 60 && !stream.stopped(); ++i) {
    const at::Tensor row = logits.to(torch::kCPU).contiguous();
    const infer::SampledToken token =
        sampler.sample({row.const_data_ptr<float>(), static_cast<std::size_t>(row.numel())});
    if (token.id == tokenizer.eos()) break;
    std::printf("%s", stream.push(token.id).c_str());
    logits = engine.decode({{&sequence, token.id}});
  }
  std::printf("%s\n", stream.finish().c_str());
}

}  // namespace

int main() {
  const auto folder = std::filesystem::temp_directory_path() / "gsa-example-generate";
  make_model(folder, *data::byte_tokenizer());

  // Load. On a GPU: {.dtype = torch::kBFloat16, .device = torch::kCUDA}.
  const auto tokenizer = data::load_tokenizer(folder);
  infer::Engine engine(nn::load_model(folder).model);

  // Prefill: the prompt's keys, gated values and indexer keys go into the cache.
  const std::string prompt = "the keeper of";
  std::vector<std::int32_t> ids{tokenizer->bos()};
  tokenizer->encode(prompt, ids);
  const std::vector<std::int64_t> tokens(ids.begin(), ids.end());
  infer::Sequence first = engine.start();
  const at::Tensor logits = engine.prefill({{&first, tokens}}).logits.clone();

  // Decode, twice: the fork shares the prompt's pages, and neither text sees the other.
  infer::Sequence second = first.fork();
  std::printf("most likely   %s", prompt.c_str());
  go_on(engine, first, logits, *tokenizer, {.temperature = 0});
  std::printf("warmer        %s", prompt.c_str());
  go_on(engine, second, logits, *tokenizer, {.temperature = 1.4, .top_p = 0.95, .seed = 2});

  const infer::CacheUse use = engine.cache_use();
  std::printf("cache         %lld tokens, %lld bytes each\n", static_cast<long long>(use.tokens),
              static_cast<long long>(use.bytes_per_token));
  std::filesystem::remove_all(folder);
  return 0;
}
