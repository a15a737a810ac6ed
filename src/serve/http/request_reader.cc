#include "serve/http/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <iterator>
#include <utility>

#include "gsa/error.h"

namespace gsa::serve {

namespace http = boost::beast::http;
using Fields = http::request<http::string_body>;

struct RequestReader::Parser {
  http::request_parser<http::string_body> parser;
};

namespace {

// The last chunk, "0\r\n\r\n", is the shortest rest that a chunked body can have. Beast's parser asserts as much.
constexpr std::size_t shortest_chunk = 5;

std::string text_of(boost::beast::string_view view) { return {view.data(), view.size()}; }

std::int64_t count(const Fields& fields, http::field name) {
  const auto range = fields.equal_range(name);
  return std::distance(range.first, range.second);
}

// "http://host/path" comes from proxies.
std::string without_host(std::string target) {
  const std::size_t scheme = target.find("://");
  if (scheme == std::string::npos || target.find_first_of("/?") != scheme + 1) return target;
  const std::size_t path = target.find_first_of("/?", scheme + 3);
  if (path == std::string::npos) return "/";
  return target[path] == '?' ? "/" + target.substr(path) : target.substr(path);
}

}  // namespace

RequestReader::RequestReader(std::int64_t max_header, std::int64_t max_body)
    : max_header_(max_header), max_body_(max_body) {}

RequestReader::~RequestReader() = default;

RequestReader::Progress RequestReader::refuse(int status, std::string message) {
  status_ = status;
  message_ = std::move(message);
  return Progress::refused;
}

RequestReader::Progress RequestReader::read(std::string& input) {
  if (!parser_) {
    parser_ = std::make_unique<Parser>();
    // One byte more than is allowed, so that what is too long is told here, where all of the head is counted: the
    // parser counts anew after every field that it has taken.
    parser_->parser.header_limit(
        static_cast<std::uint32_t>(std::min<std::int64_t>(max_header_ + 1, UINT32_MAX)));
    parser_->parser.body_limit(static_cast<std::uint64_t>(max_body_));
    head_bytes_ = 0;
    request_ = {};
    form_ = {};
  }
  if (!parser_->parser.is_header_done()) {
    const Progress progress = read_head(input);
    if (!parser_->parser.is_header_done() || progress == Progress::refused) return progress;
    waits_ = progress == Progress::wants_continue;
    if (progress != Progress::done) return Progress::head;
  }
  // Who has begun to send the body does not wait.
  if (std::exchange(waits_, false) && input.empty()) return Progress::wants_continue;
  return read_body(input);
}

RequestReader::Progress RequestReader::read_head(std::string& input) {
  auto& parser = parser_->parser;
  boost::system::error_code error;
  const std::size_t taken = parser.put(boost::asio::buffer(input), error);
  input.erase(0, taken);
  head_bytes_ += static_cast<std::int64_t>(taken);
  const bool done = parser.is_header_done();
  const std::int64_t held = done ? 0 : static_cast<std::int64_t>(input.size());
  if (error == http::error::header_limit || head_bytes_ + held > max_header_) {
    return refuse(431, concat("the head of the request: expected at most ", max_header_, " bytes"));
  }
  if (error == http::error::body_limit) {
    return refuse(413, concat("the body of the request: expected at most ", max_body_, " bytes"));
  }
  if (error && error != http::error::need_more) {
    return refuse(400, concat("expected a request of HTTP/1.1, got a malformed one: ", error.message()));
  }
  return done ? check_head() : Progress::more;
}

// What Beast lets pass and another server between us and the client could understand otherwise (request smuggling),
// and what HTTP/1.1 asks servers to refuse.
RequestReader::Progress RequestReader::check_head() {
  auto& parser = parser_->parser;
  const Fields& fields = parser.get();
  form_.http_1_0 = fields.version() < 11;
  form_.head = fields.method() == http::verb::head;
  form_.keep_alive = parser.keep_alive();

  const std::int64_t lengths = count(fields, http::field::content_length);
  const std::int64_t codings = count(fields, http::field::transfer_encoding);
  if (lengths > 0 && codings > 0)
    return refuse(400, "expected one of Content-Length and Transfer-Encoding, got both");
  if (lengths > 1 || fields[http::field::content_length].find(',') != boost::beast::string_view::npos) {
    return refuse(400, "Content-Length: expected it once");
  }
  if (codings > 0 && form_.http_1_0) return refuse(400, "Transfer-Encoding: expected none in HTTP/1.0");
  if (codings > 1 ||
      (codings == 1 && !boost::beast::iequals(fields[http::field::transfer_encoding], "chunked"))) {
    return refuse(400, "Transfer-Encoding: expected chunked and nothing else");
  }
  const std::int64_t hosts = count(fields, http::field::host);
  if (hosts > 1 || (hosts == 0 && !form_.http_1_0))
    return refuse(400, concat("Host: expected it once, got ", hosts));

  const std::string target = without_host(text_of(fields.target()));
  const std::size_t question = target.find('?');
  request_.method = text_of(fields.method_string());
  request_.path = target.substr(0, question);
  if (question != std::string::npos) request_.query = target.substr(question + 1);
  request_.authorization = text_of(fields[http::field::authorization]);
  request_.content_type = text_of(fields[http::field::content_type]);
  request_.origin = text_of(fields[http::field::origin]);
  request_.host = text_of(fields[http::field::host]);

  if (const auto expect = fields[http::field::expect]; !expect.empty() && !form_.http_1_0) {
    if (!boost::beast::iequals(expect, "100-continue")) return refuse(417, "Expect: expected 100-continue");
    if (!parser.is_done()) return Progress::wants_continue;
  }
  return parser.is_done() ? Progress::done : Progress::more;
}

RequestReader::Progress RequestReader::read_body(std::string& input) {
  auto& parser = parser_->parser;
  parser.eager(true);
  if (parser.is_done()) return Progress::done;
  if (input.size() < (parser.chunked() ? shortest_chunk : 1)) return Progress::more;
  boost::system::error_code error;
  input.erase(0, parser.put(boost::asio::buffer(input), error));
  if (error == http::error::body_limit) {
    return refuse(413, concat("the body of the request: expected at most ", max_body_, " bytes"));
  }
  if (error && error != http::error::need_more) {
    return refuse(400, concat("expected chunks of a request's body, got malformed ones: ", error.message()));
  }
  if (parser.is_done()) return Progress::done;
  // Extensions and trailers of chunks.
  if (static_cast<std::int64_t>(input.size()) > max_header_) {
    return refuse(431, concat("the head of a chunk: expected at most ", max_header_, " bytes"));
  }
  return Progress::more;
}

std::int64_t RequestReader::body_bytes() const {
  return parser_ ? static_cast<std::int64_t>(parser_->parser.get().body().size()) : 0;
}

void RequestReader::drop() { parser_.reset(); }

HttpRequest RequestReader::take() {
  request_.body = std::move(parser_->parser.get().body());
  request_.received = std::chrono::steady_clock::now();
  parser_.reset();
  return std::move(request_);
}

}  // namespace gsa::serve
