// What every backend registers: the operators are the same functions for all of them (see backend.h).
#pragma once

#include <torch/library.h>

namespace gsa::binding {

void implement_select(torch::Library& library);
void implement_attend(torch::Library& library);
void implement_attend_lse(torch::Library& library);
void implement_sparse_attend(torch::Library& library);
void implement_gate(torch::Library& library);
void implement_indexer_kl(torch::Library& library);

inline void implement_operators(torch::Library& library) {
  implement_select(library);
  implement_attend(library);
  implement_attend_lse(library);
  implement_sparse_attend(library);
  implement_gate(library);
  implement_indexer_kl(library);
}

}  // namespace gsa::binding
