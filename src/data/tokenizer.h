// Text to token ids and back. Three kinds: bytes (256 ids and two marks; nothing to train, nothing it cannot
// write), SentencePiece (a model trained by us or by others, the file that Llama 2 folders call
// tokenizer.model) and the byte-pair models of Hugging Face's tokenizer.json (Llama 3, Qwen, Mistral).
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

  virtual std::string kind() const = 0;  // "bytes", "sentencepiece", "tokenizer.json"
  virtual std::int64_t vocab_size() const = 0;
  virtual std::int32_t bos() const = 0;  // the mark before a document of a dataset
  virtual std::int32_t eos() const = 0;  // the mark after it
  // What stands before a text that a model reads: bos(), or what the tokenizer of another model wants there,
  // which may be nothing (Qwen).
  virtual std::vector<std::int32_t> beginning() const { return {bos()}; }

  // Appends the ids of the text, without marks.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  // The same of a text in which special tokens are text like any other: what a stranger wrote must not become marks.
  // at_start: nothing stands before it; some tokenizers put a space there.
  virtual void encode_plain(std::string_view text, std::vector<std::int32_t>& ids,
                            bool at_start = true) const {
    (void)at_start;
    encode(text, ids);  // fits where no text gives a mark
  }
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

// The ids of a text for a model to go on from: beginning(), and the text's. Where both are nothing, bos().
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view text);

std::unique_ptr<Tokenizer> byte_tokenizer();

// model: the bytes of a SentencePiece model file; name: for messages.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(std::string model, const std::string& name);

// text: the content of a tokenizer.json; folder: where the files stand that name its marks
// (tokenizer_config.json, config.json, generation_config.json); name: for messages. Gives the ids that the
// package `tokenizers` gives, special tokens in the text included. Bytes that are no UTF-8, which the package
// cannot take, are encoded byte by byte and come back.
std::unique_ptr<Tokenizer> json_tokenizer(std::string text, const std::filesystem::path& folder,
                                          const std::string& name);

// A model's folder (of tokenizer.json, tokenizer.model, and tokenizer_config.json that names the byte
// tokenizer, the first that is there: as transformers reads it), a SentencePiece file, a tokenizer.json (any name that
// ends in .json), or the word "bytes".
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& source);

// Whether load_tokenizer() finds one in a model's folder. Folders of others may have none, or one of another
// kind; a tokenizer.json may be of one that load_tokenizer() refuses.
bool has_tokenizer(const std::filesystem::path& folder);

// Refuses a dataset whose ids would mean other words to a model: its tokenizer is not the one in the model's
// folder, or that one is of a kind which cannot be read here (such as vocab.txt). A folder without any
// tokenizer says nothing. fingerprint: of the dataset's tokenizer; option: what lets the user
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
