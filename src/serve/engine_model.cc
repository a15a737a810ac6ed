#include "serve/engine_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string>

#include "gsa/error.h"
#include "infer/share_rows.h"
#include "kernels/decode/decode.h"

namespace gsa::serve {
namespace {

using at::Tensor;

Tensor on_cpu(const Tensor& rows) { return rows.to(at::kCPU, at::kFloat).contiguous(); }

}  // namespace

// After an illegal access, say, every call of CUDA fails until the process ends; after a pass without memory the next
// one may do. What came tells the two apart less surely than to ask for something small.
bool EngineModel::device_answers() const {
  const at::Device device = engine_.options().device;
  if (!device.is_cuda()) return true;
  try {
    return at::ones({1}, at::TensorOptions().device(device)).item<float>() == 1;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// What torch throws carries its stack of calls, which says nothing to a client.
template <class Work>
auto EngineModel::told_briefly(const Work& work) const {
  std::string message;
  try {
    return work();
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
    message.resize(std::min(message.size(), message.find('\n')));
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (!device_answers()) throw ModelLost(message);
  throw Error(message);
}

EngineModel::EngineModel(infer::Engine& engine, std::int64_t max_positions) : engine_(engine) {
  const infer::CacheShape& shape = engine.cache().shape();
  facts_ = {.vocab_size = engine.config().vocab_size,
            .max_positions = std::min(max_positions, kMaxDecodeLength),
            .page_size = shape.page_size,
            .capacity = engine.cache().room() / shape.page_size,
            .max_chunk = *engine.options().chunk,
            .max_batch = kMaxDecodeSequences,
            .layers = shape.layers,
            .bytes_per_page = shape.bytes_per_page(),
            .ends = engine.config().eos_ids};
  if (engine.options().device.is_cuda()) {
    Sequence all = engine.start();
    const infer::Cache::Growth growth{&all, engine.cache().room()};
    engine.cache().reserve({&growth, 1});
  }
}

std::int64_t EngineModel::free_pages() const { return engine_.cache().room() / facts_.page_size; }

bool EngineModel::sparse_at(std::int64_t length) const {
  return engine_.options().phase == nn::Phase::sparse && length >= engine_.config().attention.dense_below;
}

std::span<const float> EngineModel::prefill(std::span<const Chunk> chunks) {
  return told_briefly([&] {
    // Those that want every row are read apart; the rows then go back into the order of the chunks.
    std::vector<Tensor> rows(chunks.size());
    for (const bool all : {false, true}) {
      std::vector<infer::Prompt> prompts;
      for (const Chunk& chunk : chunks) {
        if (chunk.all_rows == all) prompts.push_back({chunk.sequence, chunk.tokens, chunk.prompt_length});
      }
      if (prompts.empty()) continue;
      const Tensor logits = on_cpu(engine_.prefill(prompts, {.all_logits = all}).logits);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        if (chunks[i].all_rows != all) continue;
        const std::int64_t count = all ? static_cast<std::int64_t>(chunks[i].tokens.size()) : 1;
        rows[i] = logits.narrow(0, row, count);
        row += count;
      }
    }
    rows_ = rows.size() == 1 ? rows[0] : at::cat(rows);
    return std::span(rows_.const_data_ptr<float>(), static_cast<std::size_t>(rows_.numel()));
  });
}

std::span<const float> EngineModel::decode(std::span<const NextToken> steps) {
  return told_briefly([&] {
    std::vector<infer::Step> own;
    for (const NextToken& step : steps) own.push_back({step.sequence, step.token});
    rows_ = on_cpu(engine_.decode(own));
    return std::span(rows_.const_data_ptr<float>(), static_cast<std::size_t>(rows_.numel()));
  });
}

void EngineModel::share(std::int64_t count, const std::function<void(std::int64_t)>& work) {
  infer::share_rows(count, facts_.vocab_size, work);
}

infer::Look EngineModel::look(Sequence& sequence, std::int64_t token) {
  return told_briefly([&] { return engine_.look(sequence, token); });
}

}  // namespace gsa::serve
