#include "eval/documents.h"

#include <algorithm>

#include "core/file.h"
#include "data/dataset.h"
#include "data/documents.h"

namespace gsa::eval {
namespace {

std::unique_ptr<data::Tokenizer> tokenizer_of(const std::filesystem::path& folder,
                                              const data::Dataset& dataset) {
  auto tokenizer = data::load_tokenizer(folder);
  if (tokenizer->fingerprint() != dataset.tokenizer_fingerprint()) {
    bad_file(folder.string(), "the tokenizer that the dataset was made with", "another one in the folder");
  }
  return tokenizer;
}

class DatasetDocuments final : public Documents {
 public:
  DatasetDocuments(const std::filesystem::path& folder, data::Dataset dataset)
      : Documents(folder.string(), tokenizer_of(folder, dataset)), dataset_(std::move(dataset)) {}

  std::int64_t count() const override { return dataset_.documents(); }
  std::int64_t size(std::int64_t document) const override { return dataset_.document_size(document); }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int64_t> out) const override {
    dataset_.read(document, offset, out);
  }

 private:
  data::Dataset dataset_;
};

// The documents of another as one.
class JoinedDocuments final : public Documents {
 public:
  JoinedDocuments(const std::filesystem::path& folder, data::Dataset dataset)
      : Documents(folder.string(), tokenizer_of(folder, dataset)), dataset_(std::move(dataset)) {
    ends_.reserve(static_cast<std::size_t>(dataset_.documents()));
    std::int64_t end = 0;
    for (std::int64_t d = 0; d < dataset_.documents(); ++d) {
      ends_.push_back(end += dataset_.document_size(d));
    }
  }

  std::int64_t count() const override { return ends_.empty() ? 0 : 1; }
  std::int64_t size(std::int64_t) const override { return ends_.back(); }
  void read(std::int64_t, std::int64_t offset, std::span<std::int64_t> out) const override {
    auto document = std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin();
    while (!out.empty()) {
      const std::int64_t end = ends_[static_cast<std::size_t>(document)];
      const std::int64_t size = dataset_.document_size(document);
      const auto part =
          static_cast<std::size_t>(std::min(end - offset, static_cast<std::int64_t>(out.size())));
      dataset_.read(document, offset - (end - size), out.first(part));
      out = out.subspan(part);
      offset += static_cast<std::int64_t>(part);
      ++document;
    }
  }

 private:
  data::Dataset dataset_;
  std::vector<std::int64_t> ends_;  // ids up to the end of each document
};

class TextDocuments final : public Documents {
 public:
  TextDocuments(const std::string& name, std::unique_ptr<data::Tokenizer> tokenizer)
      : Documents(name, std::move(tokenizer)) {}

  void begin() { ids_.push_back(tokenizer().beginning()); }
  void append(std::string_view text) { tokenizer().encode(text, ids_.back()); }
  void end() { ids_.back().push_back(tokenizer().eos()); }

  std::int64_t count() const override { return static_cast<std::int64_t>(ids_.size()); }
  std::int64_t size(std::int64_t document) const override {
    return static_cast<std::int64_t>(ids_[static_cast<std::size_t>(document)].size());
  }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int64_t> out) const override {
    const auto& ids = ids_[static_cast<std::size_t>(document)];
    std::copy_n(ids.begin() + offset, out.size(), out.begin());
  }

 private:
  std::vector<std::vector<std::int32_t>> ids_;
};

}  // namespace

std::unique_ptr<Documents> dataset_documents(const std::filesystem::path& folder, Joining joining) {
  data::Dataset dataset(folder);
  if (joining == Joining::all) return std::make_unique<JoinedDocuments>(folder, std::move(dataset));
  return std::make_unique<DatasetDocuments>(folder, std::move(dataset));
}

std::unique_ptr<Documents> text_documents(const std::vector<std::string>& texts,
                                          std::unique_ptr<data::Tokenizer> tokenizer,
                                          const std::string& name) {
  auto documents = std::make_unique<TextDocuments>(name, std::move(tokenizer));
  for (const std::string& text : texts) {
    documents->begin();
    documents->append(text);
    documents->end();
  }
  return documents;
}

std::unique_ptr<Documents> file_document(const std::filesystem::path& file,
                                         std::unique_ptr<data::Tokenizer> tokenizer) {
  auto documents = std::make_unique<TextDocuments>(file.string(), std::move(tokenizer));
  bool open = false;
  data::DocumentSource source;
  source.path = file;
  data::read_documents(source, {.text =
                                    [&](std::string_view piece) {
                                      if (!open) documents->begin();
                                      open = true;
                                      documents->append(piece);
                                    },
                                .end = [&] { documents->end(); },
                                .progress = [](std::int64_t) {}});
  if (!open) bad_file(file.string(), "text", "an empty or blank file");
  return documents;
}

}  // namespace gsa::eval
