#include "ruler/material.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/json.h"

namespace gsa::ruler {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 32;
constexpr std::string_view kSpace = " \t\n\r\v\f";

std::uint32_t checksum_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

// Prompts are written as JSON, which takes UTF-8 only.
void check_utf8(const std::string& text, const std::string& file) {
  try {
    (void)Json(text).dump();
  } catch (const Json::exception&) {
    bad_file(file, "text in UTF-8", "bytes that are none");
  }
}

// Whether a sentence may end with this word: a mark at its end, brackets and quotes behind it aside, that is
// not the point of an abbreviation.
bool ends_sentence(std::string_view word) {
  for (bool cut = true; cut;) {
    cut = false;
    for (const std::string_view close : {"\"", "'", ")", "]", "\xE2\x80\x9D", "\xE2\x80\x99"}) {
      if (!word.ends_with(close)) continue;
      word.remove_suffix(close.size());
      cut = true;
    }
  }
  if (word.empty() || std::string_view(".!?").find(word.back()) == std::string_view::npos) return false;
  if (word.back() != '.') return true;
  static const std::set<std::string_view> kAbbreviations = {
      "Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "St.", "Jr.", "Sr.", "vs.", "e.g.", "i.e.", "etc.", "cf.", "No."};
  const bool initial = word.size() == 2 && std::isupper(static_cast<unsigned char>(word[0])) && word != "I.";
  return !initial && !kAbbreviations.contains(word);
}

bool begins_sentence(std::string_view word) {
  const auto first = static_cast<unsigned char>(word.front());
  return !std::islower(first) && std::string_view(",;:)").find(word.front()) == std::string_view::npos;
}

std::string read_text(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".txt") files.push_back(entry.path());
    }
    if (files.empty()) bad_file(path.string(), "a folder with *.txt files", "none");
    std::sort(files.begin(), files.end());
    std::string text;
    for (const auto& file : files) text += read_file(file, kMaxBytes) + "\n";
    return text;
  }
  std::string text = read_file(path, kMaxBytes);
  if (path.extension() != ".json") return text;
  const Json json = parse_json(text, path.string());
  if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
    bad_file(path.string(), R"(a JSON object {"text": ...})", shown(json));
  }
  return json["text"];
}

// Reads a question file; whatever is not in its shape is an error that names the file.
template <typename Read>
QuestionSet read_questions(const std::filesystem::path& file, const char* shape, Read&& read) {
  const std::string text = read_file(file, kMaxBytes);
  const Json json = parse_json(text, file.string());
  QuestionSet set;
  set.name = file.filename().string();
  set.checksum = checksum_of(text);
  try {
    read(json, set);
  } catch (const Json::exception& error) {
    bad_file(file.string(), shape, error.what());
  }
  if (set.questions.empty()) bad_file(file.string(), "questions with answers", "none");
  return set;
}

// The documents sorted, and where each stands.
std::map<std::string, std::size_t> number_documents(QuestionSet& set,
                                                    const std::set<std::string>& documents) {
  std::map<std::string, std::size_t> numbers;
  for (const std::string& document : documents) {
    numbers[document] = set.documents.size();
    set.documents.push_back(document);
  }
  return numbers;
}

// A paragraph of HotpotQA: its title, and its sentences one after another.
std::string hotpotqa_document(const Json& paragraph) {
  std::string text = paragraph.at(0).get<std::string>() + "\n";
  for (const Json& sentence : paragraph.at(1)) text += sentence.get<std::string>();
  return text;
}

}  // namespace

Essays::Essays(std::string name, std::string_view text, std::int64_t min_words)
    : name_(std::move(name)), checksum_(checksum_of(text)) {
  for (std::size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    words_.push_back(text_.size());
    text_.append(text.substr(at, end - at)) += ' ';
    at = text.find_first_not_of(kSpace, end);
  }
  if (words_.empty()) bad_file(name_, "a text with words", "none");
  own_words_ = static_cast<std::int64_t>(words_.size());
  const std::size_t own = words_.size(), size = text_.size();
  while (static_cast<std::int64_t>(words_.size()) < min_words) {
    text_.append(text_, text_.size() - size, size);
    for (std::size_t i = 0; i < own; ++i) words_.push_back(words_[words_.size() - own] + size);
  }
  words_.push_back(text_.size());
  for (std::size_t i = 0; i + 1 < words_.size(); ++i) {
    if (i == 0 || (ends_sentence(part(i - 1, i)) && begins_sentence(part(i, i + 1)))) sentences_.push_back(i);
  }
}

Essays Essays::read(const std::filesystem::path& path, std::int64_t min_words) {
  const std::string text = read_text(path);
  check_utf8(text, path.string());
  return Essays(path.filename().empty() ? path.parent_path().filename().string() : path.filename().string(),
                text, min_words);
}

std::string Essays::part(std::size_t first, std::size_t last) const {
  return first == last ? "" : text_.substr(words_[first], words_[last] - 1 - words_[first]);
}

std::string Essays::with_needles(std::int64_t words, const std::vector<std::string>& needles,
                                 const std::vector<std::int64_t>& depths) const {
  const auto count = static_cast<std::size_t>(words);
  if (count >= words_.size())
    bad_argument("ruler", "words", concat("at most ", words_.size() - 1), concat(count));
  const auto sentences = static_cast<std::size_t>(
      std::lower_bound(sentences_.begin(), sentences_.end(), count) - sentences_.begin());
  std::string text;
  std::size_t last = 0;
  for (std::size_t i = 0; i < needles.size(); ++i) {
    const std::size_t at = sentences * static_cast<std::size_t>(depths[i]) / 100;
    const std::size_t word = at < sentences ? sentences_[at] : count;
    text += part(last, word) + " " + needles[i] + " ";
    last = word;
  }
  return text + part(last, count);
}

QuestionSet QuestionSet::read_squad(const std::filesystem::path& file) {
  return read_questions(
      file, "the JSON of SQuAD (data, paragraphs, qas)", [](const Json& json, QuestionSet& set) {
        std::set<std::string> documents;
        for (const Json& article : json.at("data")) {
          for (const Json& paragraph : article.at("paragraphs")) documents.insert(paragraph.at("context"));
        }
        const auto numbers = number_documents(set, documents);
        for (const Json& article : json.at("data")) {
          for (const Json& paragraph : article.at("paragraphs")) {
            const std::size_t own = numbers.at(paragraph.at("context"));
            std::vector<std::size_t> more;
            for (const Json& other : article.at("paragraphs")) {
              const std::size_t number = numbers.at(other.at("context"));
              if (number != own) more.push_back(number);
            }
            for (const Json& asked : paragraph.at("qas")) {
              if (asked.value("is_impossible", false)) continue;
              Question question{.text = asked.at("question"), .answers = {}, .own = {own}, .more = more};
              for (const Json& answer : asked.at("answers")) question.answers.push_back(answer.at("text"));
              if (!question.answers.empty()) set.questions.push_back(std::move(question));
            }
          }
        }
      });
}

QuestionSet QuestionSet::read_hotpotqa(const std::filesystem::path& file) {
  return read_questions(
      file, "the JSON of HotpotQA (a list of question, answer, context)",
      [&](const Json& json, QuestionSet& set) {
        std::set<std::string> documents;
        for (const Json& asked : json) {
          if (asked.at("context").empty()) {
            bad_file(file.string(), "paragraphs in every context",
                     concat("none in that of the question ", shown(asked.at("question"))));
          }
          for (const Json& paragraph : asked.at("context")) documents.insert(hotpotqa_document(paragraph));
        }
        const auto numbers = number_documents(set, documents);
        for (const Json& asked : json) {
          Question question{
              .text = asked.at("question"), .answers = {asked.at("answer")}, .own = {}, .more = {}};
          for (const Json& paragraph : asked.at("context")) {
            question.own.push_back(numbers.at(hotpotqa_document(paragraph)));
          }
          set.questions.push_back(std::move(question));
        }
      });
}

}  // namespace gsa::ruler
