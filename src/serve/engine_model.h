// The engine as the scheduler's model.
#pragma once

#include <vector>

#include "infer/engine.h"
#include "serve/core/model.h"

namespace gsa::serve {

class EngineModel : public Model {
 public:
  // The engine must outlive it. max_positions: of prompt and text together. On a GPU the whole cache is taken now: to
  // move it later would need room for it twice, and decode steps captured anew.
  EngineModel(infer::Engine& engine, std::int64_t max_positions);

  const ModelFacts& facts() const override { return facts_; }
  Sequence start() override { return engine_.start(); }
  std::int64_t free_pages() const override;
  bool sparse_at(std::int64_t length) const override;
  std::span<const float> prefill(std::span<const Chunk> chunks) override;
  std::span<const float> decode(std::span<const NextToken> steps) override;
  void share(std::int64_t count, const std::function<void(std::int64_t)>& work) override;
  infer::Look look(Sequence& sequence, std::int64_t token) override;

 private:
  template <class Work>
  auto told_briefly(const Work& work) const;
  bool device_answers() const;

  infer::Engine& engine_;
  ModelFacts facts_;
  at::Tensor rows_;  // that the last call has given
};

}  // namespace gsa::serve
