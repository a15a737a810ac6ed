// What users bring: a text to hide needles in, and questions with documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gsa::ruler {

// A text as words between single spaces, cut into sentences. A file of text, RULER's PaulGrahamEssays.json
// ({"text": ...}), or a folder whose *.txt files are read in the order of their names.
class Essays {
 public:
  // Repeated from its beginning until it has at least so many words: the length of samples in tokens suffices.
  Essays(std::string name, std::string_view text, std::int64_t min_words);
  static Essays read(const std::filesystem::path& path, std::int64_t min_words);

  const std::string& name() const { return name_; }
  std::uint32_t checksum() const { return checksum_; }   // of the text as it came
  std::int64_t own_words() const { return own_words_; }  // before any repetition

  // The first words of the text, with needle i between sentences at depths[i] per cent of them; depths
  // ascend. Pieces stand between single spaces, also where one is empty.
  std::string with_needles(std::int64_t words, const std::vector<std::string>& needles,
                           const std::vector<std::int64_t>& depths) const;

 private:
  std::string part(std::size_t first, std::size_t last) const;  // words first .. last - 1

  std::string name_, text_;
  std::uint32_t checksum_ = 0;
  std::int64_t own_words_ = 0;
  std::vector<std::size_t> words_;      // where each begins in the text, and one past the last
  std::vector<std::size_t> sentences_;  // the word that each begins with
};

struct Question {
  std::string text;
  std::vector<std::string> answers;
  std::vector<std::size_t> own;   // documents that hold the answer
  std::vector<std::size_t> more;  // that come next: others of the same article
};

struct QuestionSet {
  std::string name;
  std::uint32_t checksum = 0;
  std::vector<std::string> documents = {};  // sorted, none twice
  std::vector<Question> questions = {};     // in the order of the file

  static QuestionSet read_squad(const std::filesystem::path& file);
  static QuestionSet read_hotpotqa(const std::filesystem::path& file);
};

struct Material {
  std::optional<Essays> essays;
  std::optional<QuestionSet> squad, hotpotqa;
};

}  // namespace gsa::ruler
