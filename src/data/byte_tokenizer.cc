#include "core/file.h"
#include "core/json.h"
#include "data/tokenizer.h"

namespace gsa::data {
namespace {

constexpr std::int32_t kBos = 256, kEos = 257, kVocabulary = 258;

class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return kVocabulary; }
  std::int32_t bos() const override { return kBos; }
  std::int32_t eos() const override { return kEos; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= kVocabulary) {
        bad_argument("decode", "ids", concat("ids in 0 .. ", kVocabulary - 1), concat(id));
      }
      if (id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  std::string bytes_of(std::int32_t id) const override { return decode({&id, 1}); }

  void save(const std::filesystem::path& folder) const override {
    const OrderedJson config{{"tokenizer_class", "GsaByteTokenizer"},
                             {"vocab_size", kVocabulary},
                             {"bos_token_id", kBos},
                             {"eos_token_id", kEos}};
    write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
  }

  std::uint32_t fingerprint() const override { return 0x62797465; }  // "byte"
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace gsa::data
