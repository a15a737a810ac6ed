#include "data/dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/crc32c.h"
#include "core/json.h"

namespace gsa::data {
namespace {

constexpr std::int64_t kMaxManifestBytes = 64 << 20;
constexpr std::int64_t kMaxCount = std::int64_t(1) << 48;

// Strict access to one JSON object of the manifest.
class Fields {
 public:
  Fields(const Json& object, std::string file, const std::set<std::string>& known)
      : object_(object), file_(std::move(file)) {
    if (!object.is_object()) bad_file(file_, "an object", shown(object));
    for (const auto& [key, value] : object.items()) {
      if (!known.contains(key)) bad_file(file_, "no key but the format's own", concat("'", key, "'"));
    }
  }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    const Json& value = get(key);
    const bool whole = value.is_number_integer() &&
                       !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t(high));
    if (!whole || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
      bad_file(file_, concat("'", key, "' from ", low, " to ", high), shown(value));
    }
    return value.get<std::int64_t>();
  }

  std::string text(const char* key) const {
    const Json& value = get(key);
    if (!value.is_string()) bad_file(file_, concat("'", key, "' as text"), shown(value));
    return value.get<std::string>();
  }

  const Json& get(const char* key) const {
    if (!object_.contains(key)) bad_file(file_, concat("the key '", key, "'"), "none");
    return object_[key];
  }

 private:
  const Json& object_;
  std::string file_;
};

// A file's name as it may stand in a manifest: in the dataset's own folder.
std::string plain_name(const std::string& name, const std::string& manifest) {
  if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
    bad_file(manifest, "names of files in the same folder", concat("'", name, "'"));
  }
  return name;
}

// What is remembered of a file whose checksum was right. The time of its last change (ctime) is one that
// copying does not bring along and that nobody can set.
Json facts_of(const std::filesystem::path& path, std::uint32_t crc) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {{"bytes", info.st_size},
          {"changed_ns", std::int64_t(info.st_ctim.tv_sec) * 1'000'000'000 + info.st_ctim.tv_nsec},
          {"crc32c", crc}};
}

Json read_verified(const std::filesystem::path& path) {
  try {
    return parse_json(read_file(path, kMaxManifestBytes), path.string());
  } catch (const Error&) {
    return {};  // none, or none that can be read: everything is verified
  }
}

void verify_checksums(const std::filesystem::path& folder, const std::vector<Shard>& shards, bool again) {
  const std::filesystem::path memory = folder / ".verified.json";
  const Json before = again ? Json() : read_verified(memory);
  Json verified = Json::object();
  const auto verify = [&](const std::string& name, std::uint32_t crc) {
    const std::filesystem::path path = folder / name;
    const Json facts = facts_of(path, crc);  // taken before the file is read: what changes it later shows
    verified[name] = facts;
    if (before.is_object() && before.contains(name) && before[name] == facts) return;
    const std::uint32_t found = crc32c(MappedFile(path).bytes());
    if (found != crc) {
      bad_file(path.string(), concat("checksum ", crc, ", as dataset.json says"),
               concat(found, ": the file is damaged"));
    }
  };
  for (const Shard& shard : shards) {
    verify(shard.tokens_file, shard.tokens_crc);
    verify(shard.documents_file, shard.documents_crc);
  }
  if (verified == before) return;
  try {
    write_file(memory, verified.dump(1) + "\n");
  } catch (const Error&) {
    // A folder that is only read cannot remember.
  }
}

void check_size(const std::filesystem::path& path, const MappedFile& file, std::int64_t expected) {
  const std::int64_t size = static_cast<std::int64_t>(file.bytes().size());
  if (size != expected)
    bad_file(path.string(), concat(expected, " bytes, as dataset.json says"), concat(size));
}

std::int64_t end_of(const MappedFile& ends, std::int64_t document) {
  std::uint64_t end;
  std::memcpy(&end, ends.bytes().data() + document * 8, 8);
  return static_cast<std::int64_t>(end);
}

}  // namespace

DatasetManifest parse_manifest(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name);
  const Fields fields(json, name,
                      {"format", "version", "tokenizer", "tokenizer_fingerprint", "vocab_size", "token_bytes",
                       "tokens", "documents", "text_bytes", "shards"});
  if (fields.text("format") != "gsa-dataset") bad_file(name, "format 'gsa-dataset'", fields.text("format"));
  fields.integer("version", 1, 1);
  DatasetManifest manifest;
  manifest.tokenizer = fields.text("tokenizer");
  manifest.tokenizer_fingerprint =
      static_cast<std::uint32_t>(fields.integer("tokenizer_fingerprint", 0, 0xffffffff));
  manifest.vocab_size = fields.integer("vocab_size", 1, 1 << 30);
  manifest.token_bytes = static_cast<int>(fields.integer("token_bytes", 2, 4));
  if (manifest.token_bytes == 3) bad_file(name, "'token_bytes' 2 or 4", "3");
  manifest.text_bytes = fields.integer("text_bytes", 0, kMaxCount);
  const Json& list = fields.get("shards");
  if (!list.is_array()) bad_file(name, "'shards' as a list", shown(list));
  for (const Json& item : list) {
    const Fields shard(
        item, name,
        {"tokens_file", "documents_file", "tokens", "documents", "tokens_crc32c", "documents_crc32c"});
    Shard entry;
    entry.tokens_file = plain_name(shard.text("tokens_file"), name);
    entry.documents_file = plain_name(shard.text("documents_file"), name);
    entry.tokens = shard.integer("tokens", 1, kMaxCount);
    entry.documents = shard.integer("documents", 1, entry.tokens);
    entry.tokens_crc = static_cast<std::uint32_t>(shard.integer("tokens_crc32c", 0, 0xffffffff));
    entry.documents_crc = static_cast<std::uint32_t>(shard.integer("documents_crc32c", 0, 0xffffffff));
    manifest.tokens += entry.tokens;
    manifest.documents += entry.documents;
    if (manifest.tokens > kMaxCount) bad_file(name, concat("at most ", kMaxCount, " tokens in all"), "more");
    manifest.shards.push_back(std::move(entry));
  }
  if (fields.integer("tokens", 0, kMaxCount) != manifest.tokens ||
      fields.integer("documents", 0, kMaxCount) != manifest.documents) {
    bad_file(name, "totals that the shards add up to",
             concat("others than ", manifest.tokens, " and ", manifest.documents));
  }
  if (manifest.documents == 0) bad_file(name, "at least one document", "none");
  return manifest;
}

Dataset::Dataset(const std::filesystem::path& folder, bool verify) : folder_(folder) {
  const auto manifest_path = folder / "dataset.json";
  if (!std::filesystem::is_regular_file(manifest_path)) {
    bad_file(folder.string(), "a dataset (a folder with dataset.json; make one with: gsa tokenize)", "none");
  }
  const std::string text = read_file(manifest_path, kMaxManifestBytes);
  fingerprint_ = crc32c(std::as_bytes(std::span(text)));
  const DatasetManifest manifest = parse_manifest(text, manifest_path.string());
  tokenizer_kind_ = manifest.tokenizer;
  tokenizer_fingerprint_ = manifest.tokenizer_fingerprint;
  vocab_size_ = manifest.vocab_size;
  token_bytes_ = manifest.token_bytes;
  bytes_per_token_ = static_cast<double>(manifest.text_bytes) / static_cast<double>(manifest.tokens);
  shards_.reserve(manifest.shards.size());
  for (const Shard& shard : manifest.shards) add_shard(shard);
  verify_checksums(folder, manifest.shards, verify);
  for (std::size_t i = 0; i < shards_.size(); ++i) check_ends(shards_[i], manifest.shards[i]);
}

void Dataset::add_shard(const Shard& shard) {
  const auto tokens_path = folder_ / shard.tokens_file, ends_path = folder_ / shard.documents_file;
  shards_.push_back(
      {MappedFile(tokens_path), MappedFile(ends_path), documents_, shard.documents, tokens_path.string()});
  check_size(tokens_path, shards_.back().tokens, shard.tokens * token_bytes_);
  check_size(ends_path, shards_.back().ends, shard.documents * 8);
  tokens_ += shard.tokens;
  documents_ += shard.documents;
}

void Dataset::check_ends(const Open& open, const Shard& shard) const {
  const std::string name = (folder_ / shard.documents_file).string();
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < shard.documents; ++i) {
    const std::int64_t end = end_of(open.ends, i);
    if (end <= before || end > shard.tokens) {
      bad_file(name, concat("growing ends up to ", shard.tokens), concat(end, " after ", before));
    }
    before = end;
  }
  if (before != shard.tokens) bad_file(name, concat("a last end of ", shard.tokens), concat(before));
}

Dataset::Place Dataset::place(std::int64_t document) const {
  if (document < 0 || document >= documents_) {
    bad_argument("dataset", "document", concat("0 .. ", documents_ - 1), concat(document));
  }
  const auto after =
      std::upper_bound(shards_.begin(), shards_.end(), document,
                       [](std::int64_t d, const Open& shard) { return d < shard.first_document; });
  const Open& shard = *(after - 1);
  const std::int64_t local = document - shard.first_document;
  return {&shard, local == 0 ? 0 : end_of(shard.ends, local - 1), end_of(shard.ends, local)};
}

std::int64_t Dataset::document_size(std::int64_t document) const {
  const Place where = place(document);
  return where.end - where.begin;
}

void Dataset::read(std::int64_t document, std::int64_t offset, std::span<std::int64_t> out) const {
  const Place where = place(document);
  const std::int64_t size = where.end - where.begin, count = static_cast<std::int64_t>(out.size());
  if (offset < 0 || offset > size - count) {
    bad_argument("dataset", "offset", concat("0 .. ", size - count), concat(offset));
  }
  const std::byte* const data = where.shard->tokens.bytes().data() + (where.begin + offset) * token_bytes_;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t id = 0;
    std::memcpy(&id, data + i * token_bytes_, static_cast<std::size_t>(token_bytes_));
    if (id >= static_cast<std::uint64_t>(vocab_size_)) {
      bad_file(where.shard->tokens_name, concat("ids below ", vocab_size_), concat(id));
    }
    out[static_cast<std::size_t>(i)] = id;
  }
}

}  // namespace gsa::data
