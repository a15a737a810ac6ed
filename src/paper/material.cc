#include "paper/material.h"

#include <algorithm>
#include <memory>
#include <span>

#include "core/crc32c.h"
#include "core/file.h"
#include "data/dataset.h"
#include "data/line_sample.h"
#include "data/tokenizer.h"
#include "paper/plan.h"
#include "paper/synthetic.h"
#include "ruler/samples.h"

namespace gsa::paper {
namespace {

namespace fs = std::filesystem;

// Streams of draws.
enum : std::uint64_t { kTokenizer = 1, kTrain, kValidation1, kValidation2, kHaystack, kPrompts };
constexpr std::uint64_t kKey = 20'260'101;  // the text is the same for every seed of the models
// Of everything here and in synthetic.cc that decides which rows there are: with another number, other rows.
constexpr int kRule = 2;

constexpr int kRuleLines = 1200;
constexpr std::int64_t kMaxRuleVocabulary = 4096;  // more pieces than words
constexpr std::size_t kSampleLines = 40'000;
constexpr std::int64_t kMarks = 2;  // begin and end

// Rows of training that are made by rule, in turn: alone, half of them tasks; beside a text, which every second row
// is of, 14 of 20 (35 % of all).
const std::vector<Content> kAlone = {Content::tasks, Content::story, Content::tasks, Content::code};
const std::vector<Content> kBesideText = {Content::tasks, Content::tasks, Content::story, Content::tasks,
                                          Content::tasks, Content::code,  Content::tasks, Content::tasks,
                                          Content::tasks, Content::story, Content::tasks, Content::tasks,
                                          Content::code,  Content::tasks, Content::tasks, Content::tasks,
                                          Content::story, Content::tasks, Content::code,  Content::tasks};

class Stopped : public std::exception {};

// The ids of a text or a dataset one after the other, marks left out, cut into rows. Some rows, spread evenly, are held
// out for validation.
class TextRows {
 public:
  // Reads no more than max_rows. check: told how far it is, and may throw.
  TextRows(const Source& source, const data::Tokenizer& tokenizer, std::int64_t tokens, std::int64_t max_rows,
           std::int64_t held_out, const Parallel& parallel, const std::function<void(double share)>& check)
      : tokens_(tokens), held_out_(held_out) {
    const auto wanted = static_cast<std::size_t>(tokens * max_rows);
    if (source.is_dataset()) {
      read_dataset(data::Dataset(source.path()), tokenizer, wanted, check);
    } else {
      read_text(source.path(), tokenizer, wanted, parallel, check);
    }
    rows_ = std::min(max_rows, static_cast<std::int64_t>(ids_.size()) / tokens_);
    if (rows_ < 2 * held_out_) {
      bad_file(
          source.path().string(),
          concat("at least ", 2 * held_out_ * tokens_, " tokens, half of which are held out for validation"),
          concat(ids_.size()));
    }
    nth_ = rows_ / held_out_;
  }

  std::span<const std::int32_t> held_out(std::int64_t i) const { return row(i * nth_ + nth_ / 2); }

  std::int64_t train_rows() const { return rows_ - held_out_; }  // different ones

  // Those to train on; behind the last one comes the first again.
  std::span<const std::int32_t> train(std::int64_t i) const {
    i %= train_rows();
    const std::int64_t block = std::min(held_out_, i / (nth_ - 1)), within = i - block * (nth_ - 1);
    return row(block * nth_ + within + (block < held_out_ && within >= nth_ / 2 ? 1 : 0));
  }

 private:
  std::span<const std::int32_t> row(std::int64_t i) const {
    return std::span(ids_).subspan(static_cast<std::size_t>(i * tokens_), static_cast<std::size_t>(tokens_));
  }

  void read_text(const fs::path& path, const data::Tokenizer& tokenizer, std::size_t wanted,
                 const Parallel& parallel, const std::function<void(double)>& check) {
    constexpr std::size_t kPiece = 1 << 16, kBatch = 256;
    const MappedFile file(path);
    std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    while (!rest.empty() && ids_.size() < wanted) {
      check(static_cast<double>(ids_.size()) / static_cast<double>(wanted));
      std::vector<std::string_view> pieces;
      while (!rest.empty() && pieces.size() < kBatch) {
        std::size_t size = std::min(kPiece, rest.size());
        if (size < rest.size()) {  // up to the end of a line, where there is one
          const std::size_t line = rest.rfind('\n', size);
          if (line != std::string_view::npos && line > 0) size = line + 1;
        }
        pieces.push_back(rest.substr(0, size));
        rest.remove_prefix(size);
      }
      std::vector<Ids> ids(pieces.size());
      parallel.run(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i, int) {
        tokenizer.encode(pieces[static_cast<std::size_t>(i)], ids[static_cast<std::size_t>(i)]);
      });
      for (const Ids& part : ids) ids_.insert(ids_.end(), part.begin(), part.end());
    }
  }

  void read_dataset(const data::Dataset& dataset, const data::Tokenizer& tokenizer, std::size_t wanted,
                    const std::function<void(double)>& check) {
    std::vector<std::int64_t> part;
    constexpr std::int64_t kPart = 1 << 20;
    for (std::int64_t document = 0; document < dataset.documents() && ids_.size() < wanted; ++document) {
      const std::int64_t size = dataset.document_size(document);
      for (std::int64_t begin = 0; begin < size && ids_.size() < wanted; begin += kPart) {
        check(static_cast<double>(ids_.size()) / static_cast<double>(wanted));
        part.resize(static_cast<std::size_t>(std::min(kPart, size - begin)));
        dataset.read(document, begin, part);
        for (const std::int64_t id : part) {
          if (id != tokenizer.bos() && id != tokenizer.eos()) ids_.push_back(static_cast<std::int32_t>(id));
        }
      }
    }
  }

  std::int64_t tokens_, held_out_, rows_ = 0, nth_ = 1;
  Ids ids_;
};

// The trainer leaves out the characters that are rarest, 0.05 % of all that it reads; RULER's prompts may need them.
void add_characters(std::vector<std::string>& lines) {
  std::string every;
  for (char c = '!'; c <= '~'; ++c) every += {c, ' '};
  std::size_t size = 0;
  for (const std::string& line : lines) size += line.size();
  lines.insert(lines.end(), 1 + size / 1500, every);
}

class Maker {
 public:
  Maker(const fs::path& folder, const Scale& scale, const Source& source, const Parallel& parallel,
        const MaterialEvents& events)
      : folder_(folder / "data"), s_(scale), source_(source), parallel_(parallel), events_(events) {}

  void make() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    events_.progress(0, "a tokenizer");
    make_tokenizer();
    const std::int64_t rows = rows_of(s_.train_tokens), held_out = rows_of(s_.validation_tokens);
    OrderedJson facts = OrderedJson::object();
    if (source_.by_rule()) {
      write_rule("validation-1", kValidation1, held_out, {Content::story});
      write_rule("validation-2", kValidation2, held_out, {Content::code});
      write_rule("train", kTrain, rows, kAlone);
    } else {
      const std::int64_t text_rows = (rows + 1) / 2;
      const TextRows text(source_, *tokenizer_, s_.length - kMarks, held_out + text_rows, held_out, parallel_,
                          [&](double share) { check(share, "text"); });
      facts = {{"text_rows", text_rows}, {"text_rows_different", text.train_rows()}};
      write_rows("validation-1", held_out, [&](std::int64_t i) { return copied(text.held_out(i)); });
      write_rule("validation-2", kValidation2, held_out, {Content::story, Content::code, Content::tasks});
      write_rows("train", rows, [&](std::int64_t i) {
        return i % 2 == 0 ? copied(text.train(i / 2)) : rule_row(kTrain, i / 2, kBesideText);
      });
    }
    write_haystack();
    copy_files();
    write_ruler_rows();
    for (const std::int64_t length : s_.speed_lengths) write_prompt(length);
    write(fs::path(kDataDone).filename().string(), facts.dump() + "\n");
  }

 private:
  std::int64_t rows_of(std::int64_t tokens) const { return std::max<std::int64_t>(1, tokens / s_.length); }

  void make_tokenizer() {
    tokenizer_ = source_.is_dataset() ? data::load_tokenizer(source_.path()) : trained_tokenizer();
    for (std::int32_t id = 0; id < tokenizer_->vocab_size(); ++id)
      bytes_.push_back(static_cast<std::int64_t>(tokenizer_->bytes_of(id).size()));
  }

  std::unique_ptr<data::Tokenizer> trained_tokenizer() const {
    data::SentencePieceTraining training{
        .lines = tokenizer_lines(Random(kKey).stream(kTokenizer).bits(), kRuleLines),
        .vocab_size = source_.by_rule() ? std::min(s_.vocabulary, kMaxRuleVocabulary) : s_.vocabulary,
        .threads = 1};
    if (!source_.by_rule()) {
      const MappedFile text(source_.path());
      data::LineSample sample(kSampleLines);
      sample.add({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()});
      training.lines.insert(training.lines.end(), sample.lines().begin(), sample.lines().end());
    }
    add_characters(training.lines);
    return data::sentencepiece_tokenizer(data::train_sentencepiece(training), "the tokenizer of gsa paper");
  }

  void check(double share, const std::string& what) const {
    if (events_.stop()) throw Stopped();
    events_.progress(share, what);
  }

  static Ids copied(std::span<const std::int32_t> ids) { return {ids.begin(), ids.end()}; }

  Ids rule_row(std::uint64_t stream, std::int64_t number, const std::vector<Content>& contents) const {
    const auto i = static_cast<std::uint64_t>(number);
    return make_row(contents[i % contents.size()], Random(kKey).stream(stream).stream(i), s_.length - kMarks,
                    *tokenizer_);
  }

  void write_rule(const std::string& name, std::uint64_t stream, std::int64_t rows,
                  const std::vector<Content>& contents) const {
    write_rows(name, rows, [&](std::int64_t i) { return rule_row(stream, i, contents); });
  }

  // Steps name what lies in the folder, so that it may be moved.
  void copy_files() const {
    const auto copy = [&](const fs::path& from, const std::string& to) {
      if (from.empty()) return;
      fs::copy(from, folder_ / to, fs::copy_options::recursive);
    };
    copy(source_.files().essays, s_.essays);
    copy(source_.files().squad, kSquad);
    copy(source_.files().hotpotqa, kHotpotqa);
  }

  // The prompts that `gsa ruler` asks by default, at the longest trained length, each with its answers behind it: where
  // the text ends a model has just looked up what RULER scores.
  void write_ruler_rows() const {
    constexpr std::uint64_t kAsked = 42;  // the seed of `gsa ruler`
    const std::int64_t length = longest_near(s_);
    if (length == 0) return;
    ruler::Material material;
    material.essays = ruler::Essays::read(folder_ / (s_.essays.empty() ? "haystack.txt" : s_.essays), length);
    if (!source_.files().squad.empty()) material.squad = ruler::QuestionSet::read_squad(folder_ / kSquad);
    if (!source_.files().hotpotqa.empty())
      material.hotpotqa = ruler::QuestionSet::read_hotpotqa(folder_ / kHotpotqa);
    const auto count = [&](const std::string& text) {
      return static_cast<std::int64_t>(data::prompt_ids(*tokenizer_, text).size());
    };
    const auto tasks = static_cast<std::int64_t>(s_.ruler_tasks.size());
    const std::int64_t samples = std::max<std::int64_t>(1, s_.validation_tokens / length / tasks);
    std::vector<Ids> rows;
    for (const std::string& name : s_.ruler_tasks) {
      check(static_cast<double>(rows.size()) / static_cast<double>(samples * tasks), kRulerRows);
      const ruler::Task& task = ruler::task_by_name(name);
      ruler::SampleMaker maker(task, length, kAsked, material, count);
      if (!maker.refusal().empty()) continue;  // too long for short rows
      for (const auto& sample : maker.make(0, samples, parallel_)) {
        if (!sample) continue;
        std::string text = sample->prompt;
        for (std::size_t i = 0; i < sample->answers.size(); ++i)
          text += (i > 0 ? ", " : " ") + sample->answers[i];
        tokenizer_->encode(text, rows.emplace_back());
        rows.back().resize(std::min(rows.back().size(), static_cast<std::size_t>(length - kMarks)));
      }
    }
    write_rows(kRulerRows, std::ssize(rows),
               [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; });
  }

  // Made in parallel, written in their order.
  void write_rows(const std::string& name, std::int64_t rows,
                  const std::function<Ids(std::int64_t)>& make) const {
    data::DatasetWriter writer(folder_ / name, *tokenizer_);
    constexpr std::int64_t kBatch = 256;
    for (std::int64_t first = 0; first < rows; first += kBatch) {
      check(static_cast<double>(first) / static_cast<double>(rows), name);
      std::vector<Ids> batch(static_cast<std::size_t>(std::min(kBatch, rows - first)));
      parallel_.run(static_cast<std::int64_t>(batch.size()),
                    [&](std::int64_t i, int) { batch[static_cast<std::size_t>(i)] = make(first + i); });
      for (const Ids& row : batch) {
        std::int64_t bytes = 0;
        for (const std::int32_t id : row) bytes += bytes_[static_cast<std::size_t>(id)];
        writer.add_document(row, bytes);
      }
    }
    writer.finish();
  }

  void write_haystack() const {
    std::string text;
    Random random = Random(kKey).stream(kHaystack);
    for (int i = 0; i < 200; ++i)
      text += story_text(random.stream(static_cast<std::uint64_t>(i)), 40).substr(7) + "\n";
    write("haystack.txt", text);
  }

  // A little shorter than the length together with what is generated: encoded again, it may have other tokens.
  void write_prompt(std::int64_t length) const {
    const std::int64_t tokens = length - s_.speed_tokens - kMarks - length / 64;
    const Ids ids = make_row(Content::story, Random(kKey).stream(kPrompts), std::max<std::int64_t>(1, tokens),
                             *tokenizer_);
    write(concat("prompt-", length, ".txt"), tokenizer_->decode(ids));
  }

  void write(const std::string& name, const std::string& text) const {
    AtomicFile file(folder_ / name);
    file.write(text);
    file.commit();
  }

  fs::path folder_;
  const Scale& s_;
  const Source& source_;
  const Parallel& parallel_;
  const MaterialEvents& events_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<std::int64_t> bytes_;  // of the text that each id stands for
};

}  // namespace

Scale with_files(Scale scale, const RulerFiles& files) {
  // RULER's JSON file is told by its name.
  if (!files.essays.empty()) scale.essays = files.essays.extension() == ".json" ? "essays.json" : "essays";
  if (!files.squad.empty()) scale.ruler_tasks.emplace_back("qa_1");
  if (!files.hotpotqa.empty()) scale.ruler_tasks.emplace_back("qa_2");
  return scale;
}

Source::Source(const fs::path& path, const RulerFiles& files) : path_(path), files_(files) {
  const auto remember = [&](const char* what, const std::string& name, std::uint32_t checksum) {
    file_checksums_[what] = {{"file", name}, {"checksum", checksum}};
  };
  if (!files.essays.empty()) {
    const auto essays = ruler::Essays::read(files.essays, 0);
    remember("essays", essays.name(), essays.checksum());
  }
  for (const auto& [what, file] : {std::pair("squad", files.squad), {"hotpotqa", files.hotpotqa}}) {
    if (file.empty()) continue;
    const auto set =
        file == files.squad ? ruler::QuestionSet::read_squad(file) : ruler::QuestionSet::read_hotpotqa(file);
    remember(what, set.name, set.checksum);
  }
  if (path_.empty()) return;
  dataset_ = fs::is_directory(path_);
  checksum_ = dataset_ ? data::Dataset(path_).fingerprint() : crc32c(MappedFile(path_).bytes(), 0);
}

OrderedJson Source::identity() const {
  OrderedJson json{{"rule", kRule}, {"text", by_rule() ? "made by rule" : path_.filename().string()}};
  if (!by_rule()) {
    json["kind"] = dataset_ ? "dataset" : "text";
    json["checksum"] = checksum_;
  }
  for (const auto& [what, file] : file_checksums_.items()) json[what] = file;
  return json;
}

std::string Source::options() const {
  std::string text;
  const auto add = [&](const char* option, const std::string& name) {
    text += concat(text.empty() ? "" : " ", option, " ", name);
  };
  if (!by_rule()) add("--data", path_.filename().string());
  for (const auto& [what, file] : file_checksums_.items())
    add(concat("--", what).c_str(), file["file"].get<std::string>());
  return text;
}

std::string Source::in_words() const {
  const std::string made =
      "stories, code-like lines whose names were given a value far above, and questions of RULER's kind in "
      "other words and with other keys than RULER's, all made by rule";
  if (by_rule()) return made + ".";
  return concat(path_.filename().string(), ", every second row; the others are ", made, ".");
}

std::string Source::text_name(int text) const {
  if (by_rule()) return text == 0 ? "stories" : "code";
  return text == 0 ? path_.filename().string() : "made by rule";
}

bool make_material(const fs::path& folder, const Scale& scale, const Source& source, const Parallel& parallel,
                   const MaterialEvents& events) {
  try {
    Maker(folder, scale, source, parallel, events).make();
  } catch (const Stopped&) {
    return false;
  }
  return true;
}

}  // namespace gsa::paper
