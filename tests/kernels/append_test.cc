// append on the CPU: every part of a row against plain arithmetic, nothing else written, bad arguments named.
// What it shares with other operators, and the GPU, is in tests/torch/test_append.py.
#include "kernels/append/append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gsa/error.h"

namespace gsa {
namespace {

// One problem in float, with guard rows around what is written.
struct Problem {
  AppendArgs args;
  std::vector<float> x, cos, sin, index_cos, index_sin, k, v, index_k, q, index_q, index_w, scale;
  std::vector<std::int8_t> bytes;
  std::vector<std::int64_t> slots;

  Problem(std::int64_t tokens, std::int64_t gate, bool int8) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto numbers = [&](std::int64_t count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = normal(random);
      return values;
    };
    args.tokens = tokens;
    args.q_heads = 4;
    args.kv_heads = 2;
    args.head_size = 6;
    args.pairs = 2;
    args.index_heads = 3;
    args.index_head_size = 5;
    args.index_pairs = 1;
    args.value_gate = gate;
    args.index_w_column = 8 * 6 + 4 * 5 + gate + 7;  // seven columns of something else before it
    args.x_stride = args.index_w_column + 3 + 2;
    args.rows = 40;
    x = numbers(tokens * args.x_stride);
    cos = numbers(tokens * 2);
    sin = numbers(tokens * 2);
    index_cos = numbers(tokens);
    index_sin = numbers(tokens);
    for (std::int64_t t = 0; t < tokens; ++t) slots.push_back((t * 7 + 3) % args.rows);
    k.assign(40 * 12, 99);
    v.assign(40 * 12, 99);
    index_k.assign(40 * 5, 99);
    bytes.assign(40 * 5, 99);
    scale.assign(40, 99);
    q.assign(static_cast<std::size_t>(tokens * 24), 99);
    index_q.assign(static_cast<std::size_t>(tokens * 15), 99);
    index_w.assign(static_cast<std::size_t>(tokens * 3), 99);
    args.x = x.data();
    args.cos = cos.data();
    args.sin = sin.data();
    args.index_cos = index_cos.data();
    args.index_sin = index_sin.data();
    args.slots = slots.data();
    args.k = k.data();
    args.v = v.data();
    args.index_k = int8 ? static_cast<void*>(bytes.data()) : index_k.data();
    args.index_scale = int8 ? scale.data() : nullptr;
    args.q = q.data();
    args.index_q = index_q.data();
    args.index_w = index_w.data();
  }

  // Element i of the head that begins at this column, rotated.
  double rotated(std::int64_t t, std::int64_t column, std::int64_t i, std::int64_t pairs,
                 const std::vector<float>& c, const std::vector<float>& s) const {
    const float* head = x.data() + t * args.x_stride + column;
    if (i >= 2 * pairs) return head[i];
    const std::int64_t p = i % pairs;
    const double a = head[p], b = head[pairs + p];
    const double cp = c[static_cast<std::size_t>(t * pairs + p)],
                 sp = s[static_cast<std::size_t>(t * pairs + p)];
    return i < pairs ? a * cp - b * sp : b * cp + a * sp;
  }
  double column(std::int64_t t, std::int64_t i) const {
    return x[static_cast<std::size_t>(t * args.x_stride + i)];
  }
};

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
float at(const std::vector<float>& values, std::int64_t i) { return values[static_cast<std::size_t>(i)]; }

TEST(Append, EveryPartGoesToItsPlace) {
  for (const std::int64_t gate : {0, 2, 12}) {
    for (const bool sigmoid_w : {true, false}) {
      Problem p(9, gate, false);
      p.args.sigmoid_w = sigmoid_w;
      append(p.args, serial());
      for (std::int64_t t = 0; t < 9; ++t) {
        const std::int64_t slot = p.slots[static_cast<std::size_t>(t)];
        for (std::int64_t i = 0; i < 24; ++i) {
          ASSERT_NEAR(at(p.q, t * 24 + i), p.rotated(t, i / 6 * 6, i % 6, 2, p.cos, p.sin), 1e-5);
        }
        for (std::int64_t i = 0; i < 12; ++i) {
          ASSERT_NEAR(at(p.k, slot * 12 + i), p.rotated(t, 24 + i / 6 * 6, i % 6, 2, p.cos, p.sin), 1e-5);
          const std::int64_t place = 68 + (gate == 12 ? i : i / 6);
          const double open = gate == 0 ? 1 : sigmoid(p.column(t, place));
          ASSERT_NEAR(at(p.v, slot * 12 + i), p.column(t, 36 + i) * open, 1e-5);
        }
        for (std::int64_t i = 0; i < 15; ++i) {
          ASSERT_NEAR(at(p.index_q, t * 15 + i),
                      p.rotated(t, 48 + i / 5 * 5, i % 5, 1, p.index_cos, p.index_sin), 1e-5);
        }
        for (std::int64_t i = 0; i < 5; ++i) {
          ASSERT_NEAR(at(p.index_k, slot * 5 + i), p.rotated(t, 63, i, 1, p.index_cos, p.index_sin), 1e-5);
        }
        for (std::int64_t i = 0; i < 3; ++i) {
          const double w = p.column(t, p.args.index_w_column + i);
          ASSERT_NEAR(at(p.index_w, t * 3 + i), sigmoid_w ? sigmoid(w) : w / std::sqrt(3.0), 1e-5);
        }
      }
      // Slots 3, 10, ..., 59 % 40 are taken; no other row has changed.
      std::int64_t untouched = 0;
      for (const float value : p.k) untouched += value == 99;
      EXPECT_EQ(untouched, (40 - 9) * 12);
    }
  }
}

TEST(Append, EightBitKeysHaveAScaleARow) {
  Problem p(9, 12, true);
  for (std::int64_t i = 63; i < 68; ++i) p.x[static_cast<std::size_t>(4 * p.args.x_stride + i)] = 0;
  p.x[static_cast<std::size_t>(5 * p.args.x_stride + 65)] = INFINITY;
  append(p.args, serial());
  for (std::int64_t t = 0; t < 9; ++t) {
    const std::int64_t slot = p.slots[static_cast<std::size_t>(t)];
    double largest = 0;
    for (std::int64_t i = 0; i < 5; ++i) {
      largest = std::max(largest, std::abs(p.rotated(t, 63, i, 1, p.index_cos, p.index_sin)));
    }
    for (std::int64_t i = 0; i < 5; ++i) {
      const int value = p.bytes[static_cast<std::size_t>(slot * 5 + i)];
      if (t == 4 || t == 5) {
        EXPECT_EQ(value, 0);
        continue;
      }
      EXPECT_NEAR(value * at(p.scale, slot), p.rotated(t, 63, i, 1, p.index_cos, p.index_sin), largest / 253);
    }
    if (t != 5) {
      EXPECT_NEAR(at(p.scale, slot), largest / 127, 1e-6);
    }
  }
  EXPECT_EQ(at(p.scale, p.slots[4]), 0);
  EXPECT_TRUE(std::isnan(at(p.scale, p.slots[5])));
}

void expect_error(const AppendArgs& args, const std::string& part) {
  try {
    append(args, serial());
    ADD_FAILURE() << "accepted: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Append, BadArgumentsAreNamed) {
  const Problem good(3, 12, false);
  const auto broken = [&](auto change) {
    AppendArgs args = good.args;
    change(args);
    return args;
  };
  expect_error(broken([](AppendArgs& a) { a.rows = 5; }), "'slots'");
  expect_error(broken([](AppendArgs& a) { a.pairs = 4; }), "'pairs'");
  expect_error(broken([](AppendArgs& a) { a.value_gate = 3; }), "'value_gate'");
  expect_error(broken([](AppendArgs& a) { a.index_w_column = 60; }), "'index_w_column'");
  expect_error(broken([](AppendArgs& a) { a.x_stride = 80; }), "'x_stride'");
  expect_error(broken([](AppendArgs& a) { a.k = nullptr; }), "'k'");
  expect_error(broken([](AppendArgs& a) { a.index_q = nullptr; }), "'index_q'");
  append(broken([](AppendArgs& a) { a.tokens = 0; }), serial());  // nothing to do
}

}  // namespace
}  // namespace gsa
