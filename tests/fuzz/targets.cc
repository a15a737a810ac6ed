#include "targets.h"

#include <cstdlib>
#include <iostream>

#include "core/json.h"
#include "core/safetensors.h"
#include "data/dataset.h"
#include "data/tokenizer.h"
#include "infer/core/cache_file.h"
#include "model/config_json.h"
#include "model/weight_files.h"
#include "serve/core/completion_request.h"

namespace gsa::fuzz {
namespace {

// A property that must hold of accepted input; a failure ends the process, like a sanitizer's report.
void require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "fuzz: broken property: " << what << '\n';
  std::abort();
}

void run_safetensors(std::string_view bytes) {
  const auto file = std::as_bytes(std::span(bytes.data(), bytes.size()));
  const SafetensorsHeader header = parse_safetensors(file, "fuzz");
  // Accepted: every tensor's bytes lie within the file, contiguous. Reading each one lets a sanitizer check
  // it.
  std::int64_t position = 0;
  unsigned sum = 0;
  for (const StoredTensor& tensor : header.tensors) {
    require(tensor.begin == position && tensor.end >= tensor.begin, "tensors are contiguous");
    for (std::int64_t i = tensor.begin; i < tensor.end; ++i) {
      sum += static_cast<unsigned>(file[static_cast<std::size_t>(header.data_begin + i)]);
    }
    position = tensor.end;
  }
  require(header.data_begin + position == static_cast<std::int64_t>(bytes.size()), "tensors fill the file");
  require(sum < ~0u, "the sum is used");
}

void run_config(std::string_view bytes) {
  const nn::ConfigFile file = nn::config_from_json(bytes, "fuzz");
  // Accepted: it is written and read again as the same.
  const std::string text = nn::config_to_json(file);
  require(nn::config_to_json(nn::config_from_json(text, "again")) == text, "a configuration comes back");
}

void run_index(std::string_view bytes) {
  for (const auto& [file, names] : nn::parse_weight_index(bytes, "fuzz")) {
    require(file.find('/') == std::string::npos && file != "..", "file names stay in their folder");
    require(!names.empty(), "a file has tensors");
  }
}

void run_dataset(std::string_view bytes) {
  const data::DatasetManifest manifest = data::parse_manifest(bytes, "fuzz");
  std::int64_t tokens = 0;
  for (const data::Shard& shard : manifest.shards) {
    require(shard.tokens_file.find('/') == std::string::npos, "file names stay in their folder");
    require(shard.documents <= shard.tokens, "a document has tokens");
    tokens += shard.tokens;
  }
  require(tokens == manifest.tokens && tokens > 0, "shards add up");
}

void run_cache(std::string_view bytes) {
  const auto file = std::as_bytes(std::span(bytes.data(), bytes.size()));
  const infer::CacheFile cache = infer::parse_cache_file(file, "fuzz");
  // Accepted: it fits itself, and every tensor of a cache of its shape is there with all its bytes.
  infer::check_fits(cache, cache.shape, cache.model, "fuzz");
  const auto tokens = static_cast<std::int64_t>(cache.tokens.size());
  std::size_t total = 0, expected = 0;
  for (const auto& [name, rows] : cache.rows) total += rows.size();
  for (const StoredTensor& tensor : infer::cache_tensors(cache.shape, tokens)) {
    std::int64_t size = size_of(tensor.type);
    for (const std::int64_t part : tensor.shape) size *= part;
    expected += static_cast<std::size_t>(size);
    require(cache.rows.contains(tensor.name), "a tensor of the cache is there");
  }
  require(total == expected && tokens > 0, "tensors have all their bytes");
  require(static_cast<std::int64_t>(total) == tokens * cache.shape.bytes_per_token(),
          "bytes are as accounted");
}

void run_tokenizer(std::string_view bytes) {
  // The folder has no files, so the post-processor of the seeds names the marks.
  const auto tokenizer = data::json_tokenizer(std::string(bytes), "no-such-folder", "fuzz");
  const std::string text = "in \xFFing <|end|> e\xCC\x81 \xE6\xBC\xA2 \xF0\x9F\x99\x82 12\r\n";
  std::vector<std::int32_t> ids;
  tokenizer->encode(text, ids);
  for (const std::int32_t id : ids)
    require(id >= 0 && id < tokenizer->vocab_size(), "ids are of the vocabulary");
  tokenizer->decode(ids);
}

// Bodies of the server's requests.
void run_request(std::string_view bytes, bool chat) {
  static const auto tokenizer = data::byte_tokenizer();
  serve::ApiOptions options;
  options.model = "tiny";
  options.chat = serve::ChatTemplate::chatml;
  constexpr std::int64_t kLongest = 200, kVocabulary = 258;
  const serve::RequestContext context{options, *tokenizer, kLongest, kVocabulary};
  const auto request = chat ? serve::parse_chat(bytes, context) : serve::parse_completion(bytes, context);
  // Accepted: texts that the scheduler takes.
  const auto texts = serve::texts_of(request);
  require(!texts.empty() && static_cast<std::int64_t>(texts.size()) <= options.max_texts,
          "a number of texts");
  require(!request.echo || request.echoed.size() == request.prompts.size(), "a text to echo for each prompt");
  for (const serve::TextRequest& text : texts) {
    const auto length = static_cast<std::int64_t>(text.prompt.span().size());
    require(length > 0 && text.max_tokens >= 0 && length + text.max_tokens <= kLongest, "texts fit");
    require(text.max_tokens > 0 || request.echo, "a text is written");
    for (const std::int64_t id : text.prompt.span())
      require(id >= 0 && id < kVocabulary, "ids are of the vocabulary");
    for (const std::string& stop : text.stops) require(!stop.empty(), "stop strings are not empty");
    text.sampling.validate();
  }
}

void run_completion(std::string_view bytes) { run_request(bytes, false); }
void run_chat(std::string_view bytes) { run_request(bytes, true); }

const std::vector<std::string> kJsonWords = {"{",
                                             "}",
                                             "[",
                                             "]",
                                             ":",
                                             ",",
                                             "\"",
                                             "null",
                                             "true",
                                             "false",
                                             "0",
                                             "-1",
                                             "1e999",
                                             "9223372036854775807",
                                             "9223372036854775808",
                                             "18446744073709551616",
                                             "1.5",
                                             "\\u0000",
                                             "\\ud800",
                                             "\xff",
                                             "\xc3\xa9"};

std::vector<std::string> json_words_and(std::vector<std::string> more) {
  more.insert(more.end(), kJsonWords.begin(), kJsonWords.end());
  return more;
}

// What requests for completions and chats share.
std::vector<std::string> request_words_and(std::vector<std::string> more) {
  more.insert(more.end(), {"\"model\"",
                           "\"tiny\"",
                           "\"n\"",
                           "\"stop\"",
                           "\"seed\"",
                           "\"temperature\"",
                           "\"top_p\"",
                           "\"top_k\"",
                           "\"min_p\"",
                           "\"repetition_penalty\"",
                           "\"max_tokens\"",
                           "\"max_completion_tokens\"",
                           "\"stream\"",
                           "\"stream_options\"",
                           "\"include_usage\"",
                           "\"logprobs\"",
                           "\"response_format\"",
                           "\"type\"",
                           "\"text\"",
                           "\"ignore_eos\"",
                           "\\u00e9",
                           "\\ud800",
                           "9223372036854775808",
                           "1e999",
                           "0.5"});
  return json_words_and(std::move(more));
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"safetensors", run_safetensors,
       json_words_and({"\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\"", "\"F32\"",
                       "\"BF16\"", "\"F64\"", "\"U8\"", "\"BOOL\"", "\"F8_E4M3\"", "[0,0]", "[]",
                       "4611686018427387904", "2147483648"}),
       true},
      {"config", run_config,
       json_words_and({"\"model_type\"",
                       "\"gsa\"",
                       "\"llama\"",
                       "\"mistral\"",
                       "\"qwen2\"",
                       "\"qwen3\"",
                       "\"qkv_bias\"",
                       "\"qk_norm\"",
                       "\"sliding_window\"",
                       "\"use_sliding_window\"",
                       "\"max_window_layers\"",
                       "\"layer_types\"",
                       "\"sliding_attention\"",
                       "\"linear\"",
                       "\"llama3\"",
                       "\"low_freq_factor\"",
                       "\"high_freq_factor\"",
                       "\"mscale\"",
                       "\"truncate\"",
                       "\"vocab_size\"",
                       "\"hidden_size\"",
                       "\"head_dim\"",
                       "\"num_attention_heads\"",
                       "\"num_key_value_heads\"",
                       "\"num_hidden_layers\"",
                       "\"intermediate_size\"",
                       "\"rope_scaling\"",
                       "\"rope_parameters\"",
                       "\"rope_theta\"",
                       "\"yarn\"",
                       "\"rope_type\"",
                       "\"factor\"",
                       "\"original_max_position_embeddings\"",
                       "\"attention_factor\"",
                       "\"index_topk\"",
                       "\"index_budget\"",
                       "\"inverse\"",
                       "\"fixed\"",
                       "\"index_score\"",
                       "\"relu\"",
                       "\"value_gate\"",
                       "\"headwise\"",
                       "\"eos_token_id\"",
                       "\"sparse_attention\"",
                       "\"max_position_embeddings\"",
                       "\"rms_norm_eps\"",
                       "1e-300",
                       "1e300",
                       "2147483647"})},
      {"index", run_index,
       json_words_and({"\"weight_map\"", "\"metadata\"", "\"total_size\"",
                       "\"model-00001-of-00002.safetensors\"", "\"../x\"", "\"..\"", "\"a\\u0000b\"",
                       "\"model.norm.weight\""})},
      {"dataset", run_dataset,
       json_words_and({"\"format\"", "\"gsa-dataset\"", "\"version\"", "\"tokenizer\"",
                       "\"tokenizer_fingerprint\"", "\"vocab_size\"", "\"token_bytes\"", "\"tokens\"",
                       "\"documents\"", "\"text_bytes\"", "\"shards\"", "\"tokens_file\"",
                       "\"documents_file\"", "\"tokens_crc32c\"", "\"documents_crc32c\"", "\"../x\"",
                       "281474976710656"})},
      {"cache", run_cache,
       json_words_and({"\"__metadata__\"",
                       "\"format\"",
                       "\"gsa-cache\"",
                       "\"version\"",
                       "\"1\"",
                       "\"model\"",
                       "\"tokens\"",
                       "\"trailer.crc32c\"",
                       "\"layers.0.k\"",
                       "\"layers.0.v\"",
                       "\"layers.0.index_k\"",
                       "\"layers.0.index_scale\"",
                       "\"dtype\"",
                       "\"shape\"",
                       "\"data_offsets\"",
                       "\"I64\"",
                       "\"I8\"",
                       "\"U8\"",
                       "\"F32\"",
                       "\"BF16\"",
                       "[1,1,2]"}),
       true},
      {"tokenizer", run_tokenizer,
       json_words_and({"\"type\"",
                       "\"BPE\"",
                       "\"Sequence\"",
                       "\"ByteLevel\"",
                       "\"Split\"",
                       "\"Metaspace\"",
                       "\"Digits\"",
                       "\"NFC\"",
                       "\"Prepend\"",
                       "\"Replace\"",
                       "\"Strip\"",
                       "\"Fuse\"",
                       "\"ByteFallback\"",
                       "\"Regex\"",
                       "\"String\"",
                       "\"Isolated\"",
                       "\"MergedWithNext\"",
                       "\"lstrip\"",
                       "\"single_word\"",
                       "\"normalized\"",
                       "\"unk_token\"",
                       "\"fuse_unk\"",
                       "\"ignore_merges\"",
                       "\\\\s+",
                       "\\\\p{L}",
                       "(?!",
                       "[^",
                       "*"})},
      {"completion", run_completion,
       request_words_and({"\"prompt\"", "\"echo\"", "\"best_of\"", "\"suffix\"", "\"add_special_tokens\"",
                          "[[1],[2]]", "[97,98]"})},
      {"chat", run_chat,
       request_words_and({"\"messages\"", "\"role\"", "\"content\"", "\"user\"", "\"system\"",
                          "\"developer\"", "\"assistant\"", "\"tool\"", "\"tools\"", "\"tool_choice\"",
                          "\"none\"", "\"top_logprobs\"", "<|im_end|>"})},
  };
  return all;
}

}  // namespace gsa::fuzz
