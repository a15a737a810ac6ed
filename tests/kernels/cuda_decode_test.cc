// decode: the selection of select(), attention and gate against the reference, pages, lengths that change
// under a captured graph, neighbours, NaN policy, arguments.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "cuda_call.h"
#include "decode_cases.h"
#include "kernels/common/cuda_check.h"
#include "kernels/decode/decode_cuda.h"

namespace gsa::testing {
namespace {

using decoding::Case;
using decoding::GateKind;
using decoding::in_bytes;
using decoding::Positions;
using decoding::Result;

const std::vector<Case> kCases = {
    {"one_key", {1}},
    {"lengths", {1, 2, 7, 8, 9, 63, 64, 65, 127, 1023, 1024, 1025, 2500}},
    {"page_8", {1500, 300}, 1, 8},
    {"page_1024", {2500, 1024}, 1, 1024},
    {"queries_2", {1100, 2, 700}, 2},
    {"queries_4_page_16", {1030, 4, 2049}, 4, 16},
    {"queries_16", {1030, 16}, 16},
    {"group_16", {700}, 1, 64, 16, 1, 128},
    {"group_20", {700}, 1, 64, 40, 2, 64},
    {"size_256", {700, 300}, 1, 64, 4, 2, 256},
    {"size_96", {700, 300}, 1, 64, 4, 4, 96},
    {"odd_sizes", {700, 301}, 1, 64, 6, 2, 33, 3, 21},
    {"gaps", {700, 301}, 2, 32, 6, 2, 40, 5, 24, {}, GateKind::head_wise, ScoreForm::sigmoid, Layout::gaps},
    {"index_heads_1", {900}, 1, 64, 4, 2, 64, 1, 32},
    {"index_heads_12_size_128", {900, 1200}, 3, 64, 4, 2, 64, 12, 128},
    {"index_heads_128_size_256", {400}, 1, 64, 4, 2, 64, 128, 256},
    {"relu",
     {1500, 100},
     2,
     64,
     4,
     2,
     64,
     4,
     64,
     {BudgetMode::fixed, 40, 8, 300},
     GateKind::none,
     ScoreForm::relu},
    {"inverse", {1500, 900, 200}, 2, 64, 4, 2, 64, 4, 64, {BudgetMode::inverse, 150, 8, 600, 0.01}},
    {"proportional", {1500, 900, 200}, 1, 64, 4, 2, 64, 4, 64, {BudgetMode::proportional, 150, 8, 600, 0.03}},
    in_bytes({"bytes", {1, 2, 9, 64, 1023, 1025, 2500}}),
    in_bytes({"bytes_page_8", {1500, 300}, 1, 8}),
    in_bytes({"bytes_queries_4", {1030, 4, 2049}, 4, 256}),
    in_bytes({"bytes_heads_12_size_128", {900, 1200}, 3, 64, 4, 2, 64, 12, 128}),
    in_bytes({"bytes_heads_1_size_32", {900}, 1, 64, 4, 2, 64, 1, 32}),
    in_bytes({"bytes_odd_sizes", {700, 301}, 1, 64, 6, 2, 33, 3, 21}),
    in_bytes({"bytes_relu", {1500, 100}, 2, 64, 4, 2, 64, 4, 64, {}, GateKind::none, ScoreForm::relu}),
    {"dense", {1300, 1, 512, 513}, 1, 64, 4, 2, 64, 0},
    {"dense_queries_3", {1300, 3, 512, 515}, 3, 16, 8, 1, 128, 0},
    {"dense_long", {70000, 17000, 16384, 65536}, 1, 64, 2, 1, 16, 0},  // splits of every size
};

struct Problem {
  Case c;
  DType dtype;
  IndexerProblem indexer;
  AttendProblem attention;
  Tensor gate;
  // The cache: as many pages as the sequences need and two more, in random order; unused rows are NaN.
  Tensor k, v, index_k;
  std::vector<std::int8_t> index_bytes;  // [rows of the cache, index_size]
  std::vector<float> index_scale;        // [rows of the cache]
  std::vector<std::int32_t> table, lengths;
  std::int64_t blocks = 0, max_length = 0;

  Problem(DType type, const Case& what, std::uint64_t seed = 1) : c(what), dtype(type) {
    Batch batch;
    std::int64_t pages = 2;
    for (const std::int64_t length : c.lengths) {
      batch.spans.push_back({c.queries, length, length - c.queries});
      lengths.push_back(static_cast<std::int32_t>(length));
      pages += c.blocks_of(length);
    }
    indexer = IndexerProblem(dtype, batch, std::max<std::int64_t>(c.index_heads, 1), c.index_size, c.form,
                             c.layout, seed);
    attention = AttendProblem(dtype, batch, c.heads, c.kv_heads, c.size, c.index_heads == 0 ? -1 : 0.5,
                              c.layout, seed + 1);
    Random random(seed + 2);
    gate = Tensor(dtype, batch.queries(), c.heads, c.gate == GateKind::head_wise ? 1 : c.size, c.layout);
    gate.fill([&] { return 2 * random.normal(); });
    if (c.bytes) make_exact(random);
    max_length = batch.longest();
    blocks = c.blocks_of(max_length) + 1;

    table = random_table(c, pages, blocks, random);
    k = Tensor(dtype, pages * c.page_size, c.kv_heads, c.size, c.layout);
    v = k;
    index_k = Tensor(dtype, pages * c.page_size, 1, c.index_size, c.layout);
    index_bytes.assign(static_cast<std::size_t>(pages * c.page_size * c.index_size), 77);
    index_scale.assign(static_cast<std::size_t>(pages * c.page_size), static_cast<float>(kNan));
    write_cache();
  }

  // Numbers with so few digits that neither products nor sums of the indexer round, whatever their order and
  // type: scores of keys in bytes are then those of the same keys in the storage type, bit for bit.
  void make_exact(Random& random) {
    indexer.q.fill([&] { return static_cast<double>(random.below(65) - 32) / 8; });
    for (std::int64_t row = 0; row < indexer.k.tokens(); ++row) {
      for (std::int64_t d = 0; d < c.index_size; ++d) {
        indexer.k.set(row, 0, d, static_cast<double>(random.below(127) - 63) * scale_of(row));
      }
    }
  }
  static double scale_of(std::int64_t row) { return (row % 2 == 0 ? 1.0 : 3.0) / (row % 3 == 0 ? 64 : 128); }

  // The row of the cache where position s of sequence n lies.
  std::int64_t row_of(std::size_t n, std::int64_t s) const { return row_in(table, blocks, c, n, s); }

  void write_cache() {
    for (std::size_t n = 0; n < c.lengths.size(); ++n) {
      for (std::int64_t s = 0; s < c.lengths[n]; ++s) {
        const std::int64_t from = attention.batch.k_begin(n) + s, to = row_of(n, s);
        index_scale[static_cast<std::size_t>(to)] = static_cast<float>(scale_of(from));
        for (std::int64_t d = 0; d < c.index_size; ++d) {
          const double key = indexer.k.at(from, 0, d);
          index_k.set(to, 0, d, key);
          if (c.bytes) {
            index_bytes[static_cast<std::size_t>(to * c.index_size + d)] =
                static_cast<std::int8_t>(std::lround(key / scale_of(from)));
          }
        }
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          for (std::int64_t d = 0; d < c.size; ++d) {
            k.set(to, h, d, attention.k.at(from, h, d));
            v.set(to, h, d, attention.v.at(from, h, d));
          }
        }
      }
    }
  }

  // Arguments with `sequences` sequences from number `first` on, in device memory of `call`.
  DecodeArgs arguments(CudaCall& call, Result& result, std::int64_t first, std::int64_t sequences) const {
    const std::int64_t rows = sequences * c.queries, begin = first * c.queries;
    const std::int64_t cache = k.tokens();
    const auto from = [&](const Tensor& x) {
      ConstRows r = x.rows();
      r.data = static_cast<const char*>(r.data) +
               begin * r.token_stride * static_cast<std::int64_t>(size_of(dtype));
      return call.rows(r, rows, x.heads(), x.size(), dtype);
    };
    DecodeArgs a;
    a.shape = attention.shape();
    a.sequences = sequences;
    a.queries = c.queries;
    a.q = from(attention.q);
    a.k = pages_of(call.rows(k.rows(), cache, c.kv_heads, c.size, dtype), c);
    a.v = pages_of(call.rows(v.rows(), cache, c.kv_heads, c.size, dtype), c);
    if (c.index_heads > 0) {
      a.index_heads = c.index_heads;
      a.index_head_size = c.index_size;
      a.index_q = from(indexer.q);
      a.index_w = from(indexer.w);
      if (c.bytes) {
        a.index_k = pages_of({call.array(index_bytes.data(), cache * c.index_size), c.index_size, 0}, c);
        a.index_k_scale = call.array(index_scale.data(), cache);
        a.index_k_scale_stride = c.page_size;
      } else {
        a.index_k = pages_of(call.rows(index_k.rows(), cache, 1, c.index_size, dtype), c);
      }
      a.index_bias =
          call.input(indexer.bias.data(), c.index_heads * static_cast<std::int64_t>(size_of(dtype)));
      a.index_scale = indexer.scale;
      a.form = c.form;
      a.budget = c.budget;
    }
    a.pages.page_size = c.page_size;
    a.pages.block_table = call.array(&table[static_cast<std::size_t>(first * blocks)], sequences * blocks);
    a.pages.blocks = blocks;
    a.pages.length = call.array(&lengths[static_cast<std::size_t>(first)], sequences);
    a.max_length = max_length;
    if (c.gate != GateKind::none) a.gate = from(gate);
    a.head_wise = c.gate == GateKind::head_wise;
    result.out = Tensor(dtype, rows, c.heads, c.size, c.layout);
    result.lse = Tensor(DType::f32, rows, c.heads, 1);
    result.k_t.assign(static_cast<std::size_t>(rows), -7);
    a.out = call.rows(result.out.rows(), rows, c.heads, c.size, dtype);
    a.lse = call.output(result.lse.data(), rows * c.heads * 4);
    a.k_t = call.array(result.k_t.data(), rows);
    return a;
  }

  Result run(std::int64_t first = 0, std::int64_t sequences = -1, cuda::DecodeWork* work = nullptr) const {
    if (sequences < 0) sequences = static_cast<std::int64_t>(c.lengths.size());
    CudaCall call;
    Result result;
    const DecodeArgs args = arguments(call, result, first, sequences);
    cuda::DecodeWork* const counted = call.array(work, 1);
    call.run([&](const cuda::Context& context) { cuda::decode(args, context, counted); });
    return result;
  }

  std::int64_t sequences() const { return static_cast<std::int64_t>(c.lengths.size()); }

  Result lead(Positions& to) const {
    CudaCall call;
    Result result;
    DecodeArgs args = arguments(call, result, 0, sequences());
    args.selected_width = to.width;
    args.selected_out = call.array(to.at.data(), static_cast<std::int64_t>(to.at.size()));
    call.run([&](const cuda::Context& context) { cuda::decode(args, context); });
    return result;
  }

  DecodeArgs following(CudaCall& call, Result& result, const Positions& from) const {
    DecodeArgs args = arguments(call, result, 0, sequences());
    args.index_heads = 0;
    args.index_q = args.index_w = {};
    args.index_k = {};
    args.index_bias = args.index_k_scale = nullptr;
    args.selected_width = from.width;
    args.selected = call.array(from.at.data(), static_cast<std::int64_t>(from.at.size()));
    args.selected_k = call.array(from.k_t.data(), static_cast<std::int64_t>(from.k_t.size()));
    return args;
  }
  Result follow(const Positions& from) const {
    CudaCall call;
    Result result;
    const DecodeArgs args = following(call, result, from);
    call.run([&](const cuda::Context& context) { cuda::decode(args, context); });
    return result;
  }

  // attend with attention.mask, and the gate.
  void expect_attention(const Result& result) const;
};

void Problem::expect_attention(const Result& result) const {
  std::vector<double> exact, exact_lse;
  std::vector<float> plain, plain_lse;
  const auto gated = [&](auto& out, std::size_t n) {
    using Real = typename std::decay_t<decltype(out)>::value_type;
    if (c.gate == GateKind::none) return out;
    const std::int64_t begin = static_cast<std::int64_t>(n) * c.queries;
    return reference::gate(out, gate.values<Real>(begin, begin + c.queries));
  };
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (std::size_t n = 0; n < c.lengths.size(); ++n) {
    const auto e = reference::attend(attention.input<double>(n));
    const auto p = reference::attend(attention.plain_input<float>(n));
    append(exact, gated(e.out, n));
    append(plain, gated(p.out, n));
    append(exact_lse, e.lse);
    append(plain_lse, p.lse);
  }
  EXPECT_TRUE(accurate(result.out, exact, plain, forward_tolerance(dtype, 2)));
  EXPECT_TRUE(accurate(result.lse, exact_lse, plain_lse, forward_tolerance(DType::f32, 4)));
  EXPECT_TRUE(result.out.gaps_intact());
}

Case small(const char* name) {
  return {name, {1500, 700, 65}, 2, 16, 4, 2, 64, 4, 64, {BudgetMode::inverse, 150, 8, 600, 0.01}};
}

class Decode : public ::testing::TestWithParam<std::tuple<DType, std::string, Case>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const Case& what() const { return std::get<2>(GetParam()); }

 private:
  WithWay way_{std::get<1>(GetParam())};
};

TEST_P(Decode, AgreesWithSelectAndReference) {
  Problem problem(dtype(), what());
  const Result result = problem.run();
  if (what().index_heads > 0) {
    SelectResult selection = run_select(problem.indexer, what().budget, serial());
    EXPECT_EQ(result.k_t, selection.k_t);
    problem.attention.mask = selection.mask;
  }
  problem.expect_attention(result);
}

// A layer that shares the selection of another one: with what that one has it gives the same bits, and it attends to
// what it is given, whoever chose it.
TEST_P(Decode, Followers) {
  Problem problem(dtype(), what());
  if (what().index_heads > 0) decoding::expect_followers_to_have_the_bits_of_their_leader(problem);
  const Positions given = decoding::every_third(what());
  problem.attention.dense = false;
  problem.attention.mask = MaskWords(problem.attention.batch);
  for (std::int64_t row = 0; row < decoding::rows_of(what()); ++row) {
    for (std::int64_t j = 0; j < given.k_t[static_cast<std::size_t>(row)]; ++j) {
      problem.attention.mask.set(row, given.at[static_cast<std::size_t>(row * given.width + j)], true);
    }
  }
  const Result result = problem.follow(given);
  EXPECT_EQ(result.k_t, given.k_t);
  problem.expect_attention(result);
}

TEST_P(Decode, NeitherNeighboursNorTheBoundMatter) {
  Problem problem(dtype(), what());
  const Result all = problem.run();
  for (std::size_t n = 0; n < what().lengths.size() && n < 4; ++n) {
    problem.max_length = what().lengths[n] + static_cast<std::int64_t>(n % 2);
    const Result alone = problem.run(static_cast<std::int64_t>(n), 1);
    const std::int64_t begin = static_cast<std::int64_t>(n) * what().queries, end = begin + what().queries;
    EXPECT_TRUE(same_bits(alone.out, all.out.slice(begin, end))) << n;
    EXPECT_TRUE(same_bits(alone.lse, all.lse.slice(begin, end))) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Decode,
                         ::testing::Combine(::testing::Values(DType::bf16, DType::f16),
                                            ::testing::ValuesIn(backend::ways()),
                                            ::testing::ValuesIn(kCases)),
                         [](const auto& parameter) {
                           return concat(name_of(std::get<0>(parameter.param)), "_",
                                         std::get<1>(parameter.param), "_",
                                         std::get<2>(parameter.param).name);
                         });

TEST(DecodeRules, WaysAgree) {
  for (const Case& c : {small("ways"), in_bytes(small("ways"))}) {
    const Problem problem(DType::bf16, c);
    const Result expected = problem.run();
    for (const std::string& way : backend::ways()) {
      const WithWay with(way);
      EXPECT_TRUE(same(problem.run(), expected)) << way << c.bytes;
    }
  }
}

TEST(DecodeRules, RepeatsItself) {
  const Problem problem(DType::bf16, small("repeats"));
  const Result expected = problem.run();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(same(problem.run(), expected)) << i;
}

// A graph that was captured with some lengths replays with others.
TEST(DecodeRules, GraphHoldsForOtherLengths) {
  for (const std::int64_t index_heads : {4, 0}) {
    Case c = small("graph");
    c.index_heads = index_heads;
    Problem problem(DType::bf16, c);
    for (const std::vector<std::int32_t>& lengths :
         {std::vector<std::int32_t>{1400, 3, 64}, {2, 700, 0}, {1500, 650, 65}}) {
      CudaCall call;
      Result replayed;
      const DecodeArgs args = problem.arguments(call, replayed, 0, 3);
      call.run([&](const cuda::Context& context) {
        const cudaStream_t stream = cuda::stream_of(context.stream);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        cuda::decode(args, context);
        cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
        cuda::check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        cuda::check(cudaGraphLaunch(executable, stream), "launch");
        std::int32_t* const there = const_cast<std::int32_t*>(args.pages.length);
        const auto upload = [&](const std::vector<std::int32_t>& values) {
          cuda::check(cudaMemcpyAsync(there, values.data(), 12, cudaMemcpyHostToDevice, stream), "upload");
        };
        upload(lengths);
        cuda::check(cudaGraphLaunch(executable, stream), "launch");
        upload(problem.lengths);  // inputs are checked to be as they were
        cuda::check(cudaStreamSynchronize(stream), "graph");
        cuda::check(cudaGraphExecDestroy(executable), "destroy");
        cuda::check(cudaGraphDestroy(graph), "destroy");
      });
      Problem direct = problem;
      direct.lengths = lengths;
      EXPECT_TRUE(same(replayed, direct.run()));
    }
  }
}

// A leader and its follower in one graph, replayed with other lengths: the follower reads what the leader has
// written in the same replay.
TEST(DecodeRules, AGraphOfAGroupHoldsForOtherLengths) {
  const Problem problem(DType::bf16, small("group_graph"));
  const std::int64_t width = std::min(problem.max_length, problem.c.budget.max);
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{1400, 3, 64}, {2, 700, 0}, {1500, 650, 65}}) {
    CudaCall call;
    Result leader, follower;
    Positions positions(rows_of(problem.c), width);
    DecodeArgs leads = problem.arguments(call, leader, 0, 3);
    leads.selected_width = width;
    leads.selected_out = call.array(positions.at.data(), static_cast<std::int64_t>(positions.at.size()));
    DecodeArgs follows = problem.following(call, follower, positions);
    follows.selected = leads.selected_out;
    follows.selected_k = leads.k_t;
    follows.pages.length = leads.pages.length;
    call.run([&](const cuda::Context& context) {
      const cudaStream_t stream = cuda::stream_of(context.stream);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      cuda::decode(leads, context);
      cuda::decode(follows, context);
      cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
      cuda::check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      cuda::check(cudaGraphLaunch(executable, stream), "launch");
      std::int32_t* const there = const_cast<std::int32_t*>(leads.pages.length);
      const auto upload = [&](const std::vector<std::int32_t>& values) {
        cuda::check(cudaMemcpyAsync(there, values.data(), 12, cudaMemcpyHostToDevice, stream), "upload");
      };
      upload(lengths);
      cuda::check(cudaGraphLaunch(executable, stream), "launch");
      upload(problem.lengths);  // inputs are checked to be as they were
      cuda::check(cudaStreamSynchronize(stream), "graph");
      cuda::check(cudaGraphExecDestroy(executable), "destroy");
      cuda::check(cudaGraphDestroy(graph), "destroy");
    });
    Problem direct = problem;
    direct.lengths = lengths;
    const Result expected = direct.run();
    EXPECT_TRUE(same(leader, expected));
    EXPECT_TRUE(same(follower, expected));
  }
}

TEST(DecodeRules, TheBudgetMayLieOnTheDevice) {
  Problem problem(DType::bf16, small("device_budget"));
  const Result expected = problem.run();
  problem.c.budget.mean_variance = 7;  // not what counts
  CudaCall call;
  Result result;
  DecodeArgs args = problem.arguments(call, result, 0, 3);
  const double mean_variance = small("").budget.mean_variance;
  args.budget.device_mean_variance = call.array(&mean_variance, 1);
  call.run([&](const cuda::Context& context) { cuda::decode(args, context); });
  EXPECT_TRUE(same(result, expected));
}

void expect_nan(const Result& result, std::int64_t row) {
  EXPECT_EQ(result.k_t[static_cast<std::size_t>(row)], 0) << row;
  for (std::int64_t h = 0; h < result.out.heads(); ++h) {
    EXPECT_TRUE(std::isnan(result.lse.at(row, h))) << row;
    for (std::int64_t d = 0; d < result.out.size(); ++d)
      EXPECT_TRUE(std::isnan(result.out.at(row, h, d))) << row;
  }
}

TEST(DecodeRules, QueriesWithoutKeysAreNan) {
  for (const std::int64_t index_heads : {4, 0}) {
    Case c = small("few");
    c.index_heads = index_heads;
    Problem problem(DType::bf16, c);
    problem.lengths = {0, 1, 1600};  // none; less than queries; more than max_length
    const Result result = problem.run();
    for (const std::int64_t row : {0, 1, 2, 4, 5}) expect_nan(result, row);
    EXPECT_EQ(result.k_t[3], 1);
    EXPECT_FALSE(std::isnan(result.out.at(3)));
  }
}

TEST(DecodeRules, AScoreThatIsNotFiniteMakesNan) {
  for (const ScoreForm form : {ScoreForm::sigmoid, ScoreForm::relu}) {
    Case c = small("bad");
    c.form = form;
    Problem problem(DType::bf16, c);
    const Result before = problem.run();
    problem.index_k.set(problem.row_of(1, 699), 0, 3, kNan);  // the last key: only the second query sees it
    const Result after = problem.run();
    expect_nan(after, 3);
    for (const std::int64_t row : {0, 1, 2, 4, 5}) {
      EXPECT_TRUE(same_bits(after.out.slice(row, row + 1), before.out.slice(row, row + 1))) << row;
    }
  }
}

TEST(DecodeRules, AScaleThatIsNotFiniteMakesNan) {
  Problem problem(DType::bf16, in_bytes(small("bad_scale")));
  const Result before = problem.run();
  problem.index_scale[static_cast<std::size_t>(problem.row_of(1, 699))] = static_cast<float>(kNan);
  const Result after = problem.run();
  expect_nan(after, 3);
  for (const std::int64_t row : {0, 1, 2, 4, 5}) {
    EXPECT_TRUE(same_bits(after.out.slice(row, row + 1), before.out.slice(row, row + 1))) << row;
  }
}

TEST(DecodeRules, NanGoesNowhereFromKeysThatNobodySelects) {
  Case c = small("clean");
  c.queries = 1;
  Problem problem(DType::bf16, c);
  const Result before = problem.run();
  const SelectResult selection = run_select(problem.indexer, c.budget, serial());
  for (std::size_t n = 0; n < c.lengths.size(); ++n) {
    for (std::int64_t s = 0; s < c.lengths[n]; ++s) {
      if (selection.mask.get(static_cast<std::int64_t>(n), s)) continue;
      problem.k.fill_token(problem.row_of(n, s), kNan);
      problem.v.fill_token(problem.row_of(n, s), kNan);
    }
  }
  EXPECT_TRUE(same(problem.run(), before));
}

// One segment whose sums are tiny beside those of the others: adding them rounds, so the order shows.
TEST(DecodeRules, SumsOfUnlikeSizesAreAddedAsSelectDoes) {
  for (const std::int64_t odd : {3, 700, 1023}) {
    Case c = small("unlike");
    c.lengths = {5000};
    Problem problem(DType::bf16, c);
    for (std::int64_t s = 0; s < 1024; ++s) {
      for (std::int64_t d = 0; d < c.index_size; ++d) {
        problem.indexer.k.set(s, 0, d, s == odd && d == 1 ? 0.50390625 : 0.5);
      }
    }
    problem.write_cache();
    in_every_way(
        [&] { EXPECT_EQ(problem.run().k_t, run_select(problem.indexer, c.budget, serial()).k_t) << odd; });
  }
}

TEST(DecodeRules, TiesGoToTheLowerPosition) {
  for (const std::int64_t length : {300, 3000}) {
    Case c = small("ties");
    c.lengths = {length};
    c.budget = {BudgetMode::fixed, 100, 8, 300};
    Problem problem(DType::bf16, c);
    problem.indexer.k.fill([] { return 0.5; });
    problem.write_cache();
    problem.attention.mask = run_select(problem.indexer, c.budget, serial()).mask;
    for (std::int64_t s = 0; s < length; ++s) EXPECT_EQ(problem.attention.mask.get(0, s), s < 100) << s;
    const auto exact = reference::attend(problem.attention.input<double>(0));
    const auto plain = reference::attend(problem.attention.plain_input<float>(0));
    EXPECT_TRUE(accurate(problem.run().lse, exact.lse, plain.lse, forward_tolerance(DType::f32, 4)));
  }
}

// What a trained model asks for: the keys right before the query, all of them, and few others.
TEST(DecodeRules, RecentKeysTakeNoSearchOverAll) {
  Case c = small("recent");
  c.queries = 1;
  c.lengths = {131072, 30000, 4000};
  c.page_size = 64;
  c.budget = {BudgetMode::fixed, 2048, 1, 2048};
  Problem problem(DType::bf16, c);
  problem.indexer.q.fill([] { return 0.25; });
  for (std::size_t n = 0; n < c.lengths.size(); ++n) {
    for (std::int64_t s = c.lengths[n] - 2200; s < c.lengths[n]; ++s) {
      for (std::int64_t d = 0; d < c.index_size; ++d) {
        problem.indexer.k.set(problem.indexer.batch.k_begin(n) + s, 0, d, 0.5 + 1.0 / 64 * ((s * 7 + d) % 5));
      }
    }
  }
  problem.write_cache();
  cuda::DecodeWork work;
  const Result result = problem.run(0, -1, &work);
  EXPECT_EQ(result.k_t, run_select(problem.indexer, c.budget, serial()).k_t);
  if (cuda::current_device().hopper()) {
    EXPECT_EQ(work.searched, 0u);
  }
}

TEST(DecodeRules, RefusesWhatCannotBe) {
  const Problem problem(DType::bf16, small("refuses"));
  const auto complains = [&](const char* argument, const std::function<void(DecodeArgs&)>& spoil) {
    CudaCall call;
    Result result;
    DecodeArgs args = problem.arguments(call, result, 0, 3);
    spoil(args);
    return refuses("decode", argument,
                   [&] { call.run([&](const cuda::Context& context) { cuda::decode(args, context); }); });
  };
  EXPECT_TRUE(complains("shape.dtype", [](DecodeArgs& a) { a.shape.dtype = DType::f32; }));
  EXPECT_TRUE(complains("heads", [](DecodeArgs& a) { a.shape.heads = 5; }));
  EXPECT_TRUE(complains("head_size", [](DecodeArgs& a) { a.shape.head_size = 257; }));
  EXPECT_TRUE(complains("queries", [](DecodeArgs& a) { a.queries = 17; }));
  EXPECT_TRUE(complains("sequences", [](DecodeArgs& a) { a.sequences = -1; }));
  EXPECT_TRUE(complains("pages.page_size", [](DecodeArgs& a) { a.pages.page_size = 24; }));
  EXPECT_TRUE(complains("pages.page_size", [](DecodeArgs& a) { a.pages.page_size = 4; }));
  EXPECT_TRUE(complains("pages.blocks", [](DecodeArgs& a) { a.max_length = 5000; }));
  EXPECT_TRUE(complains("pages.length", [](DecodeArgs& a) { a.pages.length = nullptr; }));
  EXPECT_TRUE(complains("pages.block_table", [](DecodeArgs& a) { a.pages.block_table = nullptr; }));
  EXPECT_TRUE(complains("max_length", [](DecodeArgs& a) { a.max_length = 0; }));
  EXPECT_TRUE(complains("index_heads", [](DecodeArgs& a) { a.index_heads = 129; }));
  EXPECT_TRUE(complains("index_head_size", [](DecodeArgs& a) { a.index_head_size = 0; }));
  EXPECT_TRUE(complains("index_k", [](DecodeArgs& a) { a.index_k.data = nullptr; }));
  EXPECT_TRUE(complains("budget.min", [](DecodeArgs& a) { a.budget.min = 9999; }));
  EXPECT_TRUE(complains("q", [](DecodeArgs& a) { a.q.data = nullptr; }));
  EXPECT_TRUE(complains("out", [](DecodeArgs& a) { a.out.data = nullptr; }));
  std::vector<std::int32_t> positions(6 * 600);
  EXPECT_TRUE(complains("selected_width", [&](DecodeArgs& a) {
    a.selected_out = positions.data();
    a.selected_width = 599;
  }));
  EXPECT_TRUE(complains("selected", [&](DecodeArgs& a) {
    a.selected = positions.data();
    a.selected_width = 600;
  }));
}

}  // namespace
}  // namespace gsa::testing
