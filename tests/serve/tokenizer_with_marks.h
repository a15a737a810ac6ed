// A tokenizer.json of bytes and special tokens, for tests of the server.
#pragma once

#include <memory>

#include "core/json.h"
#include "core/utf8.h"
#include "data/testing.h"
#include "data/tokenizer.h"

namespace gsa::serve {

constexpr std::int32_t kImStart = 256, kImEnd = 257, kHeader = 258, kBehind = 259, kEot = 260, kBos = 261;

// Bytes, and the marks of all templates as special tokens.
inline std::unique_ptr<data::Tokenizer> tokenizer_with_marks() {
  Json vocabulary = Json::object(), added = Json::array();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    vocabulary[utf8_of(static_cast<std::uint32_t>(printable ? byte : next++))] = byte;
  }
  int id = 256;
  for (const char* mark : {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
                           "<|eot_id|>", "<|begin|>"}) {
    added.push_back({{"id", id++}, {"content", mark}, {"special", true}, {"normalized", false}});
  }
  const Json json = {
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
  const gsa::testing::TemporaryFolder folder;
  gsa::testing::write_text(folder / "tokenizer_config.json",
                           R"({"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "add_bos_token": true})");
  return data::json_tokenizer(json.dump(), folder.path(), "test");
}

}  // namespace gsa::serve
