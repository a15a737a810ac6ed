#include "data/tokenizer.h"

#include "core/dangling_link.h"
#include "core/file.h"
#include "core/json.h"

namespace gsa::data {
namespace {

constexpr std::int64_t kMaxModelBytes = 256 << 20;
constexpr std::int64_t kMaxKindBytes = 16 << 20;
constexpr const char* kByteClass = "GsaByteTokenizer";

// What tokenizer_config.json calls its tokenizer; null where it does not.
Json tokenizer_class(const std::filesystem::path& config_file) {
  const Json config = parse_json(read_file(config_file, kMaxKindBytes), config_file.string());
  return config.is_object() ? config.value("tokenizer_class", Json()) : Json();
}

}  // namespace

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids = tokenizer.beginning();
  tokenizer.encode(text, ids);
  if (ids.empty()) ids.push_back(tokenizer.bos());
  return ids;
}

bool has_tokenizer(const std::filesystem::path& folder) {
  const auto config_file = folder / "tokenizer_config.json";
  return std::filesystem::is_regular_file(folder / "tokenizer.model") ||
         std::filesystem::is_regular_file(folder / "tokenizer.json") ||
         (std::filesystem::is_regular_file(config_file) && tokenizer_class(config_file) == kByteClass);
}

void check_same_tokenizer(const std::filesystem::path& model, const std::filesystem::path& dataset,
                          std::uint32_t fingerprint, const char* option) {
  const auto cannot_compare = [&](const std::filesystem::path& file, const std::string& why) {
    bad_file(dataset.string(), concat("a dataset of the model's tokenizer, ", file.string()),
             concat("one whose ids cannot be compared with it: ", why, " (", option,
                    " takes the ids for the model's)"));
  };
  if (has_tokenizer(model)) {
    std::uint32_t own = 0;
    try {
      own = load_tokenizer(model)->fingerprint();
    } catch (const Error& error) {
      cannot_compare(model, error.what());
    }
    if (own == fingerprint) return;
    bad_file(dataset.string(), concat("a dataset of the tokenizer in ", model.string()),
             concat("one of another tokenizer (gsa tokenize --tokenizer ", model.string(),
                    " makes one that fits; ", option, " takes this one as it is)"));
  }
  for (const char* name :
       {"tokenizer_config.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tiktoken.model"}) {
    if (!std::filesystem::exists(model / name)) continue;
    cannot_compare(model / name, "gsa reads tokenizer.model, tokenizer.json and its own byte tokenizer");
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& source) {
  if (source == "bytes") return byte_tokenizer();
  const auto from_file = [](const std::filesystem::path& file) {
    std::string content = read_file(file, kMaxModelBytes);
    return file.extension() == ".json" ? json_tokenizer(std::move(content), file.parent_path(), file.string())
                                       : sentencepiece_tokenizer(std::move(content), file.string());
  };
  if (std::filesystem::is_regular_file(source)) return from_file(source);
  if (!std::filesystem::is_directory(source)) {
    bad_file(source.string(), "a model's folder, a SentencePiece file, a tokenizer.json, or the word 'bytes'",
             concat("no such file", dangling_link(source)));
  }
  const auto json = source / "tokenizer.json", model = source / "tokenizer.model";
  const bool has_model = std::filesystem::is_regular_file(model);
  if (std::filesystem::is_regular_file(json)) {
    try {
      return from_file(json);
    } catch (const Error& error) {
      if (!has_model) throw;
      throw Error(concat(error.what(), " (", model.string(), " is read where there is no tokenizer.json)"));
    }
  }
  if (has_model) return from_file(model);
  const auto config_file = source / "tokenizer_config.json";
  if (!std::filesystem::is_regular_file(config_file)) {
    bad_file(source.string(), "tokenizer.json, tokenizer.model or tokenizer_config.json in the folder",
             "none of them");
  }
  const Json kind = tokenizer_class(config_file);
  if (kind != kByteClass) {
    bad_file(config_file.string(),
             "tokenizer_class \"GsaByteTokenizer\" where there is no tokenizer.model or tokenizer.json",
             kind.is_null() ? "none" : shown(kind));
  }
  return byte_tokenizer();
}

}  // namespace gsa::data
