#include "runner.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "dense.h"
#include "gsa/error.h"
#include "torch/ops.h"

namespace gsa::bench {

namespace {

using at::Tensor;

// Warming up on at most so many tokens runs every kernel that a longer sequence runs, and costs little.
constexpr std::int64_t kWarmTokens = 4096;

// Above so many seconds, select and attend are timed apart in one run only; the whole is timed as often as
// sample_count() says.
constexpr double kLongStages = 2;

Work work_of(const Case& what, double selected_pairs) {
  const double queries = static_cast<double>(what.queries), keys = static_cast<double>(what.keys);
  const double visible_pairs = queries * keys - queries * (queries - 1) / 2;
  Work work;
  work.bf16 = what.type == at::kBFloat16;
  work.select_flops = visible_pairs * kIndexerHeads * kIndexerHeadSize * 2;
  work.attend_flops = selected_pairs * kHeads * kHeadSize * 4;
  work.sigmoids = visible_pairs * kIndexerHeads;
  if (what.kind == Kind::train) work.backward_flops = 2.5 * work.attend_flops;
  if (what.kind == Kind::decode) {
    work.bytes = static_cast<double>(c10::elementSize(what.type)) *
                 (keys * kIndexerHeadSize + selected_pairs * kKvHeads * kHeadSize * 2);
  }
  return work;
}

double count_pairs(const ops::Selection& selection) {
  return static_cast<double>(selection.k_t.sum(at::kLong).item<std::int64_t>());
}

// The keys of inputs in pages of 64 positions, in random order.
ops::PagedCache in_pages(const Inputs& x) {
  constexpr std::int64_t kPage = 64;
  const std::int64_t keys = x.keys(), pages = keys / kPage;
  if (pages * kPage != keys) throw Error(concat("decode: ", keys, " keys do not fill pages of ", kPage));
  const Tensor order = at::randperm(pages, at::make_generator<at::CPUGeneratorImpl>(1), at::kLong);
  const auto scatter = [&](const Tensor& rows) {
    const Tensor cut = rows.squeeze(0).unflatten(0, {pages, kPage});
    return at::empty_like(cut).index_copy_(0, order, cut);
  };
  return {.k = scatter(x.k),
          .v = scatter(x.v),
          .index_k = scatter(x.indexer.k),
          .block_table = order.to(at::kInt).unsqueeze(0),
          .lengths = at::full({1}, keys, at::kInt),
          .max_length = keys,
          .index_k_scale = {}};
}

ops::SparseAttention whole_stage(const Inputs& x) {
  return ops::sparse_attend(x.q, x.k, x.v, x.indexer, x.budget);
}

// select and attend as operators of their own, `prepare` before each. Returns the pairs that were selected.
double time_stages(const Inputs& x, const std::function<void()>& prepare, std::vector<Timed>& stages) {
  stages = {{"select", {}}, {"attend", {}}};
  double pairs = 0;
  const auto sample = [&] {
    if (prepare) prepare();
    const Stopwatch select_watch;
    const ops::Selection selection = ops::select(x.indexer, x.budget);
    stages[0].samples.seconds.push_back(select_watch.seconds());
    if (prepare) prepare();
    const Stopwatch attend_watch;
    ops::attend(x.q, x.k, x.v, selection.mask);
    stages[1].samples.seconds.push_back(attend_watch.seconds());
    pairs = count_pairs(selection);
    return stages[0].samples.seconds.back() + stages[1].samples.seconds.back();
  };
  const double first = sample();
  if (first < kLongStages) {
    for (int i = 1; i < sample_count(first); ++i) sample();
  }
  return pairs;
}

struct Leaves {
  Tensor q, k, v;
};

Leaves leaves_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto leaf = [](const Tensor& x) { return x.detach().requires_grad_(); };
  return {leaf(q), leaf(k), leaf(v)};
}

// Forward and backward through autograd. forward maps leaves to an output.
struct TrainTimes {
  Samples forward, backward, total;
};

template <typename Forward>
TrainTimes time_training(const Leaves& x, const Tensor& dout, const Forward& forward, bool once) {
  TrainTimes times;
  const auto sample = [&] {
    const Stopwatch watch;
    const Tensor out = forward(x);
    const double forward_seconds = watch.seconds();
    torch::autograd::grad({out}, {x.q, x.k, x.v}, {dout});
    const double total = watch.seconds();
    times.forward.seconds.push_back(forward_seconds);
    times.backward.seconds.push_back(total - forward_seconds);
    times.total.seconds.push_back(total);
    return total;
  };
  if (once) {
    sample();
  } else {
    repeat(sample);
  }
  return times;
}

TrainTimes train_ours(const Inputs& inputs, bool once) {
  const Tensor dout = at::ones_like(inputs.q);
  return time_training(
      leaves_of(inputs.q, inputs.k, inputs.v), dout,
      [&inputs](const Leaves& x) {
        return ops::sparse_attend(x.q, x.k, x.v, inputs.indexer, inputs.budget).attention.out;
      },
      once);
}

TrainTimes train_dense(const DenseInputs& inputs, bool once) {
  const Tensor dout = at::ones_like(inputs.q);
  return time_training(
      leaves_of(inputs.q, inputs.k, inputs.v), dout,
      [](const Leaves& x) {
        return dense_causal({x.q, x.k, x.v});
      },
      once);
}

}  // namespace

double Work::floor_seconds(const Machine& machine) const {
  return flops() / (bf16 ? machine.gemm_bf16 : machine.gemm_fp32) + sigmoids / machine.sigmoids +
         bytes / machine.read_bytes;
}

const Timed* Result::fastest_torch() const {
  const auto faster = [](const Timed& a, const Timed& b) { return a.samples.median() < b.samples.median(); };
  const auto best = std::min_element(torch.begin(), torch.end(), faster);
  return best == torch.end() ? nullptr : &*best;
}

Result Runner::run(const Case& what) {
  switch (what.kind) {
    case Kind::prefill:
      return run_prefill(what);
    case Kind::train:
      return run_train(what);
    case Kind::decode:
      return run_decode(what);
    case Kind::stage:
      return run_stage(what);
  }
  throw Error(concat("case ", what.name, " is of no known kind"));
}

Result Runner::run_prefill(const Case& what) {
  const at::NoGradGuard no_grad;
  Result result;
  result.what = what;
  progress_.step("making inputs");
  const Inputs inputs = make_inputs(what.queries, what.keys, what.type, what.pattern);
  result.union_over_k = union_over_k(inputs);

  progress_.step("warming up");
  const Inputs start = first_tokens(inputs, kWarmTokens);
  ops::attend(start.q, start.k, start.v, ops::select(start.indexer, start.budget).mask);
  whole_stage(start);

  progress_.step("select, attend");
  result.work = work_of(what, time_stages(inputs, {}, result.stages));
  progress_.step("sparse_attend");
  result.total = measure([&] { whole_stage(inputs); });

  const TorchKey key{concat("prefill ", what.keys), what.type};
  if (!torch_times_.contains(key)) {
    progress_.step("torch's dense attention");
    dense_causal(dense_inputs(start));
    const DenseInputs dense = dense_inputs(inputs);
    torch_times_[key] = {{"causal", measure([&] { dense_causal(dense); })}};
  }
  result.torch = torch_times_[key];
  return result;
}

Result Runner::run_train(const Case& what) {
  Result result;
  result.what = what;
  progress_.step("making inputs");
  const Inputs inputs = make_inputs(what.queries, what.keys, what.type, what.pattern);
  result.union_over_k = union_over_k(inputs);
  {
    const at::NoGradGuard no_grad;
    result.work = work_of(what, count_pairs(ops::select(inputs.indexer, inputs.budget)));
  }

  progress_.step("warming up");
  const Inputs start = first_tokens(inputs, kWarmTokens);
  train_ours(start, /*once=*/true);
  progress_.step("sparse_attend, forward and backward");
  TrainTimes ours = train_ours(inputs, /*once=*/false);
  result.stages = {{"forward", ours.forward}, {"backward", ours.backward}};
  result.total = ours.total;

  progress_.step("torch's dense attention, forward and backward");
  train_dense(dense_inputs(start), /*once=*/true);
  const TrainTimes dense = train_dense(dense_inputs(inputs), /*once=*/false);
  result.torch = {{"causal", dense.total}};
  return result;
}

// Caches are flushed before each sample: between two steps of a model, its other layers and its weights have
// gone through them.
Result Runner::run_decode(const Case& what) {
  const at::NoGradGuard no_grad;
  Result result;
  result.what = what;
  progress_.step("making inputs");
  const Inputs inputs = make_inputs(what.queries, what.keys, what.type, what.pattern);
  const DenseInputs dense = dense_inputs(inputs);
  const CacheFlusher flush;

  progress_.step("select, attend");
  ops::attend(inputs.q, inputs.k, inputs.v, ops::select(inputs.indexer, inputs.budget).mask);
  result.work = work_of(what, time_stages(inputs, flush, result.stages));
  progress_.step("decode, from pages");
  ops::PagedCache cache = in_pages(inputs);
  const auto decode = [&] { ops::decode(inputs.q, cache, inputs.indexer, inputs.budget); };
  decode();
  result.total = measure(decode, flush);
  progress_.step("decode, every key");
  const auto every_key = [&] { ops::decode(inputs.q, cache, {}, inputs.budget); };
  every_key();
  result.stages.push_back({"every key", measure(every_key, flush)});
  progress_.step("decode, 8-bit index keys");
  const ops::QuantizedKeys bytes = ops::quantize_index_keys(*cache.index_k);
  cache.index_k = bytes.values;
  cache.index_k_scale = bytes.scale;
  decode();
  result.stages.push_back({"8-bit keys", measure(decode, flush)});

  progress_.step("torch's dense attention");
  dense_decode(dense);
  result.torch.push_back({"by itself", measure([&] { dense_decode(dense); }, flush)});
  progress_.step("torch's dense attention, heads of a group together");
  dense_decode_grouped(dense);
  result.torch.push_back({"heads of a group together", measure([&] { dense_decode_grouped(dense); }, flush)});
  return result;
}

// Dense attention is not run: sixteen times its time at 32K would be most of the benchmark.
Result Runner::run_stage(const Case& what) {
  const at::NoGradGuard no_grad;
  Result result;
  result.what = what;
  result.peak_is_of_run = !reset_peak_memory();
  progress_.step("making inputs");
  const Inputs inputs = make_inputs(what.queries, what.keys, what.type, what.pattern);
  result.union_over_k = union_over_k(inputs);
  progress_.step("warming up");
  whole_stage(first_tokens(inputs, kWarmTokens));

  progress_.step("sparse_attend");
  double pairs = 0;
  result.total = measure([&] { pairs = count_pairs(whole_stage(inputs).selection); });
  result.work = work_of(what, pairs);
  result.peak_bytes = peak_memory();
  return result;
}

}  // namespace gsa::bench
