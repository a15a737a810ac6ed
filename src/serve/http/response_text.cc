#include "serve/http/response_text.h"

#include <algorithm>
#include <array>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <cstdio>

#include "gsa/error.h"

namespace gsa::serve {
namespace {

void add_field(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ").append(value).append("\r\n");
}

std::string head_text(int status, std::string_view type, const HttpHeaders& headers, const AnswerForm& form) {
  const auto reason = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  std::string head = concat("HTTP/1.1 ", status, " ");
  head.append(reason.data(), reason.size()).append("\r\n");
  add_field(head, "Server", "gsa");
  add_field(head, "Date", http_date(std::time(nullptr)));
  if (!type.empty()) add_field(head, "Content-Type", type);
  for (const auto& [name, value] : headers) add_field(head, name, value);
  if (!form.keep_alive) {
    add_field(head, "Connection", "close");
  } else if (form.http_1_0) {
    add_field(head, "Connection", "keep-alive");  // is not what these clients expect
  }
  return head;
}

}  // namespace

// By hand: strftime() would speak the language of the process.
std::string http_date(std::time_t time) {
  static constexpr std::array<const char*, 7> days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<const char*, 12> months = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm parts = {};
  gmtime_r(&time, &parts);
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                days[static_cast<std::size_t>(parts.tm_wday)], parts.tm_mday,
                months[static_cast<std::size_t>(parts.tm_mon)], parts.tm_year + 1900, parts.tm_hour,
                parts.tm_min, parts.tm_sec);
  return text.data();
}

void check_fields(const HttpHeaders& headers) {
  const auto breaks = [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; };
  for (const auto& [name, value] : headers) {
    const bool bad_name = name.empty() || std::any_of(name.begin(), name.end(), [&](unsigned char c) {
                            return breaks(c) || c == ' ' || c == '\t' || c == ':';
                          });
    if (bad_name || std::any_of(value.begin(), value.end(), breaks)) {
      throw Error(concat("HttpReply: header field '", bad_name ? "" : name,
                         "': expected a name and a value without control characters"));
    }
  }
}

std::string response_text(const HttpResponse& response, const AnswerForm& form) {
  const bool no_body = response.status == 204 || response.status == 304;  // by definition
  std::string text = head_text(response.status, no_body ? "" : response.type, response.headers, form);
  if (!no_body) add_field(text, "Content-Length", std::to_string(response.body.size()));
  text.append("\r\n");
  if (!no_body && !form.head) text.append(response.body);
  return text;
}

std::string stream_head(const HttpHeaders& headers, const AnswerForm& form) {
  std::string text = head_text(200, "text/event-stream; charset=utf-8", headers, form);
  add_field(text, "Cache-Control", "no-cache");
  add_field(text, "X-Accel-Buffering", "no");  // nginx would collect events
  if (!form.http_1_0) add_field(text, "Transfer-Encoding", "chunked");
  return text.append("\r\n");
}

void append_chunk(std::string& text, std::string_view data) {
  std::array<char, 16> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), data.size(), 16).ptr;
  text.append(size.data(), end).append("\r\n").append(data).append("\r\n");
}

}  // namespace gsa::serve
