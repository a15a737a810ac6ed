// Texts to evaluate on, as token ids. No torch header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace gsa::eval {

class Documents {
 public:
  virtual ~Documents() = default;

  virtual std::int64_t count() const = 0;
  virtual std::int64_t size(std::int64_t document) const = 0;  // ids, the marks bos and eos included
  virtual void read(std::int64_t document, std::int64_t offset, std::span<std::int64_t> out) const = 0;

  const data::Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::string& name() const { return name_; }  // for messages: a folder or a file

 protected:
  Documents(std::string name, std::unique_ptr<data::Tokenizer> tokenizer)
      : name_(std::move(name)), tokenizer_(std::move(tokenizer)) {}

 private:
  std::string name_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
};

enum class Joining {
  none,  // a document is a text of its own
  all,   // documents are concatenated to one text, so that windows longer than a document are full
};

// A folder that `gsa tokenize` made; ids are read from its mapped files as they are wanted.
std::unique_ptr<Documents> dataset_documents(const std::filesystem::path& folder,
                                             Joining joining = Joining::none);

// Texts in memory, each a document between the tokenizer's marks. name: for messages.
std::unique_ptr<Documents> text_documents(const std::vector<std::string>& texts,
                                          std::unique_ptr<data::Tokenizer> tokenizer,
                                          const std::string& name = "text");

// One text file as one document. It is read piece by piece; its ids stay in memory.
std::unique_ptr<Documents> file_document(const std::filesystem::path& file,
                                         std::unique_ptr<data::Tokenizer> tokenizer);

}  // namespace gsa::eval
