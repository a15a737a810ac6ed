#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

#include "core/crc32c.h"
#include "core/json.h"
#include "data/dataset.h"

namespace gsa::data {

static_assert(std::endian::native == std::endian::little, "shards are little endian");

namespace {

std::string numbered(const char* stem, std::size_t number) {
  std::string digits = std::to_string(number);
  digits.insert(0, 5 - std::min<std::size_t>(5, digits.size()), '0');
  return concat(stem, "-", digits, ".bin");
}

// A file under way with the checksum of what was written. Documents come in small writes, so they are
// gathered.
class Stream {
 public:
  explicit Stream(const std::filesystem::path& path) : file_(path) {}

  void write(std::span<const std::byte> bytes) {
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
    if (waiting_.size() >= kWaitingBytes) flush();
  }
  // Returns the checksum of the file.
  std::uint32_t commit() {
    flush();
    file_.commit();
    return crc_;
  }

 private:
  static constexpr std::size_t kWaitingBytes = 1 << 20;

  void flush() {
    crc_ = crc32c(waiting_, crc_);
    file_.write(waiting_);
    waiting_.clear();
  }

  AtomicFile file_;
  std::uint32_t crc_ = 0;
  std::vector<std::byte> waiting_;
};

// What may wait to be encoded: enough for every core to have something to do.
constexpr std::size_t kBatchBytes = 8 << 20;
constexpr std::size_t kBatchPieces = 1 << 16;

// Names as this writer gives them, temporary ones included.
bool is_left_over(const std::string& name) {
  const std::string_view plain = name.starts_with(".") ? std::string_view(name).substr(1) : name;
  const bool ours = plain.starts_with("tokens-") || plain.starts_with("documents-");
  return ours && (name.ends_with(".bin") || name.ends_with(".tmp"));
}

}  // namespace

struct DatasetWriter::Open {
  Shard shard;
  Stream tokens, documents;

  Open(const std::filesystem::path& folder, std::size_t number)
      : shard{numbered("tokens", number), numbered("documents", number)},
        tokens(folder / shard.tokens_file),
        documents(folder / shard.documents_file) {}
};

DatasetWriter::DatasetWriter(std::filesystem::path folder, const Tokenizer& tokenizer,
                             std::int64_t shard_tokens, const Parallel& parallel)
    : folder_(std::move(folder)),
      tokenizer_(tokenizer),
      shard_tokens_(shard_tokens),
      token_bytes_(tokenizer.vocab_size() <= std::numeric_limits<std::uint16_t>::max() + 1 ? 2 : 4),
      parallel_(parallel),
      lock_(folder_, "one that makes a dataset in it") {
  std::error_code error;
  if (std::filesystem::exists(folder_ / "dataset.json", error)) {
    bad_file(folder_.string(), "a folder without a dataset (remove it, or choose another)",
             "dataset.json in it");
  }
  std::vector<std::filesystem::path> left_over;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (is_left_over(entry.path().filename().string())) left_over.push_back(entry.path());
  }
  for (const auto& path : left_over) std::filesystem::remove(path);
}

DatasetWriter::~DatasetWriter() {
  if (finished_) return;
  open_.reset();
  std::error_code ignored;
  for (const Shard& shard : shards_) {
    std::filesystem::remove(folder_ / shard.tokens_file, ignored);
    std::filesystem::remove(folder_ / shard.documents_file, ignored);
  }
}

void DatasetWriter::add_document(std::string_view text) {
  append(text);
  end_document();
}

void DatasetWriter::add_document(std::span<const std::int32_t> ids, std::int64_t text_bytes) {
  if (!waiting_.empty()) encode_waiting();
  if (in_document_) bad_argument("dataset", "ids", "a document of its own", "one that is still open");
  begin_document();
  put(ids);
  bytes_ += text_bytes;
  end_of_document();
}

void DatasetWriter::append(std::string_view text) {
  waiting_.push_back({std::string(text)});
  waiting_bytes_ += text.size();
  if (waiting_bytes_ >= kBatchBytes) encode_waiting();
}

void DatasetWriter::end_document() {
  if (waiting_.empty() || waiting_.back().ends) waiting_.push_back({});
  waiting_.back().ends = true;
  if (waiting_.size() >= kBatchPieces) encode_waiting();
}

void DatasetWriter::encode_waiting() {
  // Short documents come by the thousand: a task is a chunk of them.
  constexpr std::size_t kChunk = 64;
  const std::size_t mean_bytes = waiting_bytes_ / std::max<std::size_t>(1, waiting_.size());
  const std::size_t chunk = mean_bytes > 4096 ? 1 : kChunk;
  const std::size_t tasks = (waiting_.size() + chunk - 1) / chunk;
  parallel_.run(static_cast<std::int64_t>(tasks), [&](std::int64_t task, int) {
    const std::size_t first = static_cast<std::size_t>(task) * chunk;
    for (std::size_t i = first; i < std::min(waiting_.size(), first + chunk); ++i) {
      tokenizer_.encode(waiting_[i].text, waiting_[i].ids);
    }
  });
  for (const Piece& piece : waiting_) write(piece);
  waiting_.clear();
  waiting_bytes_ = 0;
}

void DatasetWriter::write(const Piece& piece) {
  if (!in_document_) begin_document();
  put(piece.ids);
  bytes_ += static_cast<std::int64_t>(piece.text.size());
  if (piece.ends) end_of_document();
}

void DatasetWriter::begin_document() {
  if (open_ && open_->shard.tokens >= shard_tokens_) close_shard();
  if (!open_) open_ = std::make_unique<Open>(folder_, shards_.size());
  in_document_ = true;
  const std::int32_t mark = tokenizer_.bos();
  put({&mark, 1});
}

void DatasetWriter::end_of_document() {
  const std::int32_t mark = tokenizer_.eos();
  put({&mark, 1});
  const std::uint64_t end = static_cast<std::uint64_t>(open_->shard.tokens);
  open_->documents.write(std::as_bytes(std::span(&end, 1)));
  open_->shard.documents += 1;
  documents_ += 1;
  in_document_ = false;
}

void DatasetWriter::put(std::span<const std::int32_t> ids) {
  if (token_bytes_ == 2) {
    narrow_.assign(ids.begin(), ids.end());
    open_->tokens.write(std::as_bytes(std::span(narrow_)));
  } else {
    open_->tokens.write(std::as_bytes(ids));
  }
  const std::int64_t count = static_cast<std::int64_t>(ids.size());
  open_->shard.tokens += count;
  tokens_ += count;
}

void DatasetWriter::close_shard() {
  shards_.push_back(open_->shard);  // known to the destructor from here on
  shards_.back().tokens_crc = open_->tokens.commit();
  shards_.back().documents_crc = open_->documents.commit();
  open_.reset();
}

void DatasetWriter::finish() {
  if (!waiting_.empty()) encode_waiting();
  if (in_document_) end_of_document();
  if (open_) close_shard();
  if (documents_ == 0) bad_file(folder_.string(), "at least one document with text in it", "none");
  tokenizer_.save(folder_);
  OrderedJson list = OrderedJson::array();
  for (const Shard& shard : shards_) {
    list.push_back({{"tokens_file", shard.tokens_file},
                    {"documents_file", shard.documents_file},
                    {"tokens", shard.tokens},
                    {"documents", shard.documents},
                    {"tokens_crc32c", shard.tokens_crc},
                    {"documents_crc32c", shard.documents_crc}});
  }
  const OrderedJson manifest{{"format", "gsa-dataset"},
                             {"version", 1},
                             {"tokenizer", tokenizer_.kind()},
                             {"tokenizer_fingerprint", tokenizer_.fingerprint()},
                             {"vocab_size", tokenizer_.vocab_size()},
                             {"token_bytes", token_bytes_},
                             {"tokens", tokens_},
                             {"documents", documents_},
                             {"text_bytes", bytes_},
                             {"shards", list}};
  write_file(folder_ / "dataset.json", manifest.dump(2) + "\n");
  finished_ = true;
}

}  // namespace gsa::data
