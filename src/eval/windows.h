// The windows in which a model reads texts. No torch header.
//
// A document of ids x_0 ... x_{n-1} has n - 1 predictions: each x_i, i > 0, from what its window shows before
// it. Windows show `length` ids and start every `stride` ids; each counts the predictions that no window
// before it has counted, so every prediction of a document counts once, and all but those of the first window
// have at least length - stride + 1 ids before them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "eval/documents.h"

namespace gsa::eval {

struct WindowOptions {
  std::int64_t length = 1024;
  std::int64_t stride = 0;           // 1 .. length; 0: length, windows side by side
  std::int64_t batch_tokens = 8192;  // windows that fit are read together; one always is
  std::int64_t predictions = 0;      // stop with the window that reaches this many; 0: all
};

// Windows as packed sequences.
struct WindowBatch {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> targets;  // the ids that follow; -100 where an earlier window counts them
  std::vector<std::int64_t> starts;   // cumulative, [windows + 1], from 0
  std::int64_t predictions = 0;       // targets that count
  std::int64_t text_bytes = 0;        // of the text that these targets stand for

  std::int64_t windows() const { return static_cast<std::int64_t>(starts.size()) - 1; }
};

class WindowReader {
 public:
  // Throws where the options make no sense or the documents have no prediction at all.
  WindowReader(const Documents& documents, const WindowOptions& options);

  std::optional<WindowBatch> next();  // none: all is read

  // Of all windows that will be read.
  std::int64_t predictions() const { return total_; }

 private:
  struct Window {
    std::int64_t document = 0, begin = 0,
                 end = 0;           // ids begin .. end - 1 are shown, begin + 1 .. end predicted
    std::int64_t first_target = 0;  // the first of them that counts
    std::int64_t predictions() const { return end + 1 - first_target; }
  };

  std::optional<Window> following() const;
  void add(const Window& window, WindowBatch& batch) const;

  const Documents& documents_;
  WindowOptions options_;
  Window at_;  // the last one taken; before the first: of document -1
  std::int64_t taken_ = 0, total_ = 0;
};

}  // namespace gsa::eval
