// Tokens on disk. A dataset is a folder:
//
//   dataset.json          tokenizer, vocabulary, shards with their counts and checksums; written last
//   tokens-00000.bin      ids, 2 bytes each where the vocabulary fits, else 4; little endian
//   documents-00000.bin   for each document of the shard the number of ids up to its end, 8 bytes each
//   tokenizer.model or tokenizer.json, tokenizer_config.json
//   .verified.json        which of the files have been read whole and had the right checksum
//
// A document is the ids of a text between the tokenizer's marks (bos ... eos). Shards are mapped, not read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "core/folder_lock.h"
#include "core/parallel.h"
#include "data/tokenizer.h"

namespace gsa::data {

struct Shard {
  std::string tokens_file, documents_file;
  std::int64_t tokens = 0, documents = 0;
  std::uint32_t tokens_crc = 0, documents_crc = 0;
};

// Appends documents; memory grows neither with their number nor, in pieces, with their size. Nothing counts
// before finish(): a folder without dataset.json is no dataset, and without finish() no shard stays behind.
class DatasetWriter {
 public:
  static constexpr std::int64_t kShardTokens = 256 << 20;

  // The folder is made where it is missing, and taken until the end of this object (core/folder_lock.h); one
  // that already holds a dataset is refused. Shards that a killed run left there are removed. parallel:
  // encodes several pieces at a time; what is written does not depend on it.
  DatasetWriter(std::filesystem::path folder, const Tokenizer& tokenizer,
                std::int64_t shard_tokens = kShardTokens, const Parallel& parallel = serial());
  ~DatasetWriter();

  void add_document(std::string_view text);
  // One whose ids are known, without marks; text_bytes: of the text that they stand for.
  void add_document(std::span<const std::int32_t> ids, std::int64_t text_bytes);
  // The same in pieces: any number of append(), then end_document().
  void append(std::string_view text);
  void end_document();
  void finish();

  std::int64_t tokens() const { return tokens_; }  // written so far: a few megabytes of text may wait

 private:
  // Text that waits to be encoded, and whether its document ends with it.
  struct Piece {
    std::string text;
    bool ends = false;
    std::vector<std::int32_t> ids = {};
  };
  struct Open;

  void encode_waiting();
  void write(const Piece& piece);
  void begin_document();
  void end_of_document();
  void put(std::span<const std::int32_t> ids);
  void close_shard();

  std::filesystem::path folder_;
  const Tokenizer& tokenizer_;
  std::int64_t shard_tokens_;
  int token_bytes_;
  std::unique_ptr<Open> open_;
  std::vector<Shard> shards_;
  const Parallel& parallel_;
  FolderLock lock_;
  std::vector<Piece> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::vector<std::uint16_t> narrow_;
  std::int64_t tokens_ = 0, documents_ = 0, bytes_ = 0;
  bool in_document_ = false;  // of what is written
  bool finished_ = false;
};

// What dataset.json says, checked for itself: names stay in the folder, counts are possible and add up.
struct DatasetManifest {
  std::string tokenizer;
  std::uint32_t tokenizer_fingerprint = 0;
  std::int64_t vocab_size = 0;
  int token_bytes = 2;
  std::int64_t tokens = 0, documents = 0, text_bytes = 0;
  std::vector<Shard> shards;
};

// name: of the file, for messages.
DatasetManifest parse_manifest(std::string_view text, const std::string& name);

class Dataset {
 public:
  // Checks dataset.json, the files' sizes, their checksums and the documents' ends. A checksum costs reading
  // the whole file: the folder remembers, where it can be written to, those that were right, and until a file
  // changes it is not read for that again; with verify it is.
  explicit Dataset(const std::filesystem::path& folder, bool verify = false);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  std::uint32_t tokenizer_fingerprint() const { return tokenizer_fingerprint_; }
  // Equal for datasets of equal content, wherever they are: a checksum of dataset.json, which has the
  // checksums of all else.
  std::uint32_t fingerprint() const { return fingerprint_; }
  const std::string& tokenizer_kind() const { return tokenizer_kind_; }
  double bytes_per_token() const { return bytes_per_token_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Ids of a document, marks included.
  std::int64_t document_size(std::int64_t document) const;
  // Copies ids offset .. offset + out.size() - 1 of a document. An id outside the vocabulary is an error that
  // names the file.
  void read(std::int64_t document, std::int64_t offset, std::span<std::int64_t> out) const;

 private:
  struct Open {
    MappedFile tokens, ends;
    std::int64_t first_document = 0, documents = 0;
    std::string tokens_name;
  };
  struct Place {
    const Open* shard;
    std::int64_t begin, end;  // ids within the shard
  };
  void add_shard(const Shard& shard);
  void check_ends(const Open& open, const Shard& shard) const;
  Place place(std::int64_t document) const;

  std::filesystem::path folder_;
  std::vector<Open> shards_;
  std::int64_t tokens_ = 0, documents_ = 0, vocab_size_ = 0;
  std::uint32_t tokenizer_fingerprint_ = 0, fingerprint_ = 0;
  std::string tokenizer_kind_;
  double bytes_per_token_ = 0;
  int token_bytes_ = 2;
};

}  // namespace gsa::data
