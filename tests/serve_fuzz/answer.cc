#include "answer.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/json.h"

namespace gsa::serve_fuzz {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr const char* kModelFailed = "RuleModel: the pass failed";
constexpr const char* kShutDown = "the server is shutting down";
constexpr std::size_t kMaxHead = 8192;

[[noreturn]] void malformed(const std::string& what, std::string_view bytes) {
  throw Finding(concat("malformed answer: ", what, ": ", bytes.substr(0, 400)));
}

struct Head {
  Answer answer;
  std::optional<std::size_t> length;
  bool chunked = false;
};

void read_field(std::string_view line, std::string_view head, Head& result) {
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(line.begin(), line.end(), control)) malformed("a control character in its head", head);
  const std::size_t colon = line.find(": ");
  if (colon == 0 || colon == std::string_view::npos ||
      line.substr(0, colon).find(' ') != std::string_view::npos)
    malformed("a field that is none", head);
  const std::string_view name = line.substr(0, colon), value = line.substr(colon + 2);
  if (name == "Content-Length") {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
    if (error != std::errc() || end != value.data() + value.size() || result.length)
      malformed("Content-Length", head);
    result.length = length;
  } else if (name == "Transfer-Encoding") {
    if (value != "chunked" || result.chunked) malformed("Transfer-Encoding", head);
    result.chunked = true;
  } else if (name == "Connection") {
    if (value != "close" && value != "keep-alive") malformed("Connection", head);
    result.answer.closes = value == "close";
  } else if (name == "Content-Type") {
    result.answer.type = value;
  } else if (name == "Retry-After") {
    result.answer.retry_after = true;
  }
}

// head: with the empty line.
Head read_head(std::string_view head) {
  Head result;
  constexpr std::string_view version = "HTTP/1.1 ";
  if (!head.starts_with(version) || head.size() < version.size() + 4) malformed("its status line", head);
  const char* digits = head.data() + version.size();
  if (std::from_chars(digits, digits + 3, result.answer.status).ptr != digits + 3 || digits[3] != ' ')
    malformed("its status", head);
  std::string_view rest = head.substr(head.find(kLineEnd) + 2);
  while (!rest.starts_with(kLineEnd)) {
    const std::size_t end = rest.find(kLineEnd);
    read_field(rest.substr(0, end), head, result);
    rest.remove_prefix(end + 2);
  }
  if (result.length && result.chunked) malformed("Content-Length and chunks", head);
  return result;
}

// False: not whole.
bool read_chunks(std::string_view bytes, Answer& answer) {
  std::string_view rest = bytes;
  for (;;) {
    const std::size_t line = rest.substr(0, 40).find(kLineEnd);
    if (line == std::string_view::npos) {
      if (rest.size() > 40) malformed("the size of a chunk", rest);
      return false;
    }
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + line, size, 16);
    if (line == 0 || error != std::errc() || end != rest.data() + line)
      malformed("the size of a chunk", rest);
    rest.remove_prefix(line + 2);
    if (rest.size() < size + 2) return false;
    if (rest.substr(size, 2) != kLineEnd) malformed("the end of a chunk", rest);
    answer.body += rest.substr(0, size);
    rest.remove_prefix(size + 2);
    if (size != 0) continue;
    answer.size += bytes.size() - rest.size();
    return true;
  }
}

void check_error(const Json& json, const Answer& answer) {
  const bool form =
      json.is_object() && json.size() == 1 && json.contains("error") && json["error"].is_object();
  const Json& error = form ? json["error"] : json;
  const auto text = [&](const char* name) { return error.contains(name) && error[name].is_string(); };
  const auto text_or_null = [&](const char* name) {
    return text(name) || (error.contains(name) && error[name].is_null());
  };
  if (!form || !text("message") || !text("type") || !text_or_null("param") || !text_or_null("code"))
    throw Finding(concat("an error that has not OpenAI's form: ", answer.body));
}

Json parsed(const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw Finding(concat("JSON that does not parse: ", error.what(), ": ", text.substr(0, 1000)));
  }
}

bool known_failure(const std::string& text, bool stopping) {
  return text.find(kModelFailed) != std::string::npos ||
         (stopping && text.find(kShutDown) != std::string::npos);
}

void check_events(const Answer& answer, bool stopping) {
  std::string_view rest = answer.body;
  bool ended = false, failed = false;
  while (!rest.empty()) {
    const std::size_t end = rest.find("\n\n");
    if (ended || !rest.starts_with("data: ") || end == std::string_view::npos)
      throw Finding(concat("events: expected data: ... up to the last one, got ", rest.substr(0, 1000)));
    const std::string data(rest.substr(6, end - 6));
    rest.remove_prefix(end + 2);
    if (data == "[DONE]") {
      ended = true;
      continue;
    }
    if (failed) throw Finding(concat("events: expected [DONE] behind an error, got ", data));
    const Json json = parsed(data);
    if (json.contains("error")) {
      check_error(json, answer);
      if (!known_failure(data, stopping)) throw Finding(concat("a stream ended by ", data));
      failed = true;
    } else if (!json.contains("choices") || !json["choices"].is_array()) {
      throw Finding(concat("an event without choices: ", data));
    }
  }
  if (!ended) throw Finding("a stream without [DONE]");
}

}  // namespace

std::optional<Answer> first_answer(std::string_view bytes, bool closed, Body body) {
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end == std::string_view::npos) {
    if (bytes.size() > kMaxHead) malformed("a head without an end", bytes);
    return std::nullopt;
  }
  Head head = read_head(bytes.substr(0, end + 4));
  Answer& answer = head.answer;
  answer.size = end + 4;
  const std::string_view rest = bytes.substr(answer.size);
  if (answer.status == 100 || answer.status == 204 || body == Body::absent) return answer;
  if (body == Body::unknown && (rest.starts_with("HTTP/1.1 ") || (closed && rest.empty()))) return answer;
  if (head.chunked) {
    if (!read_chunks(rest, answer)) return std::nullopt;
    return answer;
  }
  if (!head.length && !answer.closes) malformed("a body without an end", bytes);
  if (head.length ? rest.size() < *head.length : !closed) return std::nullopt;
  answer.body = rest.substr(0, head.length.value_or(rest.size()));
  answer.size += answer.body.size();
  return answer;
}

void check_answer(const Answer& answer, bool stopping) {
  static const std::set<int> known = {100, 200, 204, 400, 401, 403, 404, 405,
                                      408, 413, 415, 417, 429, 431, 500, 503};
  if (!known.contains(answer.status)) throw Finding(concat("status ", answer.status, ": ", answer.body));
  if (answer.status == 500 && !answer.body.empty() && !known_failure(answer.body, stopping))
    throw Finding(concat("status 500: ", answer.body));
  if (answer.status == 429 && !answer.retry_after) throw Finding("status 429 without Retry-After");
  if (answer.status == 100 || answer.status == 204 || answer.body.empty()) return;
  if (answer.type == "application/json") {
    const Json json = parsed(answer.body);
    if (answer.status >= 400) check_error(json, answer);
    if (!json.is_object()) throw Finding(concat("JSON: expected an object, got ", answer.body));
  } else if (answer.status != 200) {
    throw Finding(concat("status ", answer.status, " with ", answer.type, ": ", answer.body));
  } else if (answer.type.starts_with("text/event-stream")) {
    check_events(answer, stopping);
  } else if (!answer.type.starts_with("text/plain") && !answer.type.starts_with("text/html")) {
    throw Finding(concat("Content-Type ", answer.type));
  }
}

bool shut_down(const Answer& answer) { return answer.body.find(kShutDown) != std::string::npos; }

bool model_failed(const Answer& answer) { return answer.body.find(kModelFailed) != std::string::npos; }

}  // namespace gsa::serve_fuzz
