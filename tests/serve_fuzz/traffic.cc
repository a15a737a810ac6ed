#include "traffic.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "bodies.h"

namespace gsa::serve_fuzz {
namespace {

struct Message {
  std::string method, target, version = "HTTP/1.1", line_end = "\r\n";
  std::vector<std::pair<std::string, std::string>> fields;
  std::string body;  // as it is sent, chunks and all
};

std::string hex(std::size_t value) {
  char text[20];
  return {text, std::to_chars(text, text + sizeof(text), value, 16).ptr};
}

std::string chunked(Random& random, const std::string& body) {
  std::string all;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t size =
        std::min(body.size() - at, random.between(1, 1 + body.size() / random.between(1, 6)));
    all += (random.one_in(4) ? "00" : "") + hex(size) + (random.one_in(6) ? ";name=\"a;b\"" : "") + "\r\n";
    all += body.substr(at, size) + "\r\n";
    at += size;
  }
  all += random.one_in(5) ? "0;end\r\n" : "0\r\n";
  if (random.one_in(5)) all += "Trailer: x\r\n";
  return all + "\r\n";
}

Message message_of(Random& random, const Call& call) {
  Message message{.method = call.method, .target = call.path, .fields = {}, .body = call.body};
  if (random.one_in(20)) message.target = "http://a.example" + message.target;
  if (random.one_in(10)) message.target += "?a=b&c";
  message.fields.emplace_back("Host", "a");
  message.fields.emplace_back(random.pick({"Authorization", "authorization"}), std::string("Bearer ") + kKey);
  if (random.one_in(2)) message.fields.emplace_back("Content-Type", "application/json; charset=utf-8");
  if (random.one_in(4)) message.fields.emplace_back("User-Agent", "fuzz");
  const bool old = random.one_in(20);
  if (old) message.version = "HTTP/1.0";
  if (old && random.one_in(2)) message.fields.emplace_back("Connection", "keep-alive");
  if (!old && random.one_in(20)) message.fields.emplace_back("Connection", "close");
  if (call.method != "POST") return message;
  if (!old && random.one_in(12)) message.fields.emplace_back("Expect", "100-continue");
  if (!old && random.one_in(4)) {
    message.body = chunked(random, call.body);
    message.fields.emplace_back("Transfer-Encoding", "chunked");
  } else {
    message.fields.emplace_back("Content-Length", std::to_string(call.body.size()));
  }
  return message;
}

std::string render(const Message& message) {
  std::string all = message.method + " " + message.target + " " + message.version + message.line_end;
  for (const auto& [name, value] : message.fields) all += name + ": " + value + message.line_end;
  return all + message.line_end + message.body;
}

// ---- Wrong HTTP

void spoil_field(Random& random, Message& message) {
  auto& fields = message.fields;
  const std::size_t at = random.below(fields.size());
  const auto add = [&](const char* name, const std::string& value) { fields.emplace_back(name, value); };
  switch (random.below(9)) {
    case 0:
      if (!fields.empty()) fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      if (!fields.empty()) fields.push_back(fields[at]);
      break;
    case 2:
      add("Content-Length",
          random.pick({"0", "1", "-1", "+5", "0x10", "1,1", "18446744073709551615", "18446744073709551616",
                       "9223372036854775807", "65537", "1000000", "", "a", "1 1"}));
      break;
    case 3:
      add("Transfer-Encoding", random.pick({"chunked", "gzip", "chunked, chunked", "identity",
                                            "gzip, chunked", "Chunked", "chunked;q=1", "", "xchunked"}));
      break;
    case 4:
      add(random.pick({"Expect", "Connection", "Upgrade", "Origin", "Content-Type", "Host", "Authorization"}),
          random.pick({"100-continue", "close", "keep-alive", "upgrade", "websocket", "200-ok",
                       "http://evil.example", "text/plain", "", "Bearer", "Bearer wrong", "Basic a2V5", ",",
                       "close, keep-alive"}));
      break;
    case 5:
      add("X-Long", std::string(random.below(random.one_in(4) ? 20'000 : 3000), 'v'));
      break;
    case 6:
      add(random.pick({"", "A b", "X\x01", "X\xff", "X:Y", "X\r\nY", "Host "}),
          random.pick({"", "a\rb", "a\nb", "\x00z", "\xff\xfe", " folded\r\n more", "a\x7f"}));
      break;
    case 7:
      for (std::size_t i = random.below(300); i > 0; --i) add("X-Many", "1");
      break;
    default:
      if (!fields.empty()) fields[at].second = random.pick({"", "a", "999999", "\t", "chunked", "0"});
  }
}

void spoil_chunks(Random& random, Message& message) {
  const std::string size =
      random.pick({"FFFFFFFFFFFFFFFF", "10000000000000000", "-1", "g", "", "7fffffffffffffff", "0x5", " 5",
                   "5 ", "20000", "5;", "5;a=\"", "00000000000000000005"});
  const std::string end = random.pick({"\r\n", "\n", "\r", "", "\r\n\r\n", "x\r\n"});
  std::string all;
  for (std::size_t i = random.below(4); i > 0; --i)
    all += "5\r\nhello" + std::string(random.one_in(4) ? "" : "\r\n");
  all += size + end + message.body + end;
  if (random.one_in(2)) all += "0\r\n";
  if (random.one_in(4)) all += "T: " + std::string(random.below(8000), 't') + "\r\n";
  if (random.one_in(2)) all += "\r\n";
  message.body = all;
  std::erase_if(message.fields, [](const auto& field) { return field.first == "Content-Length"; });
  message.fields.emplace_back("Transfer-Encoding", "chunked");
}

void spoil_http(Random& random, Message& message) {
  switch (random.below(10)) {
    case 0:
      message.method = random.pick({"GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PATCH",
                                    "PRI", "post", "", "FOO", "G\x01T", "POST POST"});
      break;
    case 1:
      message.target = random.one_in(4)
                           ? "/" + std::string(random.below(6000), 'p')
                           : random.pick({"*", "//", "/../../etc/passwd", "/%2e%2e/", "/v1/completions/",
                                          "/v1/models/", "a b", "", "http://", "https://a", "/v1/models/%",
                                          "/\xff", "?", "/?", "http:///v1/models", "/\x01"});
      break;
    case 2:
      message.version = random.pick(
          {"HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.", "HTTP/9.9", "", "http/1.1", "HTTP/1.1 x"});
      break;
    case 3:
      message.line_end = random.pick({"\n", "\r", "\r\n ", "\n\r", "\r\r\n"});
      break;
    case 4:
      spoil_chunks(random, message);
      break;
    case 5:
      message.body = message.body.substr(0, random.below(message.body.size() + 1));
      break;
    default:
      spoil_field(random, message);
  }
}

void spoil_bytes(Random& random, std::string& bytes) {
  for (std::size_t i = random.between(1, 6); i > 0; --i) {
    // More often in the head, which is short.
    const std::size_t range = random.one_in(2) ? bytes.size() : std::min<std::size_t>(bytes.size(), 120);
    const std::size_t at = random.below(range);
    switch (bytes.empty() ? 2 : random.below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        bytes.insert(at, random.between(1, 8), static_cast<char>(random.below(256)));
        break;
      case 3:
        bytes.erase(at, random.between(1, 12));
        break;
      case 4:
        bytes.insert(at, bytes.substr(random.below(bytes.size()), random.below(80)));
        break;
      case 5:
        bytes.insert(at,
                     random.pick({"\r\n", "\r\n\r\n", "\n", " ", ":", "0\r\n\r\n", "\"", "{", "HTTP/1.1"}));
        break;
      default:
        bytes.resize(at);
    }
  }
}

}  // namespace

Traffic make_traffic(Random& random) {
  Traffic traffic;
  const std::size_t level = random.below(100);
  traffic.level = level < 15   ? Level::good
                  : level < 60 ? Level::json
                  : level < 82 ? Level::http
                               : Level::bytes;
  const std::size_t requests = random.one_in(8) ? random.between(2, 4) : 1;  // pipelined
  for (std::size_t i = 0; i < requests; ++i) {
    const bool bad_json = traffic.level == Level::json || (traffic.level != Level::good && random.one_in(4));
    Message message = message_of(random, bad_json ? bad_json_call(random) : good_call(random));
    traffic.heads.push_back(message.method == "HEAD");
    if (traffic.level == Level::http) {
      for (std::size_t k = random.between(1, 3); k > 0; --k) spoil_http(random, message);
    }
    traffic.bytes += render(message);
  }
  if (traffic.level == Level::bytes) spoil_bytes(random, traffic.bytes);
  return traffic;
}

}  // namespace gsa::serve_fuzz
