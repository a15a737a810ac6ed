#include "paper/material.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "core/crc32c.h"
#include "core/file.h"
#include "data/dataset.h"
#include "data/line_sample.h"
#include "data/tokenizer.h"
#include "paper/plan.h"
#include "paper/synthetic.h"

namespace gsa::paper {
namespace {

namespace fs = std::filesystem;

// Streams of draws.
enum : std::uint64_t { kTokenizer = 1, kTrain, kValidation1, kValidation2, kHaystack, kPrompts };
constexpr std::uint64_t kKey = 20'260'101;  // the text is the same for every seed of the models
// Of everything here and in synthetic.cc that decides which rows there are: with another number, other rows.
constexpr int kRule = 1;

constexpr int kRuleLines = 1200;
constexpr std::size_t kSampleLines = 40'000;
constexpr std::int64_t kMarks = 2;  // begin and end
// Of a text's rows and rows made by rule, so many of ten are the text's.
constexpr std::int64_t kTextOfTen = 7;

class Stopped : public std::exception {};

struct Row {
  Ids ids;
  std::int64_t bytes = 0;
};

// The ids of a text or a dataset one after the other, marks left out, cut into rows.
class TextRows {
 public:
  TextRows(const Source& source, const data::Tokenizer& tokenizer, std::int64_t tokens)
      : tokenizer_(tokenizer), tokens_(static_cast<std::size_t>(tokens)) {
    if (source.is_dataset()) {
      dataset_.emplace(source.path());
    } else {
      text_.emplace(source.path());
    }
  }

  // Nothing where the text has ended.
  std::optional<Row> next() {
    while (ids_.size() - begin_ < tokens_) {
      if (!more()) return std::nullopt;
    }
    Row row;
    const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(begin_);
    row.ids.assign(first, first + static_cast<std::ptrdiff_t>(tokens_));
    begin_ += tokens_;
    row.bytes = static_cast<std::int64_t>(tokenizer_.decode(row.ids).size());
    return row;
  }

 private:
  static constexpr std::size_t kPiece = 1 << 20;

  bool more() {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
    return dataset_ ? more_of_dataset() : more_of_text();
  }

  bool more_of_text() {
    const auto bytes = text_->bytes();
    std::string_view rest(reinterpret_cast<const char*>(bytes.data()) + place_, bytes.size() - place_);
    if (rest.empty()) return false;
    std::size_t size = std::min(kPiece, rest.size());
    if (size < rest.size()) {  // up to the end of a line, where there is one
      const std::size_t line = rest.rfind('\n', size);
      if (line != std::string_view::npos && line > 0) size = line + 1;
    }
    tokenizer_.encode(rest.substr(0, size), ids_);
    place_ += size;
    return true;
  }

  bool more_of_dataset() {
    const auto document = static_cast<std::int64_t>(place_);
    if (document == dataset_->documents()) return false;
    std::vector<std::int64_t> wide(static_cast<std::size_t>(dataset_->document_size(document)));
    dataset_->read(document, 0, wide);
    for (const std::int64_t id : wide) {
      if (id != tokenizer_.bos() && id != tokenizer_.eos()) ids_.push_back(static_cast<std::int32_t>(id));
    }
    ++place_;
    return true;
  }

  const data::Tokenizer& tokenizer_;
  std::size_t tokens_;
  std::optional<MappedFile> text_;
  std::optional<data::Dataset> dataset_;
  std::size_t place_ = 0;  // bytes of the text, or documents
  Ids ids_;
  std::size_t begin_ = 0;
};

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
    const std::int64_t tokens = s_.length - kMarks;
    const std::int64_t rows = rows_of(s_.train_tokens), held_out = rows_of(s_.validation_tokens);
    if (source_.by_rule()) {
      write_rule("validation-1", kValidation1, held_out, {Content::story});
      write_rule("validation-2", kValidation2, held_out, {Content::code});
      write_rule("train", kTrain, rows, {Content::story, Content::code, Content::tasks, Content::tasks});
    } else {
      TextRows text(source_, *tokenizer_, tokens);
      write_text_rows("validation-1", text, held_out);
      write_rule("validation-2", kValidation2, held_out, {Content::story, Content::code, Content::tasks});
      write_mixture(text, rows);
    }
    write_haystack();
    for (const std::int64_t length : s_.speed_lengths) write_prompt(length);
    write(fs::path(kDataDone).filename().string(), "");
  }

 private:
  std::int64_t rows_of(std::int64_t tokens) const { return std::max<std::int64_t>(1, tokens / s_.length); }

  void make_tokenizer() {
    if (source_.is_dataset()) {
      tokenizer_ = data::load_tokenizer(source_.path());
      return;
    }
    data::SentencePieceTraining training{
        .lines = tokenizer_lines(Random(kKey).stream(kTokenizer).bits(), kRuleLines),
        .vocab_size = s_.vocabulary,
        .threads = 1};
    if (!source_.by_rule()) {
      const MappedFile text(source_.path());
      data::LineSample sample(kSampleLines);
      sample.add({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()});
      training.lines.insert(training.lines.end(), sample.lines().begin(), sample.lines().end());
    }
    tokenizer_ =
        data::sentencepiece_tokenizer(data::train_sentencepiece(training), "the tokenizer of gsa paper");
  }

  void check(double share, const std::string& what) const {
    if (events_.stop()) throw Stopped();
    events_.progress(share, what);
  }

  // Rows first .. first + count - 1 of a stream, in parallel, handed on in their order.
  void rule_rows(std::uint64_t stream, std::int64_t first, std::int64_t count,
                 const std::vector<Content>& contents, data::DatasetWriter& writer) const {
    const Random random = Random(kKey).stream(stream);
    std::vector<Row> rows(static_cast<std::size_t>(count));
    parallel_.run(count, [&](std::int64_t i, int) {
      const auto number = static_cast<std::uint64_t>(first + i);
      Row& row = rows[static_cast<std::size_t>(i)];
      row.ids = make_row(contents[number % contents.size()], random.stream(number), s_.length - kMarks,
                         *tokenizer_);
      row.bytes = static_cast<std::int64_t>(tokenizer_->decode(row.ids).size());
    });
    for (const Row& row : rows) writer.add_document(row.ids, row.bytes);
  }

  void write_rule(const std::string& name, std::uint64_t stream, std::int64_t rows,
                  const std::vector<Content>& contents) const {
    data::DatasetWriter writer(folder_ / name, *tokenizer_);
    constexpr std::int64_t kBatch = 256;
    for (std::int64_t first = 0; first < rows; first += kBatch) {
      check(static_cast<double>(first) / static_cast<double>(rows), name);
      rule_rows(stream, first, std::min(kBatch, rows - first), contents, writer);
    }
    writer.finish();
  }

  void write_text_rows(const std::string& name, TextRows& text, std::int64_t rows) const {
    data::DatasetWriter writer(folder_ / name, *tokenizer_);
    for (std::int64_t i = 0; i < rows; ++i) {
      check(static_cast<double>(i) / static_cast<double>(rows), name);
      const std::optional<Row> row = text.next();
      if (!row) too_short();
      writer.add_document(row->ids, row->bytes);
    }
    writer.finish();
  }

  // The text to its end or to its share, and rows made by rule among it.
  void write_mixture(TextRows& text, std::int64_t rows) const {
    data::DatasetWriter writer(folder_ / "train", *tokenizer_);
    std::int64_t own = 0, made = 0;
    while (own + made < rows) {
      check(static_cast<double>(own + made) / static_cast<double>(rows), "train");
      std::int64_t taken = 0;
      for (; taken < 16 * kTextOfTen && own + made + taken < rows; ++taken) {
        const std::optional<Row> row = text.next();
        if (!row) break;
        writer.add_document(row->ids, row->bytes);
      }
      if (taken == 0) break;  // the text has ended
      own += taken;
      const std::int64_t more = std::min(rows - own - made, own * (10 - kTextOfTen) / kTextOfTen - made);
      if (more > 0)
        rule_rows(kTrain, made, more, {Content::tasks, Content::story, Content::tasks, Content::code},
                  writer);
      made += std::max<std::int64_t>(0, more);
    }
    if (own == 0) too_short();
    writer.finish();
  }

  [[noreturn]] void too_short() const {
    bad_file(source_.path().string(),
             concat("more than ", s_.validation_tokens, " tokens, which are held out for validation"),
             "fewer");
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
};

}  // namespace

Source::Source(const fs::path& path) : path_(path) {
  if (path_.empty()) return;
  dataset_ = fs::is_directory(path_);
  checksum_ = dataset_ ? data::Dataset(path_).fingerprint() : crc32c(MappedFile(path_).bytes(), 0);
}

OrderedJson Source::identity() const {
  if (by_rule()) return {{"rule", kRule}, {"text", "made by rule"}};
  return {{"rule", kRule},
          {"text", path_.filename().string()},
          {"kind", dataset_ ? "dataset" : "text"},
          {"checksum", checksum_}};
}

std::string Source::in_words() const {
  const std::string made =
      "stories, code-like lines whose names were given a value far above, and questions of RULER's kind in "
      "other words "
      "and with other keys than RULER's, all made by rule";
  if (by_rule()) return made + ".";
  return concat(path_.filename().string(), ", seven rows of ten; the others are ", made, ".");
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
