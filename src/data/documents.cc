#include "data/documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/file.h"
#include "core/json.h"

namespace gsa::data {
namespace {

constexpr std::size_t kBufferBytes = 1 << 18;
constexpr std::size_t kPieceBytes = 1 << 18;  // beyond this a document is handed over piece by piece
constexpr std::size_t kMaxJsonLine = std::size_t(256) << 20;

// How many bytes of the text end at the end of a character (of UTF-8; other bytes stand alone). All of it
// where no character begins in the last four bytes.
std::size_t whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // inside a character
    const std::size_t size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return size > back ? text.size() - back : text.size();
  }
  return text.size();
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

// Lines of a file, long ones in parts.
class LineReader {
 public:
  LineReader(const std::filesystem::path& path, const std::function<void(std::int64_t)>& progress)
      : name_(path == "-" ? "standard input" : path.string()),
        owned_(path != "-"),
        descriptor_(owned_ ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : STDIN_FILENO),
        progress_(progress) {
    if (descriptor_ < 0) bad_file(name_, "a file that can be read", std::strerror(errno));
  }
  ~LineReader() {
    if (owned_) ::close(descriptor_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  struct Part {
    std::string_view text;   // without the line's end
    bool begins = true;      // whether it begins the line
    bool completes = false;  // whether it ends the line
    bool newline = false;    // whether a line end follows; not so for the last line of some files
  };

  // False at the end. A part is valid until the next call.
  bool next(Part& part) {
    const bool begins = !inside_line_;
    for (;;) {
      const std::string_view rest(buffer_.data() + at_, filled_ - at_);
      const std::size_t newline = rest.find('\n', searched_);
      if (newline != std::string_view::npos) {
        part = {rest.substr(0, newline), begins, true, true};
        at_ += newline + 1;
        searched_ = 0;
        inside_line_ = false;
        return true;
      }
      searched_ = rest.size();
      if (rest.size() >= kPieceBytes) {
        const std::size_t size = whole_characters(rest);
        part = {rest.substr(0, size), begins, false, false};
        at_ += size;
        searched_ = 0;
        inside_line_ = true;
        return true;
      }
      if (!fill()) {
        const std::string_view last(buffer_.data() + at_, filled_ - at_);  // fill() has moved it
        if (last.empty() && begins) return false;
        part = {last, begins, true, false};
        at_ = filled_;
        searched_ = 0;
        inside_line_ = false;
        return true;
      }
    }
  }

  const std::string& name() const { return name_; }

 private:
  bool fill() {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(at_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(filled_), buffer_.begin());
    filled_ -= at_;
    at_ = 0;
    buffer_.resize(filled_ + kBufferBytes);
    ssize_t got;
    do {
      if (progress_) progress_(bytes_);
      got = ::read(descriptor_, buffer_.data() + filled_, kBufferBytes);
    } while (got < 0 && errno == EINTR);
    if (got < 0) bad_file(name_, "a file that can be read", std::strerror(errno));
    filled_ += static_cast<std::size_t>(got);
    bytes_ += got;
    if (progress_) progress_(bytes_);
    return got > 0;
  }

  std::string name_;
  bool owned_;
  int descriptor_;
  const std::function<void(std::int64_t)>& progress_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, filled_ = 0;
  std::size_t searched_ = 0;  // of what is there: no line end before it
  bool inside_line_ = false;
  std::int64_t bytes_ = 0;
};

// Gathers lines into pieces and leaves blank documents out.
class Pieces {
 public:
  explicit Pieces(const DocumentEvents& events) : events_(events) {}

  void add(std::string_view text) { piece_ += text; }
  // A text of any length, cut after lines, or between characters where a line is too long.
  void add_long(std::string_view text) {
    while (text.size() > kPieceBytes) {
      const std::size_t newline = text.substr(0, kPieceBytes).rfind('\n');
      const std::size_t size =
          newline != std::string_view::npos ? newline + 1 : whole_characters(text.substr(0, kPieceBytes));
      add(text.substr(0, size));
      hand_over();
      text.remove_prefix(size);
    }
    add(text);
  }
  // Called where a piece may end.
  void may_end() {
    if (piece_.size() >= kPieceBytes) hand_over();
  }
  void end_document() {
    if (!begun_ && is_blank(piece_)) {
      piece_.clear();
      return;
    }
    if (!piece_.empty()) hand_over();
    events_.end();
    begun_ = false;
  }

 private:
  void hand_over() {
    events_.text(piece_);
    piece_.clear();
    begun_ = true;
  }

  const DocumentEvents& events_;
  std::string piece_;
  bool begun_ = false;
};

void read_whole(LineReader& lines, Pieces& pieces) {
  for (LineReader::Part part; lines.next(part);) {
    pieces.add(part.text);
    if (part.newline) pieces.add("\n");
    pieces.may_end();
  }
  pieces.end_document();
}

// Documents between lines that end them. The line end before such a line belongs to neither document.
void read_split(LineReader& lines, Pieces& pieces, const DocumentSource& source) {
  bool line_open = false;  // a line of the document awaits its end
  for (LineReader::Part part; lines.next(part);) {
    std::string_view text = part.text;
    if (part.begins && part.completes) {
      std::string_view line = text;
      if (line.ends_with('\r')) line.remove_suffix(1);
      const bool ends = source.split == Split::blank_lines ? is_blank(line) : line == source.separator;
      if (ends) {
        pieces.end_document();
        line_open = false;
        continue;
      }
    }
    if (part.begins && line_open) pieces.add("\n");
    if (part.begins) pieces.may_end();
    pieces.add(text);
    if (!part.completes) pieces.may_end();
    line_open = part.completes;
  }
  pieces.end_document();
}

std::string text_of(const std::string& line, const std::string& where, const std::string& field) {
  Json object = parse_json(line, where);
  if (!object.is_object() || !object.contains(field) || !object[field].is_string()) {
    bad_file(where, concat("an object with the text '", field, "'"), shown(object));
  }
  return std::move(object[field].get_ref<std::string&>());
}

void read_json_lines(LineReader& lines, Pieces& pieces, const DocumentSource& source) {
  std::string line;
  std::int64_t number = 0;
  for (LineReader::Part part; lines.next(part);) {
    if (part.begins) {
      line.clear();
      ++number;
    }
    line += part.text;
    const std::string where = concat(lines.name(), ", line ", number);
    if (line.size() > kMaxJsonLine) bad_file(where, concat("at most ", kMaxJsonLine, " bytes"), "more");
    if (!part.completes || is_blank(line)) continue;
    std::string text;
    try {
      text = text_of(line, where, source.field);
    } catch (const Error& fault) {
      if (!source.skip) throw;
      source.skip(fault.what());
      continue;
    }
    pieces.add_long(text);
    pieces.end_document();
  }
}

}  // namespace

void read_documents(const DocumentSource& source, const DocumentEvents& events) {
  LineReader lines(source.path, events.progress);
  Pieces pieces(events);
  if (source.format == TextFormat::jsonl) {
    read_json_lines(lines, pieces, source);
  } else if (source.split == Split::file) {
    read_whole(lines, pieces);
  } else {
    read_split(lines, pieces, source);
  }
}

TextFormat format_by_name(const std::filesystem::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".ndjson" ? TextFormat::jsonl : TextFormat::text;
}

}  // namespace gsa::data
