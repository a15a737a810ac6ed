// What the HTTP server refuses, and that it outlives whatever comes.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gsa/error.h"
#include "serve/http/http_server.h"
#include "serve/http/request_reader.h"
#include "serve/http_client.h"

namespace gsa::serve {
namespace {

// Each is refused with that status, and the connection is closed.
TEST(HttpLimits, RefusesWhatIsNoRequest) {
  HttpOptions options = test_options();
  options.max_header = 1000;
  options.max_body = 10;
  Counter handled;
  TestServer server(
      [&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
        handled.add();
        echo(request, reply);
      },
      options);
  const std::string start = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = start + "Transfer-Encoding: chunked\r\n\r\n";
  std::string fields;
  for (int i = 0; i < 200; ++i) fields += concat("X-", i, ": y\r\n");
  const std::vector<std::pair<int, std::string>> cases = {
      {400, "GET\r\n\r\n"},
      {400, "GET / HTTP/2.0\r\n\r\n"},
      {400, "GET /\r\n\r\n"},
      {400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\nHost: a\n\n"},
      {400, "G\x01T / HTTP/1.1\r\nHost: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n\r\n"},                        // no host
      {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"},  // two
      {400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"},
      {400, start + "Content-Length: 5x\r\n\r\nhello"},
      {400, start + "Content-Length: -5\r\n\r\nhello"},
      {400, start + "Content-Length: +5\r\n\r\nhello"},
      {400, start + "Content-Length:\r\n\r\n"},
      {400, start + "Content-Length: 99999999999999999999999\r\n\r\n"},
      {400, start + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"},
      {400, start + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"},
      {400, start + "Content-Length: 5, 5\r\n\r\nhello"},
      {400, start + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, start + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello"},
      {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, chunked + "x\r\nhello\r\n0\r\n\r\n"},
      {400, chunked + "2\r\nabc\r\n0\r\n\r\n"},
      {400, chunked + "-2\r\nab\r\n0\r\n\r\n"},
      {400, chunked + "11111111111111111\r\nab\r\n0\r\n\r\n"},
      {413, start + "Content-Length: 11\r\n\r\nhello, body"},
      {413, start + "Content-Length: 11\r\n\r\n"},
      {413, chunked + "b\r\nhello, body\r\n0\r\n\r\n"},
      {413, chunked + "6\r\nhello,\r\n6\r\n body!\r\n0\r\n\r\n"},
      {431, "GET /" + std::string(2000, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n"},
      {431, "GET /" + std::string(2000, 'x')},
      {431, start + fields + "\r\n"},
      {431, start + "X: " + std::string(5000, 'x')},
      {431, chunked + "1;" + std::string(2000, 'x') + "=y"},
      {431, chunked + "0\r\n" + fields},
  };
  for (const auto& [status, text] : cases) {
    HttpClient client(server.port());
    client.send(text);
    const Answer answer = client.receive();
    EXPECT_EQ(answer.status, status) << text.substr(0, 200);
    EXPECT_TRUE(answer.body.starts_with("refused: ")) << answer.body;
    EXPECT_TRUE(contains(answer.head, "\r\nConnection: close\r\n")) << text.substr(0, 200);
    EXPECT_EQ(client.rest(), "") << text.substr(0, 200);
  }
  EXPECT_EQ(handled.count(), 0);

  // The same head a field at a time, of which the parser counts each alone.
  HttpClient slow(server.port());
  slow.send(start);
  for (int i = 0; i < 200 && slow.send(concat("X-", i, ": y\r\n")); ++i) {
  }
  EXPECT_EQ(slow.receive().status, 431);
}

TEST(HttpLimits, TakesAsMuchAsTheLimitsSay) {
  HttpOptions options = test_options();
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n";
  options.max_header = static_cast<std::int64_t>(head.size());
  options.max_body = 10;
  TestServer server(echo, options);
  HttpClient client(server.port());
  EXPECT_EQ(client.ask(head + "0123456789").body, "POST /? 0123456789");
  EXPECT_EQ(client.ask("POST /x" + head.substr(6) + "0123456789").status, 431);
}

// A body that its handler holds, and one that is coming: a third is too much for what all may have together. The first
// 64 KiB of a body do not count.
TEST(HttpLimits, BoundsTheBodiesOfAllClients) {
  HttpOptions options = test_options();
  options.max_body = options.max_bodies = 100'000;
  Counter begun, let;
  TestServer server(
      [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
        begun.add();
        if (request.path == "/held") let.reaches(1);
        reply->send({.type = "text/plain", .body = std::to_string(request.body.size())});
      },
      options);
  const std::string body(100'000, 'x');
  HttpClient held(server.port()), coming(server.port());
  held.send(post("/held", body));
  ASSERT_TRUE(begun.reaches(1));
  coming.send(post("/", body).substr(0, post("/", body).size() - 1));
  HttpClient third(server.port());
  EXPECT_EQ(third.ask(post("/", "x")).body,
            "1");  // ordinary requests still come in; what came before was read
  Answer answer = third.ask(post("/", body));
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(contains(answer.body, "at most 100000 bytes")) << answer.body;
  let.add();
  EXPECT_EQ(held.receive().body, "100000");
  coming.close();
  for (int tries = 0; tries < 1000 && answer.status != 200; ++tries) {  // what was held is free soon
    answer = HttpClient(server.port()).ask(post("/", body));
  }
  EXPECT_EQ(answer.body, "100000");
}

// Pieces of requests, broken ones and noise: whatever comes, who asks next is served.
TEST(HttpLimits, OutlivesGarbage) {
  HttpOptions options = test_options();
  options.max_body = 1000;
  options.max_header = 1000;
  TestServer server(echo, options);
  std::mt19937_64 random(20240607);
  const std::vector<std::string> pieces = {"GET ",
                                           "POST ",
                                           "/ ",
                                           "/a?b ",
                                           "HTTP/1.1",
                                           "HTTP/1.0",
                                           "\r\n",
                                           "\r\n\r\n",
                                           "\n",
                                           "\r",
                                           "Host: a",
                                           "Host",
                                           ": ",
                                           "Content-Length: ",
                                           "5",
                                           "0",
                                           "ffffffffffffffff",
                                           "Transfer-Encoding: chunked",
                                           "chunked",
                                           ";",
                                           "\"",
                                           "Expect: 100-continue",
                                           "Connection: close",
                                           "hello",
                                           " ",
                                           "\t",
                                           std::string(1, '\0'),
                                           std::string(600, 'x')};
  const std::string valid =
      "POST /v HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n0\r\nT: "
      "u\r\n\r\n";
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    if (i % 3 == 0) {
      for (std::uint64_t n = random() % 60; n > 0; --n) text += static_cast<char>(random());
    } else if (i % 3 == 1) {
      for (std::uint64_t n = random() % 20; n > 0; --n) text += pieces[random() % pieces.size()];
    } else {
      text = valid + valid;
      for (std::uint64_t n = random() % 4; n > 0; --n)
        text[random() % text.size()] = static_cast<char>(random());
      text.resize(random() % (text.size() + 1));
    }
    HttpClient client(server.port());
    const std::size_t cut = text.empty() ? 0 : random() % text.size();
    client.send(text.substr(0, cut));
    client.send(text.substr(cut));
    if (i % 2 == 0) client.half_close();
    if (i % 10 == 0) client.rest();
    if (i % 100 == 99) {
      HttpClient good(server.port());
      ASSERT_EQ(good.ask(get("/good")).body, "GET /good? ") << "after " << i;
    }
  }
  EXPECT_TRUE(server.shut_down(patience));
}

// The requests in a text that arrives in these pieces.
std::vector<std::string> requests_in(const std::vector<std::string>& pieces) {
  RequestReader reader(10000, 1000);
  std::vector<std::string> requests;
  std::string input;
  for (const std::string& piece : pieces) {
    input += piece;
    for (bool more = true; more && !input.empty();) {
      switch (reader.read(input)) {
        case RequestReader::Progress::done: {
          const HttpRequest request = reader.take();
          requests.push_back(request.method + " " + request.path + " " + request.authorization + " " +
                             request.body);
          break;
        }
        case RequestReader::Progress::refused:
          return requests;
        case RequestReader::Progress::head:
          break;
        default:
          more = false;
      }
    }
  }
  return requests;
}

// However a text is cut into pieces, the same requests are in it, also where bytes of it are wrong.
TEST(HttpLimits, UnderstandsTheSameInAnyPieces) {
  const std::string valid =
      "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n1\r\n!\r\n"
      "0\r\nAuthorization: no\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\nAuthorization: yes\r\n\r\n"
      "POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nworld"
      "POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  const std::vector<std::string> all = {"POST /a  hello!", "GET /b yes ", "POST /c  world", "POST /d  "};
  EXPECT_EQ(requests_in({valid}), all);
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text = valid;
    for (std::uint64_t n = random() % 4; n > 0; --n) {
      const char any[] = {static_cast<char>(random()), '\r', '\n', '0', ';', ' '};
      text[random() % text.size()] = any[random() % sizeof(any)];
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, i % 5 == 0 ? 1 : 1 + random() % 50));
      at += pieces.back().size();
    }
    ASSERT_EQ(requests_in(pieces), requests_in({text})) << text;
  }
}

}  // namespace
}  // namespace gsa::serve
