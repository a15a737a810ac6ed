// Validation of what defines scores, shared by the operators that take them.
#pragma once

#include "kernels/common/checks.h"
#include "kernels/scores/scores.h"

namespace gsa::check {

// Sizes and pointers of the indexer; an empty problem needs no pointers. in_pages: whether the backend reads
// keys that lie in pages or have 8 bits.
void indexer(const char* op, const Indexer& indexer, const Sequences& sequences, bool in_pages = false);

void budget(const char* op, const Budget& budget);

}  // namespace gsa::check
