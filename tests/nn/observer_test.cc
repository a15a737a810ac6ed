// The observer of a layer's attention: what it is shown is what the layer worked on, and looking changes
// nothing.
#include <gtest/gtest.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "small_models.h"

namespace gsa::nn {
namespace {

using at::Tensor;
using testing::all_variants;
using testing::make_model;
using testing::NamedConfig;
using testing::random_tokens;
using testing::small_model;

std::vector<AttentionView> views_of(Model& model, const Tensor& tokens, ModelForwardOptions options,
                                    Tensor* hidden = nullptr) {
  std::vector<AttentionView> views;
  options.observe_attention = [&](std::int64_t layer, const AttentionView& view) {
    EXPECT_EQ(layer, static_cast<std::int64_t>(views.size()));
    views.push_back(view);
  };
  const Tensor result = model->forward(tokens, options).hidden;
  if (hidden != nullptr) *hidden = result;
  return views;
}

std::set<std::string> operators_called(const std::function<void()>& body) {
  static thread_local std::set<std::string> names;
  names.clear();
  const auto note = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    names.insert(function.name());
    return nullptr;
  };
  const at::CallbackHandle handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note));
  body();
  at::removeCallback(handle);
  return names;
}

class Observer : public ::testing::TestWithParam<NamedConfig> {};
INSTANTIATE_TEST_SUITE_P(Variants, Observer, ::testing::ValuesIn(all_variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST_P(Observer, SeesWhatAttentionWorkedOn) {
  Model model = make_model(small_model(GetParam().config));
  model->eval();
  const Tensor tokens = random_tokens({50}), starts = torch::tensor({0, 31, 50}, torch::kLong);
  Tensor hidden;
  const auto views = views_of(model, tokens, {.cu_seqlens = starts}, &hidden);
  EXPECT_TRUE(hidden.equal(model->forward(tokens, {.cu_seqlens = starts}).hidden));
  ASSERT_EQ(views.size(), 3u);
  const AttentionConfig& config = GetParam().config;
  for (const AttentionView& view : views) {
    EXPECT_TRUE(view.starts.equal(starts));
    EXPECT_FALSE(view.q.requires_grad() || view.k.requires_grad() || view.v.requires_grad());
    EXPECT_EQ(view.value_gate.defined(), config.value_gate != GateKind::none);
    EXPECT_EQ(view.output_gate.defined(), config.output_gate != GateKind::none);
    EXPECT_EQ(view.indexer.has_value(), config.sparse);
    EXPECT_EQ(view.k_t.defined(), config.sparse);
    // The same attention once more, from the view alone.
    const ops::Layout layout{starts, starts, std::nullopt};
    if (config.sparse) {
      const auto [attention, selection] =
          ops::sparse_attend(view.q, view.k, view.v, *view.indexer, *view.budget, {}, layout);
      for (std::int64_t n = 0; n < 2; ++n) {  // dense_below may send a sequence the dense way
        const std::int64_t begin = starts[n].item<std::int64_t>(), end = starts[n + 1].item<std::int64_t>();
        const auto rows = [&](const Tensor& x) { return x.slice(0, begin, end); };
        const bool dense = end - begin < config.dense_below;
        const Tensor visible = torch::arange(1, end - begin + 1, torch::kInt);
        EXPECT_TRUE(rows(view.k_t).equal(dense ? visible : rows(selection.k_t)));
        if (dense) {
          EXPECT_TRUE(rows(view.threshold).isneginf().all().item<bool>());
          EXPECT_TRUE(rows(view.tie_cut).equal(visible - 1));
          continue;
        }
        EXPECT_TRUE(rows(view.lse).equal(rows(attention.lse)));
        EXPECT_TRUE(rows(view.threshold).equal(rows(selection.threshold)));
        EXPECT_TRUE(rows(view.tie_cut).equal(rows(selection.tie_cut)));
      }
    } else {
      EXPECT_TRUE(view.lse.equal(ops::attend(view.q, view.k, view.v, {}, {}, layout).lse));
    }
  }
}

TEST(ObserverPhases, ShowAnIndexerWhereItIsAtWork) {
  Model model = make_model(small_model(testing::small(AttentionConfig::gsa())));
  model->eval();
  const Tensor tokens = random_tokens({2, 20});
  const AttentionView dense = views_of(model, tokens, {.phase = Phase::dense}).front();
  EXPECT_FALSE(dense.indexer || dense.budget || dense.k_t.defined());
  EXPECT_TRUE(dense.starts.equal(torch::tensor({0, 20, 40}, torch::kLong)));
  const AttentionView warmup = views_of(model, tokens, {.phase = Phase::warmup}).front();
  EXPECT_TRUE(warmup.indexer && warmup.budget);
  EXPECT_FALSE(warmup.k_t.defined());
  EXPECT_TRUE(warmup.lse.equal(dense.lse));
}

// A short sequence's mask is kept and handed to the indexer's loss, a long one's is rebuilt from thresholds,
// which here is the check: the loss over what the view says was selected.
TEST(ObserverTraining, TheIndexersLossRunsOverWhatWasSelected) {
  for (const char* name : {"gsa", "temperature_fixed"}) {
    const auto variants = all_variants();
    const auto named = std::find_if(variants.begin(), variants.end(),
                                    [&](const NamedConfig& variant) { return variant.name == name; });
    for (const std::int64_t length : {40, 4200}) {  // 2 words of a mask a query, 132; q: 32
      SCOPED_TRACE(std::string(name) + " " + std::to_string(length));
      GatedSparseAttention layer = testing::make_layer(named->config, torch::kFloat32);
      AttentionView view;
      const Tensor h = testing::random_input({2, length, named->config.d_model}, torch::kFloat32);
      ForwardResult result;
      const std::set<std::string> called = operators_called([&] {
        result =
            layer->forward(h, {.want_kl = true, .observe = [&](const AttentionView& seen) { view = seen; }});
      });
      EXPECT_EQ(called.count("gsa::sparse_attend_with_mask"), length == 40 ? 1 : 0);
      const ops::Layout layout{view.starts, view.starts, std::nullopt};
      const Tensor mask = ops::select_mask(*view.indexer, view.threshold, view.tie_cut, layout);
      const Tensor loss =
          ops::indexer_kl(view.q, view.k, view.lse, layer->indexer->temperature().apply(*view.indexer), mask,
                          {}, {}, {}, layout)
              .loss;
      EXPECT_TRUE(result.kl->equal(loss.sum() / static_cast<double>(2 * length)));
      EXPECT_GT(result.kl->item<float>(), 0);
    }
  }
}

TEST(ObserverTraining, IsNotCalledByTheBackwardPass) {
  Model model = make_model(small_model(testing::small(AttentionConfig::gsa())));
  int calls = 0;
  ModelForwardOptions options{.checkpoint_activations = true};
  options.observe_attention = [&](std::int64_t, const AttentionView&) { ++calls; };
  const Tensor tokens = random_tokens({1, 20});
  model->loss(tokens, testing::next_tokens(tokens), options).sum.backward();
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace gsa::nn
