// Documents out of text: files, standard input and JSON lines, read in pieces so that memory does not depend
// on the size of a file or of a document.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace gsa::data {

enum class TextFormat { text, jsonl };

// Where a document of plain text ends. A JSON line is a document of its own.
enum class Split { file, blank_lines, separator };

struct DocumentSource {
  std::filesystem::path path;  // "-": standard input
  TextFormat format = TextFormat::text;
  Split split = Split::file;
  std::string separator = {};  // for Split::separator: a line that is exactly this
  std::string field = "text";  // of a JSON line's object
  // Called with what is wrong with a JSON line, which is then left out; absent: such a line is an error.
  std::function<void(const std::string& fault)> skip = nullptr;
};

struct DocumentEvents {
  // The next piece of a document. Pieces end after a line, or between characters where a line is too long.
  std::function<void(std::string_view piece)> text;
  // The document that the pieces since the last call make up. Blank documents are left out.
  std::function<void()> end;
  // Bytes of the source that are read so far; may throw, which ends the reading.
  std::function<void(std::int64_t bytes)> progress;
};

// Throws gsa::Error naming the file (and the line, of JSON lines) where it cannot be read.
void read_documents(const DocumentSource& source, const DocumentEvents& events);

// By the name: ".jsonl" and ".ndjson" are JSON lines, all else is text.
TextFormat format_by_name(const std::filesystem::path& path);

}  // namespace gsa::data
