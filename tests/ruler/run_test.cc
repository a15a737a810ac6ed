// Samples that fit, runs with models that know everything or nothing, folders that runs go on from, reports.
#include "ruler/run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "core/file.h"
#include "data/testing.h"
#include "data/tokenizer.h"
#include "gsa/error.h"
#include "model/errors.h"
#include "plot/xml.h"
#include "ruler/report.h"

namespace gsa::ruler {
namespace {

using gsa::testing::expect_error;
using gsa::testing::TemporaryFolder;

// A mark, and a token for every three characters of a word begun.
std::int64_t count_tokens(const std::string& text) {
  std::int64_t tokens = 1, letters = 0;
  for (const char c : text) {
    letters = c == ' ' || c == '\n' ? 0 : letters + 1;
    if (letters % 3 == 1) ++tokens;
  }
  return tokens;
}

QuestionSet questions(const std::string& name) {
  QuestionSet set{.name = name};
  for (std::size_t i = 0; i < 30; ++i) {
    set.documents.push_back("The lamp number " + std::to_string(100 + i) +
                            " burns on the quay of the old harbour.");
    set.questions.push_back(
        {.text = "Which lamp?", .answers = {std::to_string(100 + i)}, .own = {i}, .more = {}});
  }
  return set;
}

Material everything() {
  Material material;
  material.essays.emplace(
      "essays", "The lamp burns. A boat comes home! Nobody waits for it. Then it is night.", 131'072);
  material.squad = questions("squad");
  material.hotpotqa = questions("hotpotqa");
  return material;
}

std::vector<const Task*> every_task() {
  std::vector<const Task*> tasks;
  for (const Task& task : all_tasks()) tasks.push_back(&task);
  return tasks;
}

// Answers by a function of the sample, three at a time.
std::function<Subject()> subject(const std::function<std::string(const Sample&)>& say) {
  return [say] {
    return Subject{.batch = [](std::int64_t) { return 3; },
                   .answer =
                       [say](const Task&, std::span<const Sample> samples, const auto& progress) {
                         std::vector<std::string> texts;
                         for (const Sample& sample : samples) texts.push_back(say(sample));
                         progress(1);
                         return texts;
                       }};
  };
}

std::string all_answers(const Sample& sample) {
  std::string text;
  for (const std::string& answer : sample.answers) text += " " + answer + ",";
  return text;
}

std::function<Subject()> nobody() {
  return []() -> Subject { throw Error("nothing was to be asked"); };
}

TEST(RulerSamples, fill_the_length_and_never_exceed_it) {
  const Material material = everything();
  for (const Task& task : all_tasks()) {
    for (const std::int64_t length : {2048, 16384}) {
      SampleMaker maker(task, length, 42, material, count_tokens);
      ASSERT_EQ(maker.refusal(), "") << task.name;
      for (std::int64_t i = 0; i < 4; ++i) {
        const Sample sample = maker.make(i).value();
        SCOPED_TRACE(concat(task.name, " ", length, " ", i));
        EXPECT_EQ(sample.tokens, count_tokens(sample.prompt));
        EXPECT_LE(sample.tokens + task.new_tokens, length);
        EXPECT_GE(sample.tokens + task.new_tokens, length - std::max<std::int64_t>(80, length / 100));
      }
    }
  }
}

TEST(RulerSamples, depend_on_seed_and_index_alone) {
  const Material material = everything();
  for (const Task& task : all_tasks()) {
    SampleMaker first(task, 2048, 1, material, count_tokens), second(task, 2048, 1, material, count_tokens);
    const Sample third = first.make(3).value();
    first.make(7);
    second.make(0);
    EXPECT_EQ(second.make(3)->prompt, third.prompt) << task.name;
    EXPECT_NE(second.make(4)->prompt, third.prompt) << task.name;
    EXPECT_NE(SampleMaker(task, 2048, 2, material, count_tokens).make(3)->prompt, third.prompt) << task.name;
  }
}

TEST(RulerSamples, are_the_same_on_any_number_of_threads) {
  const Material material = everything();
  for (const Task& task : all_tasks()) {
    SampleMaker one(task, 2048, 1, material, count_tokens), many(task, 2048, 1, material, count_tokens);
    const auto samples = many.make(2, 9, ThreadParallel(4));
    ASSERT_EQ(samples.size(), 9u);
    for (std::int64_t i = 0; i < 9; ++i) {
      const Sample expected = one.make(2 + i).value();
      const Sample& sample = samples[static_cast<std::size_t>(i)].value();
      EXPECT_EQ(sample.index, 2 + i);
      EXPECT_EQ(sample.prompt, expected.prompt) << task.name;
      EXPECT_EQ(sample.answers, expected.answers) << task.name;
    }
  }
}

TEST(RulerSamples, take_few_counts_of_long_texts) {
  const Material material = everything();
  for (const Task& task : all_tasks()) {
    std::int64_t counted = 0;
    SampleMaker maker(task, 131072, 42, material, [&](const std::string& text) {
      const std::int64_t tokens = count_tokens(text);
      counted += tokens;
      return tokens;
    });
    counted = 0;
    for (std::int64_t i = 0; i < 3; ++i) maker.make(i);
    EXPECT_LT(counted, 3 * 4 * 131072) << task.name;
  }
}

TEST(RulerSamples, the_worked_example_has_500_tokens_before_its_answer) {
  const Material material;
  SampleMaker maker(task_by_name("vt"), 4096, 42, material, count_tokens);
  const std::string prompt = maker.make(0)->prompt;
  const std::string asked = prompt.substr(0, prompt.find("they are: ") + 10);
  const std::string noise =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";
  EXPECT_LE(count_tokens(asked), 500);
  EXPECT_GT(count_tokens(asked) + count_tokens(noise), 500);
  // Whatever the answer takes.
  const SampleMaker answers(task_by_name("vt"), 4096, 42, material, [&](const std::string& text) {
    EXPECT_FALSE(text.ends_with("\n")) << "an example with its answer was measured";
    return count_tokens(text);
  });
}

TEST(RulerSamples, what_does_not_fit_is_said) {
  const Material material = everything();
  SampleMaker words(task_by_name("cwe"), 256, 42, material, count_tokens);
  EXPECT_TRUE(words.refusal().starts_with("needs at least ")) << words.refusal();
  SampleMaker asked(task_by_name("qa_1"), 64, 42, material, count_tokens);
  EXPECT_TRUE(asked.refusal().starts_with("needs at least ")) << asked.refusal();
  SampleMaker few(task_by_name("qa_1"), 512, 42, material, count_tokens);
  EXPECT_EQ(few.make(29)->answers.front(), "129");
  EXPECT_EQ(few.available(29), 29);
  EXPECT_EQ(few.available(31), 30);
  const TemporaryFolder folder;
  const RunOptions too_many{.tasks = {&task_by_name("qa_1")}, .lengths = {512}, .samples = 31};
  const RunResult result = run(too_many, material, count_tokens, nobody(), folder.path());
  EXPECT_EQ(result.cells[0].skipped, "has 30 questions that fit, for 31 samples");
}

// The draft of one sample may be too long where those of others fit; what comes after it goes on.
TEST(RulerRun, a_sample_that_does_not_fit_ends_its_cell_alone) {
  const TemporaryFolder folder;
  const RunOptions options{
      .tasks = {&task_by_name("niah_single_1"), &task_by_name("fwe")}, .lengths = {1024}, .samples = 5};
  int too_long = 0;
  const CountTokens count = [&](const std::string& text) {
    if (too_long == 0) return count_tokens(text);
    --too_long;
    return std::int64_t{2000};
  };
  const RunEvents events{.progress =
                             [&](double, double, const std::string& detail) {
                               if (detail == "niah_single_1 at 1,024, 3 of 5")
                                 too_long = 16;  // all its draws
                             },
                         .finished = nullptr,
                         .stopped = nullptr};
  const auto check = [&](const RunResult& result) {
    EXPECT_TRUE(result.complete);
    EXPECT_TRUE(result.cells[0].skipped.starts_with("sample 3 does not fit")) << result.cells[0].skipped;
    EXPECT_EQ(result.cells[1].skipped, "");
  };
  const RunResult asked = run(options, {}, count, subject(all_answers), folder.path(), events);
  check(asked);
  EXPECT_EQ(asked.answered, 3 + 5);
  EXPECT_EQ(asked.cells[1].score(), 100);
  const RunResult written = write_all_prompts(options, {}, count, folder.path(), events);
  check(written);
  EXPECT_EQ(written.answered, 5);
  EXPECT_EQ(count_prompts(folder.path(), task_by_name("niah_single_1"), 1024), 0);
}

TEST(RulerRun, who_knows_the_answers_scores_100) {
  const TemporaryFolder folder;
  const RunOptions options{.tasks = every_task(), .lengths = {1024, 4096}, .samples = 5};
  const RunResult result = run(options, everything(), count_tokens, subject(all_answers), folder.path());
  ASSERT_EQ(result.cells.size(), 26u);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.answered, 26 * 5);
  for (const Cell& cell : result.cells) {
    EXPECT_EQ(cell.skipped, "");
    EXPECT_EQ(cell.score(), 100) << cell.task->name;
    EXPECT_EQ(cell.empty(), 0);
  }
  const Report report{.run = {{"model", "wise"}}, .cells = result.cells};
  EXPECT_EQ(report.mean(1024), 100);
  EXPECT_EQ(report.scored(4096), 13);
}

TEST(RulerRun, who_babbles_scores_nothing) {
  const TemporaryFolder folder;
  const RunOptions options{.tasks = every_task(), .lengths = {1024}, .samples = 5};
  const auto babble = subject([](const Sample& sample) {
    return sample.index == 0 ? "" : " the the the and of the of and the in a of the and to the";
  });
  const RunResult result = run(options, everything(), count_tokens, babble, folder.path());
  for (const Cell& cell : result.cells) {
    EXPECT_EQ(cell.score(), 0) << cell.task->name;
    EXPECT_EQ(cell.empty(), 1);
  }
}

TEST(RulerRun, a_task_without_its_data_is_skipped_by_name) {
  const TemporaryFolder folder;
  const RunOptions options{.tasks = every_task(), .lengths = {1024}, .samples = 1};
  const RunResult result = run(options, Material{}, count_tokens, subject(all_answers), folder.path());
  std::map<std::string, std::string> skipped;
  for (const Cell& cell : result.cells) {
    if (!cell.skipped.empty()) skipped[cell.task->name] = cell.skipped;
    EXPECT_EQ(std::isnan(cell.score()), !cell.skipped.empty());
  }
  const std::string essays = "needs a text to hide needles in: --essays or --haystack";
  const std::map<std::string, std::string> expected = {{"niah_single_2", essays},
                                                       {"niah_single_3", essays},
                                                       {"niah_multikey_1", essays},
                                                       {"niah_multivalue", essays},
                                                       {"niah_multiquery", essays},
                                                       {"qa_1", "needs SQuAD's questions: --squad"},
                                                       {"qa_2", "needs HotpotQA's questions: --hotpotqa"}};
  EXPECT_EQ(skipped, expected);
  const Report report{.run = OrderedJson::object(), .cells = result.cells};
  EXPECT_EQ(report.scored(1024), 6);
  EXPECT_EQ(to_json(report)["skipped"].size(), 7u);
  EXPECT_EQ(to_json(report)["means"][0]["tasks"], 6);
}

TEST(RulerRun, goes_on_where_it_was_stopped) {
  const TemporaryFolder folder, whole;
  const RunOptions options{
      .tasks = {&task_by_name("niah_single_1"), &task_by_name("fwe")}, .lengths = {1024}, .samples = 8};
  const Material material;
  std::set<std::pair<std::int64_t, std::string>> asked;
  int allowed = 2;  // batches
  const auto stopping = [&]() -> Subject {
    return {
        .batch = [](std::int64_t) { return 3; },
        .answer = [&](const Task&, std::span<const Sample> samples, const auto&) -> std::vector<std::string> {
          if (allowed-- == 0) return {};
          std::vector<std::string> texts;
          for (const Sample& sample : samples) {
            EXPECT_TRUE(asked.emplace(sample.index, sample.prompt).second) << "asked twice";
            texts.push_back(sample.index % 2 == 0 ? all_answers(sample) : "no");
          }
          return texts;
        }};
  };
  const RunResult first = run(options, material, count_tokens, stopping, folder.path());
  EXPECT_FALSE(first.complete);
  EXPECT_EQ(first.answered, 6);
  EXPECT_EQ(first.cells[0].skipped, "has 6 of 8 samples");
  EXPECT_EQ(first.cells[1].skipped, "has 0 of 8 samples");
  allowed = 100;
  const RunResult second = run(options, material, count_tokens, stopping, folder.path());
  EXPECT_TRUE(second.complete);
  EXPECT_EQ(second.answered, 10);
  EXPECT_EQ(second.cells[0].score(), 50);
  // The third has nothing to do, and all three give what one run gives.
  const RunResult third = run(options, material, count_tokens, nobody(), folder.path());
  EXPECT_EQ(third.answered, 0);
  EXPECT_EQ(third.cells[0].score(), 50);
  asked.clear();
  run(options, material, count_tokens, stopping, whole.path());
  for (const char* name : {"samples/niah_single_1-1024.jsonl", "samples/fwe-1024.jsonl"}) {
    EXPECT_EQ(read_file(folder / name, 1 << 20), read_file(whole / name, 1 << 20));
  }
  // More samples are added behind those that are there, fewer are taken from them.
  RunOptions changed = options;
  changed.samples = 4;
  EXPECT_EQ(run(changed, material, count_tokens, nobody(), folder.path()).cells[1].samples.size(), 4u);
  changed.samples = 10;
  EXPECT_EQ(run(changed, material, count_tokens, subject(all_answers), folder.path()).answered, 4);
}

TEST(RulerRun, what_earlier_runs_answered_stays_in_the_report) {
  const TemporaryFolder folder;
  const auto asked = [&](const char* task, std::int64_t length, std::int64_t samples,
                         const Material& material) {
    const RunOptions options{.tasks = {&task_by_name(task)}, .lengths = {length}, .samples = samples};
    return run(options, material, count_tokens, subject(all_answers), folder.path()).cells;
  };
  asked("qa_1", 1024, 3, everything());
  asked("fwe", 2048, 2, {});
  testing::write_text(folder / "samples/notes-abc.jsonl", "not ours");
  testing::write_text(folder / "samples/fwe-02048.jsonl", "not ours");
  std::vector<Cell> cells = asked("niah_single_1", 1024, 1, {});
  add_answered(cells, folder.path());
  std::vector<std::string> names;
  for (const Cell& cell : cells)
    names.push_back(concat(name_of(*cell.task, cell.length), " ", cell.samples.size()));
  EXPECT_EQ(names, (std::vector<std::string>{"niah_single_1-1024 1", "fwe-2048 2", "qa_1-1024 3"}));
  EXPECT_EQ(cells[2].score(), 100);
  // Answers that are there need no data; more of them do.
  EXPECT_EQ(asked("qa_1", 1024, 2, {})[0].skipped, "");
  EXPECT_EQ(asked("qa_1", 1024, 4, {})[0].skipped, "needs SQuAD's questions: --squad");
}

TEST(RulerRun, a_folder_of_another_run_is_refused) {
  const TemporaryFolder folder;
  check_run(folder.path(), {{"seed", 9}}, "--output");
  check_run(folder.path(), {{"seed", 1}, {"model", "a"}}, "--output");  // nothing had come of the other
  std::filesystem::create_directories(folder / "samples");
  check_run(folder.path(), {{"seed", 1}, {"essays", {{"file", "e"}}}}, "--output");
  expect_error(
      [&] {
        check_run(folder.path(), {{"seed", 2}}, "--output");
      },
      {"--output", "a run with seed 1, this one has 2"});
  EXPECT_EQ(read_run(folder.path()).size(), 3u);
  std::filesystem::rename(folder / "run.json", folder / "mine.json");
  for (const char* what : {"samples", "prompts"}) {
    std::filesystem::remove(folder / "samples");
    std::filesystem::create_directories(folder / what);
    expect_error(
        [&] {
          check_run(folder.path(), {{"seed", 1}}, "--write");
        },
        {"--write", "a run without run.json"});
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run.json"));
  std::filesystem::remove(folder / "prompts");
  std::filesystem::create_directories(folder / "samples");
  std::filesystem::rename(folder / "mine.json", folder / "run.json");
  testing::write_text(folder / "samples/vt-512.jsonl", "{\"index\": 1}\n");
  expect_error([&] { read_samples(folder.path(), task_by_name("vt"), 512, 3); }, {"vt-512.jsonl"});
}

TEST(RulerRun, prompts_go_out_and_predictions_come_back) {
  const TemporaryFolder folder;
  const RunOptions options{.tasks = {&task_by_name("vt"), &task_by_name("cwe"), &task_by_name("qa_1")},
                           .lengths = {4096, 1024},
                           .samples = 4};
  const Material material;
  const RunResult written = write_all_prompts(options, material, count_tokens, folder.path());
  EXPECT_EQ(written.answered, 16);
  EXPECT_EQ(write_all_prompts(options, material, count_tokens, folder.path()).answered, 0)
      << "they are there";
  std::filesystem::remove(folder / "prompts/vt-4096.jsonl");
  int asked = 0;
  const RunEvents stopping{.progress = nullptr, .finished = nullptr, .stopped = [&] { return ++asked == 3; }};
  EXPECT_FALSE(write_all_prompts(options, material, count_tokens, folder.path(), stopping).complete);
  EXPECT_EQ(count_prompts(folder.path(), task_by_name("vt"), 4096), 0) << "never a part of a file";
  EXPECT_EQ(write_all_prompts(options, material, count_tokens, folder.path()).answered, 4);
  std::filesystem::create_directories(folder / "predictions");
  std::ofstream full(folder / "predictions/vt-1024.jsonl"), part(folder / "predictions/cwe-4096.jsonl");
  std::ifstream prompts(folder / "prompts/vt-1024.jsonl");
  for (std::string line; std::getline(prompts, line);) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json["max_new_tokens"], 30);
    EXPECT_EQ(json["tokens"], count_tokens(json["prompt"]));
    full << Json{{"index", json["index"]}, {"prediction", json["answers"][0]}}.dump() << "\n";
  }
  part << "{\"index\": 2, \"prediction\": \"x\"}\n";
  full.close();
  part.close();
  std::map<std::string, Cell> cells;
  for (const Cell& cell : score_predictions(folder.path())) cells[name_of(*cell.task, cell.length)] = cell;
  ASSERT_EQ(cells.size(), 26u);
  EXPECT_EQ(cells["vt-1024"].score(), 20) << "one name of five";
  EXPECT_EQ(cells["vt-4096"].skipped, "has 0 of 4 predictions");
  EXPECT_EQ(cells["cwe-4096"].skipped, "has 1 of 4 predictions");
  EXPECT_EQ(cells["qa_1-1024"].skipped, "has no prompts");
  testing::write_text(folder / "prompts/x-abc.jsonl", "not ours");
  EXPECT_EQ(score_predictions(folder.path()).size(), 26u);
  expect_error([&] { score_predictions(folder / "prompts"); }, {"--write has filled"});
}

TEST(RulerReport, shows_every_cell_and_says_what_differs) {
  const TemporaryFolder folder;
  const RunOptions options{
      .tasks = {&task_by_name("niah_single_2"), &task_by_name("vt"), &task_by_name("qa_1")},
      .lengths = {512, 1024, 4096},
      .samples = 3};
  Material material = everything();
  material.squad.reset();
  Report report{.run = {{"model", "<m>"}, {"haystack", {{"file", "novel.txt"}, {"kind", "own"}}}},
                .cells = run(options, material, count_tokens, subject(all_answers), folder.path()).cells};
  const std::string svg = heat_map(report, /*page=*/false);
  const testing::Xml xml = testing::read_xml(svg);
  EXPECT_EQ(xml.error, "");
  for (const char* text : {"niah_single_2*", "vt", "qa_1", "512", "1,024", "4,096", "100"}) {
    EXPECT_TRUE(xml.has_text(text)) << text;
  }
  EXPECT_EQ(xml.count("rect"), 5u + 1u) << "five cells with a score, and the background";
  const std::string page = html_page(report);
  for (const char* text : {"RULER: &lt;m&gt;", "niah_single_2*", "novel.txt", "mean of 2 of 13", "Not scored",
                           "qa_1 at 512: needs SQuAD", "vt at 512: needs at least"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  const OrderedJson json = to_json(report);
  EXPECT_EQ(json["cells"].size(), 5u);
  EXPECT_EQ(json["cells"][0]["haystack"], "own");
  EXPECT_EQ(json["cells"][0]["metric"], "string_match_all");
  report.run["haystack"]["kind"] = "essays";
  EXPECT_EQ(footnote(report), "");
  EXPECT_EQ(to_json(report)["cells"][0]["haystack"], "essays");
  for (Cell& cell : report.cells) cell.skipped = "no";
  EXPECT_EQ(heat_map(report, false), "");
  EXPECT_TRUE(to_json(report)["means"][0]["mean"].is_null());
}

TEST(RulerMaterial, files_are_read_and_named_when_wrong) {
  const TemporaryFolder folder;
  testing::write_text(folder / "e.txt", "A b. C d.");
  testing::write_text(folder / "e.json", R"({"text": "A b. C d."})");
  EXPECT_EQ(Essays::read(folder / "e.txt", 1).with_needles(4, {}, {}), "A b. C d.");
  EXPECT_EQ(Essays::read(folder / "e.json", 1).with_needles(4, {}, {}), "A b. C d.");
  testing::write_text(folder / "bad.txt", "a \xff b");
  expect_error([&] { Essays::read(folder / "bad.txt", 1); }, {"bad.txt", "UTF-8"});
  testing::write_text(folder / "empty.txt", " \n");
  expect_error([&] { Essays::read(folder / "empty.txt", 1); }, {"empty.txt", "words"});

  testing::write_text(folder / "squad.json", R"({"data": [{"title": "t", "paragraphs": [
      {"context": "Two.", "qas": [{"question": "q1", "is_impossible": false, "answers": [{"text": "a"}, {"text": "b"}]},
                                   {"question": "q2", "is_impossible": true, "answers": []}]},
      {"context": "One.", "qas": []}]}]})");
  const QuestionSet squad = QuestionSet::read_squad(folder / "squad.json");
  EXPECT_EQ(squad.documents, (std::vector<std::string>{"One.", "Two."}));
  ASSERT_EQ(squad.questions.size(), 1u);
  EXPECT_EQ(squad.questions[0].answers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(squad.questions[0].own, std::vector<std::size_t>{1});
  EXPECT_EQ(squad.questions[0].more, std::vector<std::size_t>{0});
  expect_error([&] { QuestionSet::read_hotpotqa(folder / "squad.json"); }, {"squad.json", "HotpotQA"});

  testing::write_text(folder / "hotpotqa.json", R"([{"question": "q", "answer": "yes",
      "context": [["T", ["a. ", "b."]], ["S", ["c."]]]}])");
  const QuestionSet hotpotqa = QuestionSet::read_hotpotqa(folder / "hotpotqa.json");
  EXPECT_EQ(hotpotqa.documents, (std::vector<std::string>{"S\nc.", "T\na. b."}));
  EXPECT_EQ(hotpotqa.questions[0].own, (std::vector<std::size_t>{1, 0}));
  expect_error([&] { QuestionSet::read_squad(folder / "hotpotqa.json"); }, {"hotpotqa.json", "SQuAD"});
  testing::write_text(folder / "bare.json", R"([{"question": "why", "answer": "a", "context": []}])");
  expect_error([&] { QuestionSet::read_hotpotqa(folder / "bare.json"); },
               {"bare.json", "paragraphs in every context", "why"});
}

}  // namespace
}  // namespace gsa::ruler
