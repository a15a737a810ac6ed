// A tiny language model: train it on a line of text for a few steps, save it in the shape of Hugging Face,
// load it, and let it go on with the text.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "nn/model_io.h"

namespace {

at::Tensor bytes_of(const std::string& text) {
  const auto unsigned_bytes = torch::from_blob(const_cast<char*>(text.data()),
                                               {static_cast<std::int64_t>(text.size())}, torch::kUInt8);
  return unsigned_bytes.to(torch::kInt64).unsqueeze(0);
}

// The most likely continuation, one byte at a time.
std::string go_on(gsa::nn::Model& model, std::string text, int bytes) {
  torch::NoGradGuard no_grad;
  for (int i = 0; i < bytes; ++i) {
    const at::Tensor hidden = model->forward(bytes_of(text)).hidden;
    text += static_cast<char>(model->logits(hidden.select(1, -1)).argmax(-1).item<std::int64_t>());
  }
  return text;
}

}  // namespace

int main() {
  torch::manual_seed(0);
  gsa::nn::ModelConfig config = gsa::nn::ModelConfig::preset("tiny");
  config.layers = 2;
  config.attention.budget = {.mode = gsa::BudgetMode::inverse, .base = 24, .min = 8, .max = 48};
  gsa::nn::Model model(config);
  std::printf("%s\n", config.describe().c_str());

  const at::Tensor text = bytes_of(
      "the indexer reads every key and keeps a few; the query attends to those few and the gate decides how "
      "much of them is "
      "heard. ");
  const at::Tensor tokens = text.slice(1, 0, -1), targets = text.slice(1, 1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step <= 40; ++step) {
    optimizer.zero_grad();
    const auto loss = model->loss(tokens, targets, {.want_kl = true});
    const at::Tensor mean = loss.sum / loss.count, kl = gsa::nn::total(loss.kl);
    (mean + kl).backward();  // two losses that reach two sets of parameters
    optimizer.step();
    if (step % 10 == 0) {
      std::printf("step %2d   loss %.3f   indexer KL %.4f\n", step, mean.item<double>(), kl.item<double>());
    }
  }

  const auto folder = std::filesystem::temp_directory_path() / "gsa-example-model";
  save_model(model, folder);
  gsa::nn::Model loaded = gsa::nn::load_model(folder).model;
  loaded->eval();
  std::printf("\nsaved, loaded, and going on with 'the indexer reads':\n  %s\n",
              go_on(loaded, "the indexer reads", 40).c_str());
  std::filesystem::remove_all(folder);
  return 0;
}
