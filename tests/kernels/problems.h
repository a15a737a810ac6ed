// Seeded random problems for select, attend and indexer_kl, with their translation for the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/select/select.h"
#include "reference/reference.h"
#include "testing.h"

namespace gsa::testing {

// Exact arithmetic of the reference for a storage type, and the plain arithmetic it is compared with.
template <DType type>
struct Arithmetic {
  using Exact = double;
  using Plain = float;
};
template <>
struct Arithmetic<DType::f64> {
  using Exact = long double;
  using Plain = double;
};

// Calls body with the Arithmetic of the type.
template <typename Body>
void with_arithmetic(DType type, const Body& body) {
  if (type == DType::f64) {
    body(Arithmetic<DType::f64>());
  } else {
    body(Arithmetic<DType::f32>());
  }
}

// How the plain implementation keeps factors of its second products, on this backend.
template <typename Real>
reference::Kept<Real> kept_as(DType type) {
  if (!backend::rounds_weights(type)) return nullptr;
  if (type == DType::bf16) return [](Real x) { return static_cast<Real>(round_to(DType::bf16, x)); };
  if (type == DType::f16) return [](Real x) { return static_cast<Real>(round_to(DType::f16, x)); };
  return nullptr;
}

// Packed (varlen) sequences; the owner of what a Sequences points to.
struct Batch {
  std::vector<reference::Span> spans;

  Batch() = default;
  Batch(std::initializer_list<reference::Span> list) : spans(list) {}

  std::int64_t q_begin(std::size_t n) const { return total(n, &reference::Span::queries); }
  std::int64_t k_begin(std::size_t n) const { return total(n, &reference::Span::keys); }
  std::int64_t queries() const { return q_begin(spans.size()); }
  std::int64_t keys() const { return k_begin(spans.size()); }
  std::int64_t longest() const {
    std::int64_t result = 0;
    for (const reference::Span& span : spans) result = std::max(result, span.keys);
    return result;
  }

  // Valid until the next call. Null positions where all queries stand at the end of their keys.
  Sequences view() {
    q_begin_.clear(), k_begin_.clear(), position_.clear();
    bool at_end = true;
    for (std::size_t n = 0; n <= spans.size(); ++n) {
      q_begin_.push_back(q_begin(n));
      k_begin_.push_back(k_begin(n));
      if (n == spans.size()) break;
      position_.push_back(spans[n].first);
      at_end = at_end && spans[n].first == spans[n].keys - spans[n].queries;
    }
    return {static_cast<std::int64_t>(spans.size()), q_begin_.data(), k_begin_.data(),
            at_end ? nullptr : position_.data()};
  }

 private:
  std::int64_t total(std::size_t n, std::int64_t reference::Span::*member) const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += spans[i].*member;
    return sum;
  }
  std::vector<std::int64_t> q_begin_, k_begin_, position_;
};

inline Batch whole(std::int64_t length) { return {{length, length, 0}}; }

// ---- masks

struct MaskWords {
  std::int64_t words_per_query = 0;
  std::vector<std::uint32_t> words;

  MaskWords() = default;
  explicit MaskWords(const Batch& batch, std::int64_t extra = 0)
      : words_per_query(mask_words(batch.longest()) + extra),
        words(static_cast<std::size_t>(batch.queries() * words_per_query), 0) {}

  bool get(std::int64_t query, std::int64_t s) const {
    return (words[query * words_per_query + s / 32] >> (s % 32) & 1) != 0;
  }
  void set(std::int64_t query, std::int64_t s, bool on) {
    std::uint32_t& word = words[query * words_per_query + s / 32];
    word = on ? word | 1u << (s % 32) : word & ~(1u << (s % 32));
  }
  MaskWords slice(std::int64_t begin, std::int64_t end) const {
    MaskWords part;
    part.words_per_query = words_per_query;
    part.words.assign(words.begin() + begin * words_per_query, words.begin() + end * words_per_query);
    return part;
  }
  Mask view() { return {words.data(), words_per_query}; }
  ConstMask view() const { return {words.data(), words_per_query}; }
};

inline reference::Pairs pairs_of(const MaskWords& mask, const Batch& batch, std::size_t n) {
  const reference::Span& span = batch.spans[n];
  reference::Pairs pairs(span.queries * span.keys, 0);
  for (std::int64_t i = 0; i < span.queries; ++i) {
    for (std::int64_t s = 0; s < span.visible(i); ++s) {
      pairs[i * span.keys + s] = mask.get(batch.q_begin(n) + i, s);
    }
  }
  return pairs;
}

// Each visible key with the given probability; every query has at least one key, every seventh exactly one.
inline MaskWords random_mask(const Batch& batch, double density, Random& random) {
  MaskWords mask(batch, 1);
  for (std::size_t n = 0; n < batch.spans.size(); ++n) {
    for (std::int64_t i = 0; i < batch.spans[n].queries; ++i) {
      const std::int64_t query = batch.q_begin(n) + i, visible = batch.spans[n].visible(i);
      const std::int64_t sure = random.below(visible);
      for (std::int64_t s = 0; s < visible; ++s) {
        const bool drawn = query % 7 != 3 && random.uniform() < density;
        if (drawn || s == sure) mask.set(query, s, true);
      }
    }
  }
  return mask;
}

// ---- the indexer

struct IndexerProblem {
  DType dtype = DType::f32;
  Batch batch;
  std::int64_t heads = 0;
  std::int64_t size = 0;
  ScoreForm form = ScoreForm::sigmoid;
  Tensor q, k, w, bias;  // bias: [1, 1, heads], or no tokens for none
  double scale = 1;

  IndexerProblem() = default;
  // sharpness multiplies the queries: 1 gives logits of order 1.
  IndexerProblem(DType type, const Batch& sequences, std::int64_t index_heads, std::int64_t head_size,
                 ScoreForm score_form, Layout layout, std::uint64_t seed, double sharpness = 1)
      : dtype(type), batch(sequences), heads(index_heads), size(head_size), form(score_form) {
    Random random(seed);
    q = Tensor(dtype, batch.queries(), heads, size, layout).fill([&] { return sharpness * random.normal(); });
    k = Tensor(dtype, batch.keys(), 1, size, layout).fill([&] { return random.normal(); });
    w = Tensor(dtype, batch.queries(), heads, 1, layout);
    w.fill([&] { return form == ScoreForm::relu ? random.normal() : 0.02 + 0.96 * random.uniform(); });
    bias = Tensor(dtype, 1, 1, heads).fill([&] { return 0.5 * random.normal(); });
    scale = 1 / std::sqrt(static_cast<double>(size));
  }

  Indexer view() const {
    return {.heads = heads,
            .head_size = size,
            .q = q.rows(),
            .k = k.rows(),
            .w = w.rows(),
            .bias = bias.data(),
            .scale = scale,
            .form = form};
  }

  // Queries begin .. end - 1 of sequence n, with the first `keys` keys of it.
  IndexerProblem part(std::size_t n, std::int64_t begin, std::int64_t end, std::int64_t keys) const {
    IndexerProblem result(*this);
    const std::int64_t q0 = batch.q_begin(n), k0 = batch.k_begin(n);
    result.batch.spans = {{end - begin, keys, batch.spans[n].first + begin}};
    result.q = q.slice(q0 + begin, q0 + end);
    result.w = w.slice(q0 + begin, q0 + end);
    result.k = k.slice(k0, k0 + keys);
    return result;
  }

  template <typename Real>
  reference::IndexerInput<Real> input(std::size_t n) const {
    const std::int64_t q0 = batch.q_begin(n), q1 = batch.q_begin(n + 1);
    return {batch.spans[n],
            heads,
            size,
            q.values<Real>(q0, q1),
            k.values<Real>(batch.k_begin(n), batch.k_begin(n + 1)),
            w.values<Real>(q0, q1),
            bias.values<Real>(),
            scale,
            form};
  }
};

// What a score may differ by because the backend defines sigmoid so: weights are below 1.
inline double score_error(const IndexerProblem& problem) {
  return problem.form == ScoreForm::sigmoid
             ? static_cast<double>(problem.heads) * backend::traits().sigmoid_error
             : 0;
}

struct SelectResult {
  MaskWords mask;
  std::vector<std::int32_t> k_t, tie_cut;
  Tensor variance, threshold;
};

inline SelectResult run_select(IndexerProblem& problem, const Budget& budget, const Parallel& parallel) {
  const std::int64_t queries = problem.batch.queries();
  SelectResult result{MaskWords(problem.batch, 1), std::vector<std::int32_t>(queries, -7),
                      std::vector<std::int32_t>(queries, -7), Tensor::reals(problem.dtype, queries),
                      Tensor::reals(problem.dtype, queries)};
  std::fill(result.mask.words.begin(), result.mask.words.end(), 0xdeadbeefu);  // select() owes every word
  backend::select({.dtype = problem.dtype,
                   .indexer = problem.view(),
                   .budget = budget,
                   .sequences = problem.batch.view(),
                   .mask = result.mask.view(),
                   .k_t = result.k_t.data(),
                   .variance = result.variance.data(),
                   .threshold = result.threshold.data(),
                   .tie_cut = result.tie_cut.data()},
                  parallel);
  return result;
}

inline MaskWords run_select_mask(IndexerProblem& problem, const SelectResult& selection,
                                 const Parallel& parallel) {
  MaskWords mask(problem.batch, 1);
  std::fill(mask.words.begin(), mask.words.end(), 0xdeadbeefu);
  backend::select_mask({.dtype = problem.dtype,
                        .indexer = problem.view(),
                        .sequences = problem.batch.view(),
                        .threshold = selection.threshold.data(),
                        .tie_cut = selection.tie_cut.data(),
                        .mask = mask.view()},
                       parallel);
  return mask;
}

// [queries, 1, longest sequence + 3]
inline Tensor run_index_scores(IndexerProblem& problem, const Parallel& parallel) {
  Tensor scores(real_of(problem.dtype), problem.batch.queries(), 1, problem.batch.longest() + 3);
  backend::index_scores({.dtype = problem.dtype,
                         .indexer = problem.view(),
                         .sequences = problem.batch.view(),
                         .scores = scores.data(),
                         .scores_stride = scores.size()},
                        parallel);
  return scores;
}

// ---- attention

struct AttendProblem {
  DType dtype = DType::f32;
  Batch batch;
  std::int64_t heads = 0, kv_heads = 0, size = 0;
  Tensor q, k, v;
  MaskWords mask;
  bool dense = false;  // no mask: every visible key
  double scale = 1;

  AttendProblem() = default;
  // density of the mask; negative: dense. sharpness multiplies the queries.
  AttendProblem(DType type, const Batch& sequences, std::int64_t n_heads, std::int64_t n_kv_heads,
                std::int64_t head_size, double density, Layout layout, std::uint64_t seed,
                double sharpness = 1)
      : dtype(type),
        batch(sequences),
        heads(n_heads),
        kv_heads(n_kv_heads),
        size(head_size),
        dense(density < 0) {
    Random random(seed);
    q = Tensor(dtype, batch.queries(), heads, size, layout).fill([&] { return sharpness * random.normal(); });
    k = Tensor(dtype, batch.keys(), kv_heads, size, layout).fill([&] { return random.normal(); });
    v = Tensor(dtype, batch.keys(), kv_heads, size, layout).fill([&] { return random.normal(); });
    scale = 1 / std::sqrt(static_cast<double>(size));
    mask = random_mask(batch, density, random);
  }

  AttendShape shape() const { return {dtype, heads, kv_heads, size, scale}; }
  ConstMask mask_view() const { return dense ? ConstMask() : mask.view(); }

  AttendProblem part(std::size_t n, std::int64_t begin, std::int64_t end, std::int64_t keys) const {
    AttendProblem result(*this);
    const std::int64_t q0 = batch.q_begin(n), k0 = batch.k_begin(n);
    result.batch.spans = {{end - begin, keys, batch.spans[n].first + begin}};
    result.q = q.slice(q0 + begin, q0 + end);
    result.k = k.slice(k0, k0 + keys);
    result.v = v.slice(k0, k0 + keys);
    result.mask = mask.slice(q0 + begin, q0 + end);
    return result;
  }

  template <typename Real>
  reference::AttendInput<Real> input(std::size_t n) const {
    const std::int64_t k0 = batch.k_begin(n), k1 = batch.k_begin(n + 1);
    return {batch.spans[n],
            heads,
            kv_heads,
            size,
            scale,
            q.values<Real>(batch.q_begin(n), batch.q_begin(n + 1)),
            k.values<Real>(k0, k1),
            v.values<Real>(k0, k1),
            dense ? reference::every_visible(batch.spans[n]) : pairs_of(mask, batch, n)};
  }
  // For the plain implementation.
  template <typename Real>
  reference::AttendInput<Real> plain_input(std::size_t n) const {
    reference::AttendInput<Real> in = input<Real>(n);
    in.kept = kept_as<Real>(dtype);
    return in;
  }
};

struct AttendResult {
  Tensor out, lse;
};

inline AttendResult run_attend(AttendProblem& problem, const Parallel& parallel,
                               Layout layout = Layout::tokens_first) {
  AttendResult result{Tensor(problem.dtype, problem.batch.queries(), problem.heads, problem.size, layout),
                      Tensor(real_of(problem.dtype), problem.batch.queries(), problem.heads, 1)};
  backend::attend({.shape = problem.shape(),
                   .q = problem.q.rows(),
                   .k = problem.k.rows(),
                   .v = problem.v.rows(),
                   .mask = problem.mask_view(),
                   .sequences = problem.batch.view(),
                   .out = result.out.rows(),
                   .lse = result.lse.data()},
                  parallel);
  return result;
}

template <typename Real>
void append(std::vector<Real>& all, const std::vector<Real>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

inline const std::vector<DType>& every_dtype() { return backend::traits().dtypes; }
inline bool takes_double() {
  return std::find(every_dtype().begin(), every_dtype().end(), DType::f64) != every_dtype().end();
}

// Cases for every backend and, where it has matrix units, those for their shapes.
template <typename Case>
std::vector<Case> cases(std::vector<Case> all, const std::vector<Case>& of_matrix_units) {
  if (backend::traits().matrix_units) append(all, of_matrix_units);
  return all;
}

// Names of parameterised tests.
template <typename Case>
std::string case_name(const ::testing::TestParamInfo<std::tuple<DType, Case>>& parameter) {
  return concat(name_of(std::get<0>(parameter.param)), "_", std::get<1>(parameter.param).name);
}

// Runs a scope in one of the backend's ways, and afterwards in the first again.
class WithWay {
 public:
  explicit WithWay(const std::string& way) { backend::use_way(way); }
  ~WithWay() { backend::use_way(backend::ways().front()); }
  WithWay(const WithWay&) = delete;
  WithWay& operator=(const WithWay&) = delete;
};

template <typename Body>
void in_every_way(const Body& body) {
  for (const std::string& way : backend::ways()) {
    SCOPED_TRACE(way);
    const WithWay scope(way);
    body();
  }
}

// Where a chunk of about `step` queries that begins with query `begin` ends, such that cutting there changes
// no bit of an operator that treats tiles of queries together.
inline std::int64_t end_of_chunk(const reference::Span& span, std::int64_t begin, std::int64_t step) {
  const std::int64_t tile = backend::traits().tile, position = span.first + begin + step;
  return std::min((position + tile - 1) / tile * tile - span.first, span.queries);
}

// A test of every storage type in every way that the backend has on this machine.
class EveryWay : public ::testing::TestWithParam<std::tuple<DType, std::string>> {
 protected:
  EveryWay() : way_(std::get<1>(GetParam())) {}
  DType dtype() const { return std::get<0>(GetParam()); }

 private:
  WithWay way_;
};

inline auto every_way(const std::vector<DType>& dtypes = every_dtype()) {
  return ::testing::Combine(::testing::ValuesIn(dtypes), ::testing::ValuesIn(backend::ways()));
}

inline std::string way_name(const ::testing::TestParamInfo<EveryWay::ParamType>& parameter) {
  return concat(name_of(std::get<0>(parameter.param)), "_", std::get<1>(parameter.param));
}

}  // namespace gsa::testing
