// Selects 4 keys of 64 for each query, attends to them, and compares the last query with plain loops.
#include <gsa/core/parallel.h>
#include <gsa/kernels/attend/attend.h>
#include <gsa/kernels/select/select.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  const std::int64_t tokens = 64, size = 16, begin[] = {0, tokens};
  std::vector<float> q(tokens * size), k(q), v(q), w(tokens, 1.0F), out(q);
  for (std::int64_t i = 0; i < tokens * size; ++i) {
    q[i] = std::sin(0.7F * i), k[i] = std::cos(1.3F * i), v[i] = std::sin(0.1F * i);
  }
  const gsa::ConstRows q_rows{q.data(), size, size}, k_rows{k.data(), size, size},
      v_rows{v.data(), size, size};
  const gsa::Sequences sequences{.count = 1, .q_begin = begin, .k_begin = begin};
  const gsa::ThreadParallel threads(2);

  std::vector<std::uint32_t> words(tokens * gsa::mask_words(tokens));
  const gsa::Mask mask{words.data(), gsa::mask_words(tokens)};
  gsa::select({.indexer = {.heads = 1, .head_size = size, .q = q_rows, .k = k_rows, .w = {w.data(), 1, 1}},
               .budget = {.mode = gsa::BudgetMode::fixed, .base = 4, .min = 1, .max = 4},
               .sequences = sequences,
               .mask = mask},
              threads);
  gsa::attend({.shape = {.heads = 1, .kv_heads = 1, .head_size = size, .scale = 0.25},
               .q = q_rows,
               .k = k_rows,
               .v = v_rows,
               .mask = mask,
               .sequences = sequences,
               .out = {out.data(), size, size}},
              threads);

  const std::int64_t last = tokens - 1;
  std::vector<double> wanted(size);
  double sum = 0;
  int selected = 0;
  for (std::int64_t s = 0; s < tokens; ++s) {
    if ((words[last * mask.words_per_query + s / 32] >> s % 32 & 1) == 0) continue;
    double dot = 0;
    for (std::int64_t i = 0; i < size; ++i) dot += double(q[last * size + i]) * k[s * size + i];
    const double weight = std::exp(0.25 * dot);
    for (std::int64_t i = 0; i < size; ++i) wanted[i] += weight * v[s * size + i];
    sum += weight;
    ++selected;
  }
  double error = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    error = std::fmax(error, std::fabs(wanted[i] / sum - out[last * size + i]));
  }
  std::printf("keys %d, error %s\n", selected, error < 1e-5 ? "below 1e-5" : "too large");
  return selected == 4 && error < 1e-5 ? 0 : 1;
}
