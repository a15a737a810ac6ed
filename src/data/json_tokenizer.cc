#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <utility>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/json_reader.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"

namespace gsa::data {
namespace {

constexpr std::int64_t kMaxConfigBytes = 16 << 20;

// A file beside tokenizer.json; null where there is none.
Json beside(const std::filesystem::path& folder, const char* name) {
  const auto path = folder / name;
  if (!std::filesystem::is_regular_file(path)) return {};
  Json json = parse_json(read_file(path, kMaxConfigBytes), path.string());
  return json.is_object() ? json : Json();
}

// A token by name ("<s>", or an object with its content), or an id, or a list of ids of which the first counts.
Json first_mark(const Json& value) {
  if (value.is_object()) return value.value("content", Json());
  if (value.is_array()) return value.empty() ? Json() : value.front();
  return value;
}

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string text, const std::filesystem::path& folder, const std::string& name)
      : text_(std::move(text)), parts_(parse_tokenizer_json(text_, name)), bpe_(parts_.bpe) {
    unknown_ = std::exchange(parts_.bpe, {}).unknown;
    bytes_.resize(parts_.vocabulary.size());
    for (std::size_t id = 0; id < bytes_.size(); ++id) {
      if (parts_.vocabulary[id]) bytes_[id] = bytes_of_token(*parts_.vocabulary[id]);
    }
    for (const AddedToken& token : parts_.added) add(token);
    config_ = beside(folder, "tokenizer_config.json");
    const Json model = beside(folder, "config.json"), generation = beside(folder, "generation_config.json");
    const auto bos = mark("bos_token", parts_.bos(), {model, generation}, name);
    const auto eos = mark("eos_token", parts_.eos, {model, generation}, name);
    if (!eos) {
      bad_file(name,
               "eos_token in the tokenizer_config.json beside it, or eos_token_id in config.json or "
               "generation_config.json",
               "none");
    }
    eos_ = *eos;
    bos_ = bos.value_or(eos_);
    bos_named_ = bos.has_value();
    for (const std::string& token : parts_.beginning)
      beginning_.push_back(id_of(token, "post_processor", name));
    if (beginning_.empty() && bos && adds_bos(folder)) beginning_.push_back(bos_);
    bytes_[static_cast<std::size_t>(bos_)].clear();
    bytes_[static_cast<std::size_t>(eos_)].clear();
    marks_[0] = bos_;
    marks_[1] = eos_;
  }

  std::string kind() const override { return "tokenizer.json"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::int32_t bos() const override { return bos_; }
  std::int32_t eos() const override { return eos_; }
  std::vector<std::int32_t> beginning() const override { return beginning_; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    encode_with(every_, text, true, ids);
  }

  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids, bool at_start) const override {
    encode_with(ordinary_, text, at_start, ids);
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    bool first = true;
    for (const std::int32_t id : ids) {
      check(id);
      const std::string& bytes = bytes_[static_cast<std::size_t>(id)];
      if (first && !bytes.empty() && !parts_.decoder.drop_in_first.empty()) {
        text += replaced(*parts_.vocabulary[static_cast<std::size_t>(id)], parts_.decoder.drop_in_first, "");
      } else {
        text += bytes;
      }
      first = first && bytes.empty();
    }
    for (const auto& strip : parts_.decoder.strip) {
      std::string_view rest = text;
      const std::size_t size = strip.content.size();
      for (std::int64_t i = 0; i < strip.start && rest.starts_with(strip.content); ++i)
        rest.remove_prefix(size);
      for (std::int64_t i = 0; i < strip.stop && rest.ends_with(strip.content); ++i) rest.remove_suffix(size);
      text = std::string(rest);
    }
    return text;
  }

  std::string bytes_of(std::int32_t id) const override {
    check(id);
    return bytes_[static_cast<std::size_t>(id)];
  }

  void save(const std::filesystem::path& folder) const override {
    write_file(folder / "tokenizer.json", text_);
    // The marks by name: the files that named them otherwise are not there.
    Json config = config_.is_object() ? config_ : Json{{"tokenizer_class", "PreTrainedTokenizerFast"}};
    const auto name = [&](const char* key, std::int32_t id) {
      if (first_mark(config.value(key, Json())).is_null()) {
        config[key] = *parts_.vocabulary[static_cast<std::size_t>(id)];
      }
    };
    if (bos_named_) name("bos_token", bos_);
    name("eos_token", eos_);
    write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
  }

  std::uint32_t fingerprint() const override {
    return crc32c(std::as_bytes(std::span(marks_)), crc32c(std::as_bytes(std::span(text_))));
  }

 private:
  struct Work {
    RegexScratch regex;
    Bpe::Scratch bpe;
    Words words;
  };

  // Tokens that are looked for: before the normalizers, and behind them.
  struct Sought {
    AddedTokens plain, normalized;
    bool marks;  // whether special ones are among them
  };

  // Encoding is called from many threads: each borrows what it writes to.
  class Borrowed {
   public:
    explicit Borrowed(const JsonTokenizer& owner) : owner_(owner) {
      {
        const std::lock_guard lock(owner.mutex_);
        if (!owner.idle_.empty()) {
          work_ = std::move(owner.idle_.back());
          owner.idle_.pop_back();
        }
      }
      if (!work_) work_ = std::make_unique<Work>();
    }
    ~Borrowed() {
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(work_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Work& operator*() const { return *work_; }
    Work* operator->() const { return work_.get(); }

   private:
    const JsonTokenizer& owner_;
    std::unique_ptr<Work> work_;
  };

  void check(std::int32_t id) const {
    if (id >= 0 && id < vocab_size()) return;
    bad_argument("decode", "ids", concat("ids in 0 .. ", vocab_size() - 1), concat(id));
  }

  std::string bytes_of_token(const std::string& token) const {
    const auto& decoder = parts_.decoder;
    if (decoder.byte_level) return byte_level_bytes(token).value_or(token);
    std::string text = token;
    for (const auto& [from, to] : decoder.replace) text = replaced(text, from, to);
    if (!decoder.byte_fallback || text.size() != 6 || !text.starts_with("<0x")) return text;
    const int byte = hexadecimal(text[3]) * 16 + hexadecimal(text[4]);
    return text[5] == '>' && byte >= 0 ? std::string(1, static_cast<char>(byte)) : text;
  }

  static int hexadecimal(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -256;
  }

  void add(const AddedToken& token) {
    std::string text = token.content;
    if (token.normalized) {
      for (const auto& step : parts_.normalizers) step->apply(text, false);
    }
    (token.normalized ? every_.normalized : every_.plain).add(token, text);
    if (token.special && token.content != unknown_) special_.insert(token.id);
    if (!token.special) (token.normalized ? ordinary_.normalized : ordinary_.plain).add(token, text);
    std::string& bytes = bytes_[static_cast<std::size_t>(token.id)];
    bytes = token.special ? "" : parts_.decoder.byte_level ? text : bytes_of_token(text);
  }

  // Tokenizers of Llama's class add the mark by this key where the post-processor does not say so.
  bool adds_bos(const std::filesystem::path& folder) const {
    if (!config_.is_object()) return false;
    const std::string file = (folder / "tokenizer_config.json").string();
    return JsonReader(config_, "", file).boolean("add_bos_token", false);
  }

  std::int32_t id_of(const Json& token, const char* key, const std::string& name) const {
    if (token.is_number_unsigned() && token.get<std::uint64_t>() < parts_.vocabulary.size() &&
        parts_.vocabulary[token.get<std::size_t>()]) {
      return token.get<std::int32_t>();
    }
    if (token.is_string()) {
      const auto found =
          std::find(parts_.vocabulary.begin(), parts_.vocabulary.end(), token.get_ref<const std::string&>());
      if (found != parts_.vocabulary.end())
        return static_cast<std::int32_t>(found - parts_.vocabulary.begin());
    }
    bad_file(name, concat("a token for ", key), shown(token));
  }

  // None where no file names it.
  std::optional<std::int32_t> mark(const char* key, const std::optional<std::string>& processor,
                                   const std::array<Json, 2>& files, const std::string& name) const {
    const std::string id_key = concat(key, "_id");
    Json value = config_.is_object() ? first_mark(config_.value(key, Json())) : Json();
    if (value.is_null() && processor) value = *processor;
    for (const Json& file : files) {
      if (value.is_null() && file.is_object()) value = first_mark(file.value(id_key, Json()));
      if (value == -1) value = Json();  // stands for "none" in some files
    }
    if (value.is_null()) return std::nullopt;
    return id_of(value, key, name);
  }

  void encode_with(const Sought& sought, std::string_view text, bool at_start,
                   std::vector<std::int32_t>& ids) const {
    const Borrowed work(*this);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t valid = valid_utf8(text.substr(at));
      if (valid > 0) encode_valid(sought, text.substr(at, valid), at_start && at == 0, at > 0, *work, ids);
      at += valid;
      const std::size_t broken = at;
      while (at < text.size()) {
        const Utf8Beginning beginning = first_character(text.substr(at));
        if (beginning.state == Utf8Beginning::complete) break;
        at += beginning.length;
      }
      if (at > broken) bpe_.encode_bytes(text.substr(broken, at - broken), work->bpe, ids);
    }
  }

  // at_start: of the whole text; inside: behind bytes that are no UTF-8.
  void encode_valid(const Sought& sought, std::string_view text, bool at_start, bool inside, Work& work,
                    std::vector<std::int32_t>& ids) const {
    const char* begin = text.data();
    const auto is_special = [&](std::int32_t id) { return special_.contains(id); };
    const auto words = [&](std::string_view part, bool starts, bool continues) {
      work.words.text.assign(part);
      work.words.spans.assign(1, {0, part.size()});
      work.words.at_start = starts;
      work.words.continues = continues;
      for (const auto& step : parts_.pre_tokenizers) step->apply(work.words, work.regex);
      for (const Words::Span span : work.words.spans) {
        const std::string_view word = work.words.at(span);
        const auto before = static_cast<std::ptrdiff_t>(ids.size());
        bpe_.encode(word, work.bpe, ids);
        if (sought.marks || std::none_of(ids.begin() + before, ids.end(), is_special)) continue;
        // A vocabulary may have marks among its words. No mark is a character.
        ids.resize(static_cast<std::size_t>(before));
        for (std::string_view rest = word; !rest.empty(); rest.remove_prefix(character_length(rest))) {
          bpe_.encode(rest.substr(0, character_length(rest)), work.bpe, ids);
        }
      }
    };
    sought.plain.split(text, work.regex, [&](std::int32_t id, std::string_view part) {
      if (id >= 0) return ids.push_back(id);
      const bool starts = at_start && part.data() == begin, continues = inside && part.data() == begin;
      if (parts_.normalizers.empty() && sought.normalized.empty()) return words(part, starts, continues);
      std::string normal(part);
      for (const auto& step : parts_.normalizers) step->apply(normal, continues);
      sought.normalized.split(normal, work.regex, [&](std::int32_t inner, std::string_view rest) {
        if (inner >= 0) return ids.push_back(inner);
        const bool first = rest.data() == normal.data();
        words(rest, starts && first, continues && first);
      });
    });
  }

  std::string text_;
  TokenizerJson parts_;
  Bpe bpe_;
  std::optional<std::string> unknown_;
  std::vector<std::string> bytes_;  // by id
  Sought every_{.plain = {}, .normalized = {}, .marks = true};
  Sought ordinary_{.plain = {}, .normalized = {}, .marks = false};
  std::set<std::int32_t> special_;  // ids, but for the one of unknown characters
  Json config_;                     // tokenizer_config.json, null where there is none
  std::int32_t bos_ = 0, eos_ = 0;
  bool bos_named_ = true;  // false: no file names one, and eos_ stands for it
  std::vector<std::int32_t> beginning_;
  std::array<std::int32_t, 2> marks_{};
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Work>> idle_;
};

}  // namespace

std::unique_ptr<Tokenizer> json_tokenizer(std::string text, const std::filesystem::path& folder,
                                          const std::string& name) {
  return std::make_unique<JsonTokenizer>(std::move(text), folder, name);
}

}  // namespace gsa::data
