#include "text_window.h"

#include <memory>

#include "core/file.h"
#include "data/tokenizer.h"
#include "eval/documents.h"
#include "gsa/error.h"

namespace gsa::bench {

std::vector<std::int64_t> read_text(const TextWindow& window) {
  const std::unique_ptr<eval::Documents> text = eval::dataset_documents(window.data, eval::Joining::all);
  const std::int64_t ids = text->tokenizer().vocab_size();
  if (ids > window.vocab_size) {
    bad_file(window.data.string(),
             concat("tokens of a vocabulary of at most ", window.vocab_size, ", the model's"),
             concat("one of ", ids));
  }
  if (data::has_tokenizer(window.model) &&
      data::load_tokenizer(window.model)->fingerprint() != text->tokenizer().fingerprint()) {
    bad_file(window.data.string(), concat("a dataset of the tokenizer in ", window.model.string()),
             "one of another tokenizer");
  }
  std::int64_t tokens = 0;
  for (std::int64_t d = 0; d < text->count(); ++d) tokens += text->size(d);
  if (window.offset + window.count > tokens) {
    bad_file(window.data.string(),
             concat("at least ", window.offset + window.count, " tokens (--offset ", window.offset, " and ",
                    window.count, " to read)"),
             concat(tokens));
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(window.count));
  text->read(0, window.offset, out);
  return out;
}

}  // namespace gsa::bench
