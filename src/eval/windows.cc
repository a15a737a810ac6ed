#include "eval/windows.h"

#include <algorithm>
#include <span>

#include "core/file.h"
#include "gsa/error.h"

namespace gsa::eval {
namespace {

constexpr const char* kOp = "eval";
constexpr std::int64_t kIgnored = -100;  // nn::kIgnoredTarget, whose header needs torch

WindowOptions checked(WindowOptions options) {
  if (options.length < 1) bad_argument(kOp, "length", "at least 1", concat(options.length));
  if (options.stride == 0) options.stride = options.length;
  if (options.stride < 1 || options.stride > options.length) {
    bad_argument(kOp, "stride", concat("1 .. ", options.length, ", the length of a window"),
                 concat(options.stride));
  }
  if (options.batch_tokens < 1) bad_argument(kOp, "batch_tokens", "at least 1", concat(options.batch_tokens));
  if (options.predictions < 0) bad_argument(kOp, "predictions", "0 or more", concat(options.predictions));
  return options;
}

std::int64_t text_bytes(const data::Tokenizer& tokenizer, std::span<const std::int64_t> ids) {
  std::size_t bytes = 0;
  for (const std::int64_t id : ids) bytes += tokenizer.bytes_of(static_cast<std::int32_t>(id)).size();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

WindowReader::WindowReader(const Documents& documents, const WindowOptions& options)
    : documents_(documents), options_(checked(options)) {
  for (std::int64_t d = 0; d < documents.count(); ++d) {
    total_ += std::max<std::int64_t>(0, documents.size(d) - 1);
    if (options_.predictions > 0 && total_ >= options_.predictions) break;
  }
  if (total_ == 0) bad_file(documents.name(), "a document of at least two tokens", "none");
  if (options_.predictions > 0) total_ = std::min(total_, options_.predictions);
  at_.document = -1;
}

std::optional<WindowReader::Window> WindowReader::following() const {
  if (taken_ >= total_) return std::nullopt;
  Window window = at_;
  if (at_.document >= 0 && at_.end < documents_.size(at_.document) - 1) {
    window.begin = at_.begin + options_.stride;
    window.first_target = at_.end + 1;
  } else {
    do {
      if (++window.document == documents_.count()) return std::nullopt;
    } while (documents_.size(window.document) < 2);
    window.begin = 0;
    window.first_target = 1;
  }
  window.end = std::min(window.begin + options_.length, documents_.size(window.document) - 1);
  return window;
}

void WindowReader::add(const Window& window, WindowBatch& batch) const {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(window.end - window.begin + 1));
  documents_.read(window.document, window.begin, ids);
  const auto counted = static_cast<std::size_t>(window.first_target - window.begin);
  batch.tokens.insert(batch.tokens.end(), ids.begin(), ids.end() - 1);
  batch.targets.insert(batch.targets.end(), counted - 1, kIgnored);
  batch.targets.insert(batch.targets.end(), ids.begin() + static_cast<std::ptrdiff_t>(counted), ids.end());
  batch.starts.push_back(static_cast<std::int64_t>(batch.tokens.size()));
  batch.predictions += window.predictions();
  batch.text_bytes += text_bytes(documents_.tokenizer(), std::span(ids).subspan(counted));
}

std::optional<WindowBatch> WindowReader::next() {
  WindowBatch batch;
  batch.starts = {0};
  while (const std::optional<Window> window = following()) {
    const std::int64_t size = window->end - window->begin;
    const bool fits = batch.starts.back() + size <= options_.batch_tokens;
    if (batch.windows() > 0 && !fits) break;
    add(*window, batch);
    at_ = *window;
    taken_ += window->predictions();
  }
  if (batch.windows() == 0) return std::nullopt;
  return batch;
}

}  // namespace gsa::eval
