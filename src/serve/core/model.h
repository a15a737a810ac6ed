// What the scheduler asks of a model: passes over new tokens of sequences, and room for them. The engine answers
// (serve/engine_model.h), and in tests a model made by rule. No torch header.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gsa/error.h"
#include "infer/core/look.h"
#include "infer/core/page_pool.h"

namespace gsa::serve {

using infer::Sequence;

struct ModelFacts {
  std::int64_t vocab_size = 0;     // numbers in a row of logits
  std::int64_t max_positions = 0;  // of prompt and text together
  std::int64_t page_size = 0;      // positions a page
  std::int64_t capacity = 0;       // pages that sequences can have in all
  std::int64_t max_chunk = 0;      // tokens a pass of prefill at most
  std::int64_t max_batch = 0;      // sequences a decode step at most
  std::int64_t layers = 0;
  std::int64_t bytes_per_page = 0;
  std::vector<std::int64_t> ends;  // tokens with which the model ends a text
};

// Part of a prompt, behind what its sequence holds.
struct Chunk {
  Sequence* sequence = nullptr;
  std::span<const std::int64_t> tokens;  // at least one
  // Tokens of the sequence when the whole prompt has been read: by this a model with dense_below decides for all of its
  // chunks alike.
  std::int64_t prompt_length = 0;
  bool all_rows = false;  // logits of every token, not of the last one alone
};

struct NextToken {
  Sequence* sequence = nullptr;
  std::int64_t token = 0;
};

// No pass can succeed any more: the device has failed for this process.
class ModelLost : public Error {
 public:
  using Error::Error;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelFacts& facts() const = 0;
  virtual Sequence start() = 0;
  virtual std::int64_t free_pages() const = 0;  // that could be taken now

  // Whether a prompt of so many tokens is read sparsely, and a text's token at such a length (of prompt, text and
  // token) written so: what pages hold depends on it.
  virtual bool sparse_at(std::int64_t length) const = 0;

  // Float rows of vocab_size, one after another: for each chunk one, or one for each of its tokens. Valid until the
  // next call. Pages must be free. Throws gsa::Error; sequences then hold what they held, or some of the tokens more.
  // ModelLost among them.
  virtual std::span<const float> prefill(std::span<const Chunk> chunks) = 0;
  // A token more of each sequence: a row each.
  virtual std::span<const float> decode(std::span<const NextToken> steps) = 0;

  // Calls work(0) .. work(count - 1), on the model's threads where it has several: they wait between two passes.
  virtual void share(std::int64_t count, const std::function<void(std::int64_t)>& work) {
    for (std::int64_t i = 0; i < count; ++i) work(i);
  }

  // Reads a token behind what the sequence holds, as decode() does, and tells where its layers looked.
  virtual infer::Look look(Sequence& sequence, std::int64_t token) = 0;
};

}  // namespace gsa::serve
