// Text made by rule, and the datasets of a run: every row is full and begins with the begin mark.
#include "paper/material.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "core/file.h"
#include "data/dataset.h"
#include "model/errors.h"
#include "model/temporary_folder.h"
#include "paper/plan.h"
#include "paper/results.h"
#include "paper/synthetic.h"
#include "ruler/words.h"

namespace gsa::paper {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

std::string text_of(const Task& task) {
  std::string text;
  for (const std::string& part : task.parts) text += part + " ";
  return text;
}

std::string all_of(const Task& task) {
  std::string text = text_of(task);
  for (const Question& question : task.questions) text += question.text + " " + question.answer + " ";
  return text;
}

std::vector<std::string> words_of(std::string text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" ,", begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!word.empty() && word != "and") words.push_back(word);
    begin = end + 1;
  }
  return words;
}

TEST(PaperSynthetic, AnswersStandInTheText) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Task task = make_task(Random(7).stream(i), 2000);
    const std::string text = text_of(task);
    ASSERT_FALSE(task.questions.empty());
    for (const Question& question : task.questions) {
      const std::vector<std::string> answers = words_of(question.answer);
      EXPECT_FALSE(answers.empty()) << text;
      std::set<std::string> different(answers.begin(), answers.end());
      EXPECT_EQ(different.size(), answers.size()) << text;
      for (const std::string& answer : answers)
        EXPECT_NE(text.find(answer), std::string::npos) << answer << " in " << text;
    }
    EXPECT_LT(all_of(task).size(), 2600u);
    EXPECT_GT(all_of(task).size(), 1000u);
  }
}

// What a row teaches about looking back is its answers.
TEST(PaperSynthetic, TasksAreAskedSeveralQuestions) {
  std::size_t answers = 0, all = 0, max_questions = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Task task = make_task(Random(9).stream(i), 1800);
    max_questions = std::max(max_questions, task.questions.size());
    for (const Question& question : task.questions) answers += question.answer.size();
    all += all_of(task).size();
  }
  EXPECT_EQ(max_questions, 6u);
  EXPECT_GT(static_cast<double>(answers) / static_cast<double>(all), 0.03);
}

// Keys there are adjective-noun pairs, here verb-noun pairs.
TEST(PaperSynthetic, SharesNeitherKeysNorTemplatesWithRuler) {
  const std::set<std::string_view> adjectives(ruler::adjectives().begin(), ruler::adjectives().end());
  for (const std::string_view verb : ruler::verbs()) EXPECT_FALSE(adjectives.contains(verb)) << verb;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::string text = all_of(make_task(Random(8).stream(i), 1500));
    for (const char* theirs :
         {"special magic", "VAR ", "grass is green", "memorize", "numbered list", "coded text"})
      EXPECT_EQ(text.find(theirs), std::string::npos) << text;
    for (std::size_t at = text.find('-'); at != std::string::npos; at = text.find('-', at + 1)) {
      std::size_t begin = at;
      while (begin > 0 && text[begin - 1] >= 'a' && text[begin - 1] <= 'z') --begin;
      EXPECT_FALSE(adjectives.contains(std::string_view(text).substr(begin, at - begin))) << text;
    }
  }
}

TEST(PaperSynthetic, RowsAreFullAndTheSameForTheSameKey) {
  const auto bytes = data::byte_tokenizer();
  for (const Content content : {Content::story, Content::code, Content::tasks}) {
    const Ids row = make_row(content, Random(3), 1500, *bytes);
    EXPECT_EQ(row.size(), 1500u);
    EXPECT_EQ(row, make_row(content, Random(3), 1500, *bytes));
    EXPECT_NE(row, make_row(content, Random(4), 1500, *bytes));
  }
}

TEST(PaperSynthetic, CodeRefersFarBack) {
  const std::string code = code_text(Random(5), 200);
  const std::size_t begin = code.find("const int ") + 10, end = code.find(" = ", begin);
  const std::string name = code.substr(begin, end - begin);
  EXPECT_GT(code.rfind(name), code.size() / 2) << name;
}

Scale short_scale() {
  Scale scale = scale_by_name("smoke");
  scale.train_tokens = 16 * scale.length;
  scale.validation_tokens = 2 * scale.length;
  return scale;
}

// Each document is a row, marks included.
void expect_rows(const std::filesystem::path& folder, const Scale& scale, std::int64_t rows) {
  const data::Dataset dataset(folder);
  EXPECT_EQ(dataset.documents(), rows) << folder;
  const auto tokenizer = data::load_tokenizer(folder);
  for (std::int64_t i = 0; i < dataset.documents(); ++i) {
    ASSERT_EQ(dataset.document_size(i), scale.length) << folder;
    std::int64_t first = 0;
    dataset.read(i, 0, {&first, 1});
    EXPECT_EQ(first, tokenizer->bos());
  }
}

TEST(PaperMaterial, ByRule) {
  const TemporaryFolder folder;
  const Scale scale = short_scale();
  const Source source("");
  ASSERT_TRUE(make_material(folder.path(), scale, source, serial(), {}));
  expect_rows(folder / "data/train", scale, 16);
  expect_rows(folder / "data/validation-1", scale, 2);
  expect_rows(folder / "data/validation-2", scale, 2);
  EXPECT_GT(std::filesystem::file_size(folder / "data/haystack.txt"), 100'000u);
  for (const std::int64_t length : scale.speed_lengths)
    EXPECT_TRUE(std::filesystem::exists(folder / ("data/prompt-" + std::to_string(length) + ".txt")));
  EXPECT_TRUE(std::filesystem::exists(folder / kDataDone));
  EXPECT_EQ(values_of({.name = "data", .group = "main"}, folder.path()), Values{});
  const std::uint32_t first = data::Dataset(folder / "data/train").fingerprint();
  // What was left by one that was stopped is made anew, on any number of threads to the same bits.
  EXPECT_FALSE(make_material(folder.path(), scale, source, serial(), {.stop = [] { return true; }}));
  EXPECT_FALSE(std::filesystem::exists(folder / kDataDone));
  ASSERT_TRUE(make_material(folder.path(), scale, source, ThreadParallel(3), {}));
  EXPECT_EQ(data::Dataset(folder / "data/train").fingerprint(), first);
}

TEST(PaperMaterial, FromATextAndFromADataset) {
  const TemporaryFolder folder;
  Scale scale = short_scale();
  {
    std::ofstream text(folder / "book.txt");
    for (int i = 0; i < 4000; ++i) text << "the keeper of lamp " << i << " walks back to the harbour\n";
  }
  const Source source(folder / "book.txt");
  EXPECT_EQ(source.text_name(0), "book.txt");
  ASSERT_TRUE(make_material(folder / "a", scale, source, serial(), {}));
  expect_rows(folder / "a/data/train", scale, 16);
  expect_rows(folder / "a/data/validation-1", scale, 2);
  const Source dataset(folder / "a/data/train");
  ASSERT_TRUE(make_material(folder / "b", scale, dataset, serial(), {}));
  expect_rows(folder / "b/data/validation-1", scale, 2);
  EXPECT_NE(source.identity(), dataset.identity());
  scale.validation_tokens = 1 << 24;
  expect_error([&] { make_material(folder / "c", scale, source, serial(), {}); },
               {"book.txt", "held out for validation"});
}

std::string text_of(const data::Dataset& dataset, std::int64_t document) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(dataset.document_size(document)));
  dataset.read(document, 0, ids);
  return data::load_tokenizer(dataset.folder())->decode(std::vector<std::int32_t>(ids.begin(), ids.end()));
}

// Of a text whose lines are numbered, all of them different.
TEST(PaperMaterial, HeldOutRowsAreSpreadOverTheTextAndNeverTrainedOn) {
  const TemporaryFolder folder;
  const int lines = 4000;
  {
    std::ofstream text(folder / "book.txt");
    for (int i = 0; i < lines; ++i) text << "the keeper of lamp " << 10'000 + i << " walks back\n";
  }
  Scale scale = short_scale();
  scale.train_tokens = 600 * scale.length;
  scale.validation_tokens = 4 * scale.length;
  const Source source(folder / "book.txt");
  ASSERT_TRUE(make_material(folder / "a", scale, source, ThreadParallel(2), {}));
  const data::Dataset train(folder / "a/data/train"), held_out(folder / "a/data/validation-1");
  const auto lamps = [](const std::string& text) {
    std::vector<int> numbers;
    for (std::size_t at = text.find("lamp 1"); at != std::string::npos; at = text.find("lamp 1", at + 1)) {
      const std::string digits = text.substr(at + 5, 5);
      if (digits.find_first_not_of("0123456789") == std::string::npos && digits.size() == 5)
        numbers.push_back(std::stoi(digits) - 10'000);
    }
    return numbers;
  };
  std::set<int> unseen;
  std::vector<int> firsts;
  for (std::int64_t i = 0; i < held_out.documents(); ++i) {
    const std::vector<int> numbers = lamps(text_of(held_out, i));
    ASSERT_FALSE(numbers.empty());
    firsts.push_back(numbers.front());
    unseen.insert(numbers.begin(), numbers.end());
  }
  EXPECT_LT(firsts.front(), lines / 4);
  EXPECT_GT(firsts.back(), 3 * lines / 4);
  std::map<int, int> seen;
  for (std::int64_t i = 0; i < train.documents(); i += 2) {
    for (const int number : lamps(text_of(train, i))) ++seen[number];
  }
  for (const int number : unseen) EXPECT_EQ(seen[number], 0) << number;
  EXPECT_GE(seen.size() + unseen.size(),
            static_cast<std::size_t>(lines * 9 / 10));  // but for those that rows cut
  EXPECT_GE(seen[lines / 2], 2);                        // the text comes again
  const Values facts = values_of({.name = "data", .group = "main"}, folder / "a");
  EXPECT_EQ(facts.at("text_rows"), 300);
  EXPECT_LT(facts.at("text_rows_different"), 200);
  EXPECT_GT(facts.at("text_rows_different"), 50);
}

// What `gsa ruler` asks at the trained length, and behind it what it wants to hear.
TEST(PaperMaterial, RulersPromptsWithTheirAnswers) {
  const TemporaryFolder folder;
  ASSERT_TRUE(make_material(folder.path(), short_scale(), Source(""), serial(), {}));
  const data::Dataset rows(folder / "data" / kRulerRows);
  ASSERT_EQ(rows.documents(), 2);  // a sample of each task of this scale
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_LE(rows.document_size(i), short_scale().length);
    EXPECT_GT(rows.document_size(i), short_scale().length / 2);
    const std::string text = text_of(rows, i);
    SCOPED_TRACE(text);
    const std::size_t last = text.rfind("provided text is ");
    ASSERT_NE(last, std::string::npos);
    std::string answer = text.substr(last + 17);
    while (!answer.empty() && (answer.back() < '0' || answer.back() > '9')) answer.pop_back();
    EXPECT_EQ(answer.size(), 7u);
    EXPECT_LT(text.find(answer), last);
  }
}

TEST(PaperMaterial, FilesOfAUserLieInTheFolder) {
  const TemporaryFolder folder;
  std::ofstream(folder / "essays.txt") << "A boat comes home. Nobody waits for it. Then it is night.";
  std::ofstream(folder / "dev.json")
      << R"({"data": [{"paragraphs": [{"context": "The lamp burns on the rock.",
      "qas": [{"question": "Where?", "answers": [{"text": "on the rock"}], "is_impossible": false}]}]}]})";
  const RulerFiles files{folder / "essays.txt", folder / "dev.json", {}};
  const Source source("", files);
  const Scale scale = with_files(short_scale(), files);
  ASSERT_TRUE(make_material(folder / "a", scale, source, serial(), {}));
  EXPECT_EQ(read_file(folder / "a/data/essays", 1000), read_file(folder / "essays.txt", 1000));
  EXPECT_TRUE(std::filesystem::exists(folder / "a/data/squad.json"));
  EXPECT_EQ(data::Dataset(folder / "a/data" / kRulerRows).documents(), 3);
  // Results depend on them.
  EXPECT_NE(source.identity(), Source("").identity());
  EXPECT_EQ(source.identity()["essays"]["file"], "essays.txt");
  EXPECT_EQ(source.options(), "--essays essays.txt --squad dev.json");
  expect_error([&] { Source("", {{}, folder / "essays.txt", {}}); }, {"essays.txt"});
}

// RULER's prompts are written in characters that the text may lack.
TEST(PaperMaterial, EveryCharacterIsAPiece) {
  const TemporaryFolder folder;
  ASSERT_TRUE(make_material(folder.path(), short_scale(), Source(""), serial(), {}));
  const auto tokenizer = data::load_tokenizer(folder / "data/train");
  const std::int32_t none = [&] {
    Ids ids;
    tokenizer->encode("\x01", ids);  // by a byte, as what no piece has
    return ids.front();
  }();
  for (char c = '!'; c <= '~'; ++c) {
    Ids ids;
    tokenizer->encode(std::string(1, c), ids);
    ASSERT_EQ(ids.size(), 1u) << c;
    EXPECT_NE(ids[0], none - 1 + c) << c << " is written as a byte";  // bytes stand one behind the other
  }
}

}  // namespace
}  // namespace gsa::paper
