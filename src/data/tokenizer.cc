#include "data/tokenizer.h"

#include "core/file.h"
#include "core/json.h"

namespace gsa::data {
namespace {

constexpr std::int64_t kMaxModelBytes = 256 << 20;
constexpr std::int64_t kMaxConfigBytes = 16 << 20;

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& source) {
  if (source == "bytes") return byte_tokenizer();
  if (std::filesystem::is_regular_file(source)) {
    return sentencepiece_tokenizer(read_file(source, kMaxModelBytes), source.string());
  }
  if (!std::filesystem::is_directory(source)) {
    bad_file(source.string(), "a model's folder, a SentencePiece file, or the word 'bytes'", "no such file");
  }
  const auto model = source / "tokenizer.model";
  if (std::filesystem::is_regular_file(model)) {
    return sentencepiece_tokenizer(read_file(model, kMaxModelBytes), model.string());
  }
  const auto config_file = source / "tokenizer_config.json";
  if (!std::filesystem::is_regular_file(config_file)) {
    bad_file(source.string(), "tokenizer.model or tokenizer_config.json in the folder", "neither");
  }
  const Json config = parse_json(read_file(config_file, kMaxConfigBytes), config_file.string());
  const Json* kind =
      config.is_object() && config.contains("tokenizer_class") ? &config["tokenizer_class"] : nullptr;
  if (kind == nullptr || *kind != "GsaByteTokenizer") {
    bad_file(config_file.string(), "tokenizer_class \"GsaByteTokenizer\" where there is no tokenizer.model",
             kind == nullptr ? "none" : shown(*kind));
  }
  return byte_tokenizer();
}

}  // namespace gsa::data
