// HTTP as it is spoken: requests and answers.
#include "serve/http/http_server.h"

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "gsa/error.h"
#include "serve/http/response_text.h"
#include "serve/http_client.h"

namespace gsa::serve {
namespace {

TEST(HttpServer, HandsOverRequestsAndAnswers) {
  HttpRequest seen;
  TestServer server([&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    seen = std::move(request);
    reply->send(
        {.status = 409, .type = "text/plain", .body = "short and stout", .headers = {{"X-More", "yes"}}});
  });
  HttpClient client(server.port());
  const Answer answer = client.ask(
      "POST /v1/x?a=1&b=2 HTTP/1.1\r\nhost: a\r\nAUTHORIZATION: Bearer k\r\nOrigin: http://o\r\n"
      "Content-Type: application/json\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_EQ(answer.status, 409);
  EXPECT_TRUE(answer.head.starts_with("HTTP/1.1 409 Conflict\r\n")) << answer.head;
  for (const char* field :
       {"\r\nServer: gsa\r\n", "\r\nDate: ", "\r\nContent-Type: text/plain\r\n", "\r\nX-More: yes\r\n"}) {
    EXPECT_TRUE(contains(answer.head, field)) << field << "in\n" << answer.head;
  }
  EXPECT_FALSE(contains(answer.head, "Connection:"));
  EXPECT_EQ(answer.body, "short and stout");
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/v1/x");
  EXPECT_EQ(seen.query, "a=1&b=2");
  EXPECT_EQ(seen.authorization, "Bearer k");
  EXPECT_EQ(seen.origin, "http://o");
  EXPECT_EQ(seen.content_type, "application/json");
  EXPECT_EQ(seen.body, "body");
  EXPECT_EQ(seen.host, "a");
  const auto now = std::chrono::steady_clock::now();
  EXPECT_LE(seen.received, now);
  EXPECT_GT(seen.received, now - patience);
}

TEST(HttpServer, KeepsConnectionsAsTheVersionHasIt) {
  TestServer server;
  HttpClient stays(server.port());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stays.ask(post(concat("/", i), "x")).status, 200);
  const Answer last = stays.ask("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(last.body, "GET /last? ");
  EXPECT_TRUE(contains(last.head, "\r\nConnection: close\r\n"));
  EXPECT_EQ(stays.rest(), "");

  HttpClient old(server.port());
  const Answer kept = old.ask("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(contains(kept.head, "\r\nConnection: keep-alive\r\n"));
  EXPECT_EQ(old.ask("GET /b HTTP/1.0\r\n\r\n").body, "GET /b? ");
  EXPECT_EQ(old.rest(), "");
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  HttpOptions options = test_options();
  options.workers = 4;
  // The first are answered last, by threads of their own, as far as the server lets them.
  TestServer server(
      [](HttpRequest request, std::shared_ptr<HttpReply> reply) {
        std::thread([request = std::move(request), reply = std::move(reply)] {
          std::this_thread::sleep_for(std::chrono::milliseconds(request.path == "/0" ? 50 : 0));
          echo(request, reply);
        }).detach();
      },
      options);
  HttpClient client(server.port());
  std::string all;
  for (int i = 0; i < 20; ++i)
    all += "\r\n" + post(concat("/", i), std::string(static_cast<std::size_t>(i), 'b'));
  ASSERT_TRUE(client.send(all));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.receive().body,
              concat("POST /", i, "? ") + std::string(static_cast<std::size_t>(i), 'b'));
  }
}

TEST(HttpServer, ReadsChunkedBodiesHoweverTheyArrive) {
  TestServer server;
  const std::string text =
      "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5;name=value\r\nhello\r\n1\r\n \r\nb\r\nwide, world\r\n0\r\nX-Trailer: t\r\n\r\n";
  const std::string empty = "POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  HttpClient client(server.port());
  EXPECT_EQ(client.ask(text).body, "POST /c? hello wide, world");
  EXPECT_EQ(client.ask(empty).body, "POST /e? ");
  for (const char c : text + empty) ASSERT_TRUE(client.send({c}));
  EXPECT_EQ(client.receive().body, "POST /c? hello wide, world");
  EXPECT_EQ(client.receive().body, "POST /e? ");
}

TEST(HttpServer, SaysContinueToWhoWaitsForIt) {
  HttpOptions options = test_options();
  options.max_body = 10;
  TestServer server(echo, options);
  const auto expecting = [](int length) {
    return "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
           std::to_string(length) + "\r\n\r\n";
  };
  HttpClient client(server.port());
  EXPECT_EQ(client.ask(expecting(3)).status, 100);
  EXPECT_EQ(client.ask("abc").body, "POST /x? abc");
  EXPECT_EQ(client.ask(expecting(3) + "abc").body, "POST /x? abc");  // who sends it anyway is not told
  EXPECT_EQ(client.ask(expecting(11)).status, 413);
  HttpClient other(server.port());
  EXPECT_EQ(other.ask("GET / HTTP/1.1\r\nHost: a\r\nExpect: a miracle\r\n\r\n").status, 417);
}

// By its head, before its body and before anybody is told to send it; the rest of the connection is of no use then.
TEST(HttpServer, RefusesByTheHead) {
  HttpOptions options = test_options();
  options.check = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    EXPECT_EQ(head.body, "");
    if (head.authorization == "yes" || head.path == "/open") return std::nullopt;
    return HttpResponse{.status = 401, .type = "text/plain", .body = "no", .headers = {{"X-Why", "key"}}};
  };
  TestServer server(echo, options);
  const auto head = [](const std::string& fields) {
    return "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + fields + "\r\n";
  };
  for (const char* fields :
       {"", "Expect: 100-continue\r\n", "Expect: 100-continue\r\nAuthorization: yes!\r\n"}) {
    HttpClient client(server.port());
    const Answer refused = client.ask(head(fields));  // of which no body has been sent
    EXPECT_EQ(refused.status, 401) << fields;
    EXPECT_EQ(refused.body, "no");
    EXPECT_TRUE(contains(refused.head, "\r\nX-Why: key\r\n"));
    EXPECT_TRUE(contains(refused.head, "\r\nConnection: close\r\n"));
    client.send("hello" + get("/open"));
    EXPECT_EQ(client.rest(), "");
  }
  HttpClient chunked(server.port());
  EXPECT_EQ(chunked.ask("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").status, 401);
  HttpClient client(server.port());
  EXPECT_EQ(client.ask(head("Authorization: yes\r\nExpect: 100-continue\r\n")).status, 100);
  EXPECT_EQ(client.ask("hello").body, "POST /x? hello");
  EXPECT_EQ(client.ask(head("Authorization: yes\r\n") + "hello").body, "POST /x? hello");
  EXPECT_EQ(client.ask(get("/no-body")).body, "GET /no-body? ");  // the handler's business
}

TEST(HttpServer, LeavesOutBodiesWhereNoneMayBe) {
  TestServer server([](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/stream") {
      reply->begin();
      reply->write("data: x\n\n");
      reply->end();
    } else if (request.method == "OPTIONS") {
      reply->send({.status = 204, .type = "", .body = "", .headers = {{"Allow", "GET"}}});
    } else {
      echo(request, reply);
    }
  });
  HttpClient client(server.port());
  client.send("HEAD /h HTTP/1.1\r\nHost: a\r\n\r\n");
  const Answer head = client.receive(true);
  EXPECT_TRUE(contains(head.head, "\r\nContent-Length: 9\r\n")) << head.head;
  client.send("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(contains(client.receive(true).head, "text/event-stream"));
  const Answer options = client.ask("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_FALSE(contains(options.head, "Content-"));
  EXPECT_EQ(client.ask(get("http://other.host/abs?q")).body, "GET /abs?q ");
  EXPECT_EQ(client.ask(get("/p?u=http://b/c")).body, "GET /p?u=http://b/c ");
}

TEST(HttpServer, StreamsInChunks) {
  TestServer server([](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
    reply->begin({{"X-Id", "7"}});
    for (int i = 0; i < 100; ++i) reply->write(concat("data: ", i, "\n\n"));
    reply->write("");  // would end the chunks
    reply->end();
  });
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += concat("data: ", i, "\n\n");
  HttpClient client(server.port());
  for (int turn = 0; turn < 2; ++turn) {
    const Answer answer = client.ask(get("/"));
    EXPECT_TRUE(answer.whole);
    EXPECT_EQ(answer.body, expected);
    for (const char* field : {"Content-Type: text/event-stream; charset=utf-8\r\n",
                              "Cache-Control: no-cache\r\n", "X-Accel-Buffering: no\r\n", "X-Id: 7\r\n"}) {
      EXPECT_TRUE(contains(answer.head, field)) << field;
    }
  }
  HttpClient old(server.port());
  const Answer answer = old.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(answer.body, expected);
  EXPECT_FALSE(contains(answer.head, "chunked"));
}

TEST(HttpServer, TakesLargeBodiesAndGivesThemBack) {
  TestServer server;
  std::string body(std::size_t{12} << 20, 'x');
  for (std::size_t i = 0; i < body.size(); i += 1000) body[i] = static_cast<char>('a' + i % 26);
  HttpClient client(server.port());
  EXPECT_EQ(client.ask(post("/", body)).body, "POST /? " + body);
}

TEST(HttpServer, ServesManyConnectionsAtOnce) {
  TestServer server;
  std::vector<HttpClient> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(server.port());
    ASSERT_TRUE(clients.back().connected);
  }
  for (int turn = 0; turn < 3; ++turn) {
    for (std::size_t i = 0; i < clients.size(); ++i) clients[i].send(post(concat("/", i), "b"));
    for (std::size_t i = 0; i < clients.size(); ++i) {
      EXPECT_EQ(clients[i].receive().body, concat("POST /", i, "? b"));
    }
  }
  EXPECT_EQ(server.connections(), 200);
}

TEST(HttpServer, SaysWhyItCannotListen) {
  TestServer first;
  const auto message = [](const HttpOptions& options) -> std::string {
    try {
      const HttpServer server(options, echo, plain_refusal);
      return "it can";
    } catch (const Error& error) {
      return error.what();
    }
  };
  HttpOptions options = test_options();
  options.port = first.port();
  EXPECT_TRUE(message(options).starts_with(
      "--port: cannot listen on 127.0.0.1:" + std::to_string(first.port()) + ": address already in use; "));
  options.port = 0;
  options.host = "192.0.2.1";  // of documents, and no machine's
  EXPECT_TRUE(
      message(options).starts_with("--host: cannot listen on 192.0.2.1:0: not an address of this machine"));
  options.host = "no such host";
  EXPECT_TRUE(contains(message(options),
                       "--host: expected an address or the name of this machine, got 'no such host'"));
  options.host = "";
  EXPECT_TRUE(message(options).starts_with("--host: "));
  options.host = "localhost";
  EXPECT_EQ(message(options), "it can");
  options.workers = 0;
  EXPECT_TRUE(contains(message(options), "argument 'workers': expected at least 1, got 0"));
}

// A port is taken before anybody listens at it; who listens first has it.
TEST(HttpServer, TakesAPortBeforeItListens) {
  HttpServer first(BoundPort(test_options()), test_options(), echo, plain_refusal);
  EXPECT_FALSE(HttpClient(first.port()).connected);
  HttpOptions options = test_options();
  options.port = first.port();
  HttpServer second(options, echo, plain_refusal);
  first.start();
  EXPECT_EQ(HttpClient(first.port()).ask(get("/")).status, 200);
  try {
    second.start();
    FAIL() << "expected the port to be taken";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "address already in use")) << error.what();
  }
}

TEST(HttpServer, ListensOnIPv6) {
  HttpOptions options = test_options();
  options.host = "[::1]";
  std::unique_ptr<TestServer> server;
  try {
    server = std::make_unique<TestServer>(echo, options);
  } catch (const Error& error) {
    GTEST_SKIP() << "this machine has no IPv6: " << error.what();
  }
  const int socket = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(server->port());
  address.sin6_addr = in6addr_loopback;
  ASSERT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET /six HTTP/1.0\r\n\r\n";
  ASSERT_EQ(::send(socket, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 1024> buffer;
  for (ssize_t n; (n = ::recv(socket, buffer.data(), buffer.size(), 0)) > 0;) {
    answer.append(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(socket);
  EXPECT_TRUE(answer.ends_with("GET /six? ")) << answer;
}

TEST(ResponseText, WritesDatesAndHeads) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(1709210096), "Thu, 29 Feb 2024 12:34:56 GMT");
  EXPECT_THROW(check_fields({{"X", "a\r\nSet-Cookie: b"}}), Error);
  EXPECT_THROW(check_fields({{"X: y", "a"}}), Error);
  EXPECT_THROW(check_fields({{"", "a"}}), Error);
  EXPECT_NO_THROW(check_fields({{"X-Y", "\xc3\xa4 b\tc"}}));
}

TEST(HttpServer, QuickPathsWaitForNobody) {
  HttpOptions options = test_options();
  options.workers = 1;
  options.quick = {"/quick"};
  Counter begun, let;
  TestServer server(
      [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
        begun.add();
        if (request.path == "/long") let.reaches(1);
        echo(request, reply);
      },
      options);
  HttpClient busy(server.port());
  busy.send(get("/long"));
  ASSERT_TRUE(begun.reaches(1));
  EXPECT_EQ(HttpClient(server.port()).ask(get("/quick?x")).body, "GET /quick?x ");
  EXPECT_EQ(let.count(), 0);
  let.add();
  EXPECT_EQ(busy.receive().status, 200);
}

}  // namespace
}  // namespace gsa::serve
