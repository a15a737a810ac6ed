#include "data/tokenizer.h"

#include "core/dangling_link.h"
#include "core/file.h"
#include "core/json.h"

namespace gsa::data {
namespace {

constexpr std::int64_t kMaxModelBytes = 256 << 20;
constexpr std::int64_t kMaxConfigBytes = 16 << 20;
constexpr const char* kByteClass = "GsaByteTokenizer";

// What tokenizer_config.json calls its tokenizer; null where it does not.
Json tokenizer_class(const std::filesystem::path& config_file) {
  const Json config = parse_json(read_file(config_file, kMaxConfigBytes), config_file.string());
  return config.is_object() ? config.value("tokenizer_class", Json()) : Json();
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& folder) {
  const auto config_file = folder / "tokenizer_config.json";
  return std::filesystem::is_regular_file(folder / "tokenizer.model") ||
         (std::filesystem::is_regular_file(config_file) && tokenizer_class(config_file) == kByteClass);
}

void check_same_tokenizer(const std::filesystem::path& model, const std::filesystem::path& dataset,
                          std::uint32_t fingerprint, const char* option) {
  if (has_tokenizer(model)) {
    if (load_tokenizer(model)->fingerprint() == fingerprint) return;
    bad_file(dataset.string(), concat("a dataset of the tokenizer in ", model.string()),
             concat("one of another tokenizer (gsa tokenize --tokenizer ", model.string(),
                    " makes one that fits; ", option, " takes this one as it is)"));
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "merges.txt",
                           "spiece.model", "tiktoken.model"}) {
    if (!std::filesystem::exists(model / name)) continue;
    bad_file(dataset.string(), concat("a dataset of the model's tokenizer, ", (model / name).string()),
             concat("one whose ids cannot be compared with it: gsa reads tokenizer.model and its own byte "
                    "tokenizer (",
                    option, " takes the ids for the model's)"));
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& source) {
  if (source == "bytes") return byte_tokenizer();
  if (std::filesystem::is_regular_file(source)) {
    return sentencepiece_tokenizer(read_file(source, kMaxModelBytes), source.string());
  }
  if (!std::filesystem::is_directory(source)) {
    bad_file(source.string(), "a model's folder, a SentencePiece file, or the word 'bytes'",
             concat("no such file", dangling_link(source)));
  }
  const auto model = source / "tokenizer.model";
  if (std::filesystem::is_regular_file(model)) {
    return sentencepiece_tokenizer(read_file(model, kMaxModelBytes), model.string());
  }
  const auto config_file = source / "tokenizer_config.json";
  if (!std::filesystem::is_regular_file(config_file)) {
    bad_file(source.string(), "tokenizer.model or tokenizer_config.json in the folder", "neither");
  }
  const Json kind = tokenizer_class(config_file);
  if (kind != kByteClass) {
    bad_file(config_file.string(), "tokenizer_class \"GsaByteTokenizer\" where there is no tokenizer.model",
             kind.is_null() ? "none" : shown(kind));
  }
  return byte_tokenizer();
}

}  // namespace gsa::data
