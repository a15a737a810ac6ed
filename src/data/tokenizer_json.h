// A Hugging Face tokenizer.json, read into the parts that encode and decode. Known: the BPE model with
// - normalizers NFC, Prepend, Replace (of a string), Sequence;
// - pre-tokenizers ByteLevel, Split, Digits, Metaspace, Sequence;
// - decoders ByteLevel, Metaspace, and of Replace, ByteFallback, Fuse, Strip the order that Llama 2 has;
// - post-processors ByteLevel, TemplateProcessing, Sequence, of which only the marks are taken;
// - added tokens.
// All else is refused by name. truncation and padding, which are about batches, are not looked at.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/text_steps.h"

namespace gsa::data {

struct TokenizerJson {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  BpeConfig bpe;
  std::vector<AddedToken> added;
  struct Decoder {
    bool byte_level = false, byte_fallback = false;
    std::vector<std::pair<std::string, std::string>> replace;
    struct Strip {
      std::string content;               // one character
      std::int64_t start = 0, stop = 0;  // at most as many of it, off the ends of the whole text
    };
    std::vector<Strip> strip;
    std::string drop_in_first;  // not in the first token; empty: nothing
  } decoder;
  std::vector<std::string> beginning;  // what the post-processor puts before a text
  std::optional<std::string> eos;      // and behind it, the last of it
  std::optional<std::string> bos() const {
    return beginning.empty() ? std::nullopt : std::optional(beginning.back());
  }

  std::vector<std::optional<std::string>> vocabulary;  // by id, as written in the file
};

// file: for messages.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file);

// The bytes that a token of a byte-level vocabulary stands for; none where it is not written in its alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace gsa::data
