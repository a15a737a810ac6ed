// Text to token ids and back. Two kinds: bytes (256 ids and two marks; nothing to train, nothing it cannot
// write) and SentencePiece (a model trained by us or by others, the file that Llama folders call
// tokenizer.model).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gsa::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "bytes", "sentencepiece"
  virtual std::int64_t vocab_size() const = 0;
  virtual std::int32_t bos() const = 0;  // the mark before a text
  virtual std::int32_t eos() const = 0;  // the mark after it

  // Appends the ids of the text, without marks.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // The text of the ids; marks give nothing. An id outside the vocabulary is an error.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // The bytes that a token stands for in the middle of a text, which need not be whole characters; none for a
  // mark. Those of a text's tokens one after the other are the text.
  virtual std::string bytes_of(std::int32_t id) const = 0;

  // Writes what load_tokenizer() reads into a model's folder.
  virtual void save(const std::filesystem::path& folder) const = 0;

  // Equal for tokenizers that give equal ids: datasets remember it.
  virtual std::uint32_t fingerprint() const = 0;
};

std::unique_ptr<Tokenizer> byte_tokenizer();

// model: the bytes of a SentencePiece model file; name: for messages.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(std::string model, const std::string& name);

// A model's folder (tokenizer.model, or tokenizer_config.json that names the byte tokenizer), a SentencePiece
// file, or the word "bytes".
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& source);

// Whether load_tokenizer() finds one in a model's folder. Folders of others may have none, or one of another
// kind.
bool has_tokenizer(const std::filesystem::path& folder);

// Refuses a dataset whose ids would mean other words to a model: its tokenizer is not the one in the model's
// folder, or that one is of a kind which cannot be read here (tokenizer.json of Hugging Face). A folder
// without any tokenizer says nothing. fingerprint: of the dataset's tokenizer; option: what lets the user
// have it so.
void check_same_tokenizer(const std::filesystem::path& model, const std::filesystem::path& dataset,
                          std::uint32_t fingerprint, const char* option);

struct SentencePieceTraining {
  std::vector<std::string> lines;  // what it learns from (LineSample draws them from any amount of text)
  std::int64_t vocab_size = 32768;
  int threads = 1;
};

// Trains a byte-pair model that writes any byte (unknown characters fall back to bytes, digits stand alone,
// spaces and line ends are kept), and returns the model file's bytes.
std::string train_sentencepiece(const SentencePieceTraining& options);

}  // namespace gsa::data
