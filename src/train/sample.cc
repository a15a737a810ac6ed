#include "train/sample.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

namespace gsa::train {

std::string sample_text(nn::Model& model, const data::Tokenizer& tokenizer, const SampleOptions& options,
                        torch::Device device) {
  constexpr double kTemperature = 0.8;
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int32_t> ids = data::prompt_ids(tokenizer, options.prompt);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::vector<std::int64_t> wide(ids.begin(), ids.end());
    const at::Tensor input = torch::tensor(wide, torch::kInt64).to(device).unsqueeze(0);
    const nn::ModelForwardOptions forward{.phase = options.phase};
    const at::Tensor hidden =
        model->forward(input, forward).hidden.select(1, static_cast<std::int64_t>(wide.size()) - 1);
    // A vocabulary may be larger than its tokenizer's: what has no text is never drawn.
    const at::Tensor logits = model->logits(hidden).to(torch::kCPU, torch::kFloat64).squeeze(0);
    const at::Tensor known = logits.slice(0, 0, tokenizer.vocab_size());
    const std::int64_t drawn =
        torch::softmax(known / kTemperature, 0).multinomial(1, false, generator).item<std::int64_t>();
    if (drawn == tokenizer.eos()) break;
    ids.push_back(static_cast<std::int32_t>(drawn));
  }
  return tokenizer.decode(ids);
}

}  // namespace gsa::train
