// attend's backward pass as tests call it.
#pragma once

#include "kernels/attend/attend.h"
#include "problems.h"

namespace gsa::testing {

struct Gradients {
  Tensor dq, dk, dv;
};

inline AttendBackwardArgs backward_args(AttendProblem& problem, const AttendResult& forward,
                                        const Tensor& dout, Gradients& g) {
  return {.shape = problem.shape(),
          .q = problem.q.rows(),
          .k = problem.k.rows(),
          .v = problem.v.rows(),
          .mask = problem.mask_view(),
          .sequences = problem.batch.view(),
          .out = forward.out.rows(),
          .lse = forward.lse.data(),
          .dout = dout.rows(),
          .dq = g.dq.rows(),
          .dk = g.dk.data(),
          .dv = g.dv.data()};
}

// The gradients of sum(out * dout), added to dk = dv = `start`.
inline Gradients run_backward(AttendProblem& problem, const AttendResult& forward, const Tensor& dout,
                              const Parallel& parallel, Layout layout = Layout::tokens_first,
                              double start = 0) {
  const DType real = real_of(problem.dtype);
  Gradients g{Tensor(problem.dtype, problem.batch.queries(), problem.heads, problem.size, layout),
              Tensor(real, problem.batch.keys(), problem.kv_heads, problem.size),
              Tensor(real, problem.batch.keys(), problem.kv_heads, problem.size)};
  g.dk.fill([&] { return start; });
  g.dv.fill([&] { return start; });
  backend::attend_backward(backward_args(problem, forward, dout, g), parallel);
  return g;
}

inline Tensor random_dout(const AttendProblem& problem, Layout layout = Layout::tokens_first) {
  Random random(77);
  return Tensor(problem.dtype, problem.batch.queries(), problem.heads, problem.size, layout).fill([&] {
    return random.normal();
  });
}

}  // namespace gsa::testing
