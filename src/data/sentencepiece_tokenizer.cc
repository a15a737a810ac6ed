#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/json.h"
#include "data/line_sample.h"
#include "data/tokenizer.h"

namespace gsa::data {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581 stands for a space in pieces

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& name) : model_(std::move(model)) {
    const auto status = processor_.LoadFromSerializedProto(model_);
    if (!status.ok()) bad_file(name, "a SentencePiece model", status.ToString());
    if (processor_.bos_id() < 0 || processor_.eos_id() < 0) {
      bad_file(name, "a SentencePiece model with marks for begin and end", "one without");
    }
  }

  std::string kind() const override { return "sentencepiece"; }
  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::int32_t bos() const override { return processor_.bos_id(); }
  std::int32_t eos() const override { return processor_.eos_id(); }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::vector<int> part;
    const auto status = processor_.Encode({text.data(), text.size()}, &part);
    if (!status.ok()) throw Error(concat("gsa: tokenizer: encoding failed: ", status.ToString()));
    ids.insert(ids.end(), part.begin(), part.end());
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) check(id);
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw Error(concat("gsa: tokenizer: decoding failed: ", status.ToString()));
    return text;
  }

  std::string bytes_of(std::int32_t id) const override {
    check(id);
    if (processor_.IsControl(id)) return "";
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id))
      return {static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))};  // <0xE2>
    if (processor_.IsUnknown(id)) return decode({&id, 1});
    std::string bytes;
    for (std::string_view rest = piece; !rest.empty();) {
      const bool space = rest.starts_with(kSpace);
      bytes += space ? ' ' : rest.front();
      rest.remove_prefix(space ? kSpace.size() : 1);
    }
    return bytes;
  }

  void save(const std::filesystem::path& folder) const override {
    write_file(folder / "tokenizer.model", model_);
    const OrderedJson config{
        {"tokenizer_class", "LlamaTokenizer"},      {"bos_token", processor_.IdToPiece(bos())},
        {"eos_token", processor_.IdToPiece(eos())}, {"add_bos_token", true},
        {"add_prefix_space", begins_with_space()},  {"legacy", false}};
    write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
  }

  std::uint32_t fingerprint() const override { return crc32c(std::as_bytes(std::span(model_))); }

 private:
  // Whether a text gets a space before it, as transformers takes for granted where nobody says so.
  bool begins_with_space() const {
    std::vector<std::string> pieces;
    const auto status = processor_.Encode("a", &pieces);
    return status.ok() && !pieces.empty() && pieces.front().starts_with(kSpace);
  }

  void check(std::int32_t id) const {
    if (id >= 0 && id < vocab_size()) return;
    bad_argument("decode", "ids", concat("ids in 0 .. ", vocab_size() - 1), concat(id));
  }

  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
};

// Hands lines to the trainer.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) : lines_(lines) {}

  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  std::size_t at_ = 0;
};

// SentencePiece's advice names options of its own program, so where the size of the vocabulary is what it
// does not like, only the bound is taken from its message.
[[noreturn]] void training_failed(const std::string& message, std::int64_t vocab_size) {
  const auto number_behind = [&](std::string_view words) -> std::string {
    const std::size_t at = message.find(words);
    if (at == std::string::npos) return "";
    const std::size_t first = at + words.size();
    return message.substr(first, message.find_first_not_of("0123456789", first) - first);
  };
  const std::string max_size = number_behind("Please set it to a value <= ");
  if (!max_size.empty()) {
    bad_argument("tokenizer", "vocab_size", concat("at most ", max_size, " pieces, all that this text gives"),
                 concat(vocab_size));
  }
  const std::string min_size = number_behind(concat("required_chars. ", vocab_size, " vs "));
  if (!min_size.empty()) {
    bad_argument(
        "tokenizer", "vocab_size",
        concat("at least ", min_size, " pieces, one for each byte, mark and common character of this text"),
        concat(vocab_size));
  }
  throw Error(concat("gsa: tokenizer: training failed: ", message));
}

}  // namespace

std::unique_ptr<Tokenizer> sentencepiece_tokenizer(std::string model, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), name);
}

std::string train_sentencepiece(const SentencePieceTraining& options) {
  if (options.lines.empty()) bad_argument("tokenizer", "lines", "text to learn from", "none");
  Lines lines(options.lines);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", "bpe"},
       {"vocab_size", std::to_string(options.vocab_size)},
       {"num_threads", std::to_string(std::max(1, options.threads))},
       {"character_coverage", "0.9995"},
       {"byte_fallback", "true"},
       {"split_digits", "true"},
       {"normalization_rule_name", "identity"},
       {"remove_extra_whitespaces", "false"},
       {"allow_whitespace_only_pieces", "true"},
       {"add_dummy_prefix", "false"},
       {"max_sentence_length", std::to_string(2 * LineSample::kMaxLine)},
       {"user_defined_symbols", "\n"},
       {"minloglevel", "1"}},
      &lines, &model);
  if (!status.ok()) training_failed(status.ToString(), options.vocab_size);
  return model;
}

}  // namespace gsa::data
