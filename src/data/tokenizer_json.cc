#include "data/tokenizer_json.h"

#include <functional>

#include "core/utf8.h"
#include "data/json_reader.h"

namespace gsa::data {
namespace {

constexpr std::int64_t kMaxId = (1 << 24) - 1;
// What ByteLevel splits by, GPT-2's pattern.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Calls `step` with each part of a "Sequence", or with the object itself; null is nothing.
void each(const Json& value, const std::string& place, const char* list, const std::string& file,
          const std::function<void(const JsonReader&, const std::string& type)>& step) {
  if (value.is_null()) return;
  const JsonReader reader(value, place, file);
  const std::string type = reader.string("type");
  if (type != "Sequence") return step(reader, type);
  reader.only({"type", list});
  const Json& parts = reader.at(list);
  if (!parts.is_array()) reader.wrong(list, "a list");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    each(parts[i], concat(reader.path(list), "[", i, "]"), list, file, step);
  }
}

[[noreturn]] void unknown_type(const JsonReader& reader, const std::string& type, const char* known) {
  bad_file(reader.file(), concat("one of ", known, " for ", reader.path("type")), shown(Json(type)));
}

// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  std::string text;
  bool regex = false;
};

Pattern pattern_of(const JsonReader& reader) {
  const JsonReader pattern(reader.at("pattern"), reader.path("pattern"), reader.file());
  pattern.only({"String", "Regex"});
  if (pattern.json().size() != 1) reader.wrong("pattern", "one of String and Regex");
  const bool regex = pattern.json().contains("Regex");
  return {pattern.string(regex ? "Regex" : "String"), regex};
}

// Replace of normalizers and of decoders.
std::pair<std::string, std::string> replacement_of(const JsonReader& reader) {
  reader.only({"type", "pattern", "content"});
  const Pattern pattern = pattern_of(reader);
  if (pattern.regex || pattern.text.empty()) reader.wrong("pattern", "a String that is not empty");
  return {pattern.text, reader.string("content")};
}

std::string one_character(const JsonReader& reader, const char* key) {
  const std::string text = reader.string(key);
  if (text.empty() || character_length(text) != text.size()) reader.wrong(key, "one character");
  return text;
}

void read_normalizers(const Json& value, TokenizerJson& out) {
  each(value, "normalizer", "normalizers", out.bpe.file,
       [&](const JsonReader& reader, const std::string& type) {
         if (type == "NFC") {
           reader.only({"type"});
           out.normalizers.push_back(nfc_normalizer());
         } else if (type == "Prepend") {
           reader.only({"type", "prepend"});
           out.normalizers.push_back(prepend_normalizer(reader.string("prepend")));
         } else if (type == "Replace") {
           auto [from, to] = replacement_of(reader);
           out.normalizers.push_back(replace_normalizer(std::move(from), std::move(to)));
         } else {
           unknown_type(reader, type, "NFC, Prepend, Replace, Sequence");
         }
       });
}

SplitBehavior behavior_of(const JsonReader& reader) {
  const std::string name = reader.string("behavior");
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  reader.wrong("behavior", "one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

PrependScheme scheme_of(const JsonReader& reader) {
  const std::string name = reader.string("prepend_scheme", "always");
  if (name != "always" && name != "first" && name != "never") {
    reader.wrong("prepend_scheme", "one of always, first, never");
  }
  if (!reader.boolean("add_prefix_space", true) && name != "never") {
    reader.wrong("add_prefix_space", "true, or the prepend_scheme never,");
  }
  return name == "always"  ? PrependScheme::always
         : name == "first" ? PrependScheme::first
                           : PrependScheme::never;
}

void read_pre_tokenizers(const Json& value, TokenizerJson& out) {
  const std::string& file = out.bpe.file;
  each(value, "pre_tokenizer", "pretokenizers", file, [&](const JsonReader& reader, const std::string& type) {
    const auto add = [&](std::unique_ptr<PreTokenizer> step) {
      out.pre_tokenizers.push_back(std::move(step));
    };
    // Behind ByteLevel others would cut its alphabet, not the text.
    if (out.bpe.byte_level) bad_file(file, "ByteLevel as the last pre-tokenizer", concat(type, " behind it"));
    if (type == "ByteLevel") {
      reader.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (reader.boolean("add_prefix_space", true)) add(prefix_space_pre_tokenizer());
      if (reader.boolean("use_regex", true)) {
        add(split_pre_tokenizer(Regex(kByteLevelPattern, file), SplitBehavior::isolated, false));
      }
      out.bpe.byte_level = true;
    } else if (type == "Split") {
      reader.only({"type", "pattern", "behavior", "invert"});
      const Pattern pattern = pattern_of(reader);
      add(split_pre_tokenizer(Regex(pattern.regex ? pattern.text : escaped_pattern(pattern.text), file),
                              behavior_of(reader), reader.boolean("invert", false)));
    } else if (type == "Digits") {
      reader.only({"type", "individual_digits"});
      add(split_pre_tokenizer(
          Regex(R"(\p{N})", file),
          reader.boolean("individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous,
          false));
    } else if (type == "Metaspace") {
      reader.only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
      add(metaspace_pre_tokenizer(one_character(reader, "replacement"), scheme_of(reader),
                                  reader.boolean("split", true)));
    } else {
      unknown_type(reader, type, "ByteLevel, Split, Digits, Metaspace, Sequence");
    }
  });
}

void read_decoder(const Json& value, TokenizerJson& out) {
  auto& decoder = out.decoder;
  if (value.is_null()) bad_file(out.bpe.file, "a decoder", "none");
  int stage = -1;  // of the step before
  const auto advance = [&](const JsonReader& reader, const std::string& type, int next, bool again) {
    if (next < stage || (next == stage && !again)) {
      bad_file(reader.file(),
               "decoders in the order Replace, ByteFallback, Fuse, Strip, or one ByteLevel or Metaspace",
               concat(type, " at ", reader.place()));
    }
    stage = next;
  };
  each(value, "decoder", "decoders", out.bpe.file, [&](const JsonReader& reader, const std::string& type) {
    if (type == "Replace") {
      advance(reader, type, 0, true);
      decoder.replace.push_back(replacement_of(reader));
    } else if (type == "ByteFallback") {
      advance(reader, type, 1, false);
      reader.only({"type"});
      decoder.byte_fallback = true;
    } else if (type == "Fuse") {
      advance(reader, type, 2, false);
      reader.only({"type"});
    } else if (type == "Strip") {
      // Before Fuse it would strip every token.
      if (stage < 2) bad_file(reader.file(), concat("Fuse before ", reader.place()), "none");
      advance(reader, type, 3, true);
      reader.only({"type", "content", "start", "stop"});
      decoder.strip.push_back({one_character(reader, "content"), reader.integer("start", 0, 1 << 20),
                               reader.integer("stop", 0, 1 << 20)});
    } else if (type == "ByteLevel") {
      if (stage >= 0) advance(reader, type, -1, false);
      stage = 4;
      decoder.byte_level = true;
    } else if (type == "Metaspace") {
      if (stage >= 0) advance(reader, type, -1, false);
      stage = 4;
      reader.only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
      const std::string replacement = one_character(reader, "replacement");
      decoder.replace.emplace_back(replacement, " ");
      if (scheme_of(reader) != PrependScheme::never) decoder.drop_in_first = replacement;
    } else {
      unknown_type(reader, type, "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence");
    }
  });
  if (stage < 0) bad_file(out.bpe.file, "a decoder", "an empty Sequence");
  if (decoder.byte_level != out.bpe.byte_level) {
    bad_file(out.bpe.file, "ByteLevel both as pre-tokenizer and as decoder, or as neither",
             decoder.byte_level ? "only the decoder" : "only the pre-tokenizer");
  }
}

void read_post_processor(const Json& value, TokenizerJson& out) {
  each(value, "post_processor", "processors", out.bpe.file,
       [&](const JsonReader& reader, const std::string& type) {
         if (type == "ByteLevel") return;  // about offsets
         if (type != "TemplateProcessing")
           unknown_type(reader, type, "ByteLevel, TemplateProcessing, Sequence");
         const Json& parts = reader.at("single");
         if (!parts.is_array()) reader.wrong("single", "a list");
         bool behind = false;
         std::vector<std::string> beginning;
         for (const Json& part : parts) {
           const Json mark = part.is_object() ? part.value("SpecialToken", Json()) : Json();
           if (!mark.is_object()) {
             behind = true;
             continue;
           }
           std::string token = JsonReader(mark, reader.path("single"), reader.file()).string("id");
           if (behind) {
             out.eos = std::move(token);
           } else {
             beginning.push_back(std::move(token));
           }
         }
         // Of several, each puts its own around what those before it gave.
         out.beginning.insert(out.beginning.begin(), beginning.begin(), beginning.end());
       });
}

void put_token(std::vector<std::optional<std::string>>& tokens, std::int64_t id, const std::string& token,
               const std::string& file) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= tokens.size()) tokens.resize(at + 1);
  if (tokens[at] && *tokens[at] != token) {
    bad_file(file, "one token for each id",
             concat(shown(Json(*tokens[at])), " and ", shown(Json(token)), " for ", id));
  }
  tokens[at] = token;
}

// "a b" of older files, ["a", "b"] of newer ones.
BpeConfig::Merge merge_of(const Json& value, std::size_t rank, const std::string& file) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  bad_file(file, concat("two tokens for model.merges[", rank, "]"), shown(value));
}

void read_model(const Json& value, TokenizerJson& out) {
  BpeConfig& bpe = out.bpe;
  const JsonReader reader(value, "model", bpe.file);
  const std::string type = reader.string("type", "BPE");
  if (type != "BPE") unknown_type(reader, type, "BPE");
  reader.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
               "byte_fallback", "ignore_merges", "vocab", "merges"});
  const Json& dropout = reader.at("dropout");
  if (!dropout.is_null() && dropout != 0) reader.wrong("dropout", "null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!reader.string(key, "").empty()) reader.wrong(key, "null");
  }
  if (!reader.at("unk_token").is_null()) bpe.unknown = reader.string("unk_token");
  bpe.fuse_unknown = reader.boolean("fuse_unk", false);
  bpe.byte_fallback = reader.boolean("byte_fallback", false);
  bpe.ignore_merges = reader.boolean("ignore_merges", false);

  const Json& vocabulary = reader.at("vocab");
  const Json& merges = reader.at("merges");
  if (!vocabulary.is_object()) reader.wrong("vocab", "an object");
  if (!merges.is_array()) reader.wrong("merges", "a list");
  out.vocabulary.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxId) {
      bad_file(bpe.file, concat("an id in 0 .. ", kMaxId, " for the token ", shown(Json(token))), shown(id));
    }
    put_token(out.vocabulary, id.get<std::int64_t>(), token, bpe.file);
  }
  // A token that is not written in the alphabet of bytes cannot come of merging bytes.
  bpe.tokens = out.vocabulary;
  const auto as_bytes = [&](std::string& token) {
    std::optional<std::string> bytes = byte_level_bytes(token);
    if (bytes) token = std::move(*bytes);
    return bytes.has_value();
  };
  if (bpe.byte_level) {
    for (auto& token : bpe.tokens) {
      if (token && !as_bytes(*token)) token.reset();
    }
  }
  bpe.merges.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    BpeConfig::Merge merge = merge_of(merges[rank], rank, bpe.file);
    if (bpe.byte_level && (!as_bytes(merge.left) || !as_bytes(merge.right))) {
      bad_file(bpe.file, concat("the alphabet of bytes in model.merges[", rank, "]"), shown(merges[rank]));
    }
    bpe.merges.push_back(std::move(merge));
  }
}

void read_added_tokens(const Json& value, TokenizerJson& out) {
  if (value.is_null()) return;
  if (!value.is_array()) bad_file(out.bpe.file, "a list for added_tokens", shown(value));
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < out.vocabulary.size(); ++id) {
    if (out.vocabulary[id]) ids.emplace(*out.vocabulary[id], id);
  }
  std::vector<AddedToken>& added = out.added;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const JsonReader reader(value[i], concat("added_tokens[", i, "]"), out.bpe.file);
    reader.only({"id", "content", "special", "normalized", "lstrip", "rstrip", "single_word"});
    AddedToken token{.id = static_cast<std::int32_t>(reader.integer("id", 0, kMaxId)),
                     .content = reader.string("content"),
                     .special = reader.boolean("special", false),
                     .normalized = reader.boolean("normalized", true),
                     .left_strip = reader.boolean("lstrip", false),
                     .right_strip = reader.boolean("rstrip", false),
                     .single_word = reader.boolean("single_word", false)};
    if (token.content.empty()) reader.wrong("content", "a text that is not empty");
    const auto known = ids.find(token.content);
    if (known != ids.end() && known->second != static_cast<std::size_t>(token.id)) {
      reader.wrong("id", concat("the vocabulary's id ", known->second));
    }
    added.push_back(std::move(token));
  }
  for (const AddedToken& token : added) put_token(out.vocabulary, token.id, token.content, out.bpe.file);
}

}  // namespace

std::optional<std::string> byte_level_bytes(std::string_view token) {
  // Printable bytes stand for themselves, the others for U+0100 and up, in their order.
  static const std::vector<int> bytes = [] {
    std::vector<int> table(0x144, -1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      table[static_cast<std::size_t>(printable ? byte : next++)] = byte;
    }
    return table;
  }();
  std::string result;
  for (std::size_t at = 0; at < token.size();) {
    const std::string_view rest = token.substr(at);
    const std::uint32_t character = code_point(rest);
    if (character >= bytes.size() || bytes[character] < 0) return std::nullopt;
    result += static_cast<char>(bytes[character]);
    at += character_length(rest);
  }
  return result;
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  TokenizerJson out;
  out.bpe.file = file;
  const JsonReader reader(json, "", file);
  reader.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
  if (reader.string("version", "1.0") != "1.0") reader.wrong("version", "\"1.0\"");
  read_normalizers(reader.at("normalizer"), out);
  read_pre_tokenizers(reader.at("pre_tokenizer"), out);
  read_decoder(reader.at("decoder"), out);
  read_post_processor(reader.at("post_processor"), out);
  read_model(reader.at("model"), out);
  read_added_tokens(reader.at("added_tokens"), out);
  return out;
}

}  // namespace gsa::data
