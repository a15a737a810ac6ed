// The life of connections: hang-ups, deadlines, replies that are let go of, and the server's end.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gsa/error.h"
#include "serve/http/http_server.h"
#include "serve/http_client.h"

namespace gsa::serve {
namespace {

using std::chrono::milliseconds;

// A handler that leaves the reply to the test, with a counter of hang-ups.
struct Kept {
  Replies replies;
  Counter gone;

  HttpServer::Handler handler() {
    return [this](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
      reply->on_gone([this] { gone.add(); });
      replies.push(std::move(reply));
    };
  }
  // Null: none came.
  std::shared_ptr<HttpReply> reply_to(HttpClient& client) {
    client.send(get("/"));
    return replies.pop();
  }
};

// A client with little room in its socket, and a stream to it.
struct SmallClient {
  explicit SmallClient(const HttpOptions& options)
      : server(kept.handler(), options), client(server.port(), 4096), reply(kept.reply_to(client)) {
    if (reply) reply->begin();
  }

  Kept kept;
  TestServer server;
  HttpClient client;
  std::shared_ptr<HttpReply> reply;
};

// All that the reply offers, to nobody.
void use_in_vain(HttpReply& reply, bool begun) {
  if (!begun) reply.begin();
  reply.write("data: x\n\n");
  int calls = 0;
  reply.on_gone([&] { ++calls; });
  EXPECT_EQ(calls, 1) << "who asks after the hang-up is told at once";
  reply.end();
  reply.on_gone([&] { ++calls; });
  EXPECT_EQ(calls, 1) << "the answer has ended";
}

void wait_until_alone(const HttpServer& server) {
  for (int i = 0; i < 60000 && server.connections() > 0; ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(server.connections(), 0);
}

using HangUp = void (*)(HttpClient&);
const std::vector<HangUp> hang_ups = {[](HttpClient& client) { client.close(); },
                                      [](HttpClient& client) { client.reset(); },
                                      [](HttpClient& client) { client.half_close(); }};

TEST(HttpLife, NoticesHangUps) {
  Kept kept;
  TestServer server(kept.handler());
  int expected = 0;
  for (const bool begun : {false, true}) {
    for (const HangUp hang_up : hang_ups) {
      HttpClient client(server.port());
      const auto reply = kept.reply_to(client);
      ASSERT_TRUE(reply);
      if (begun) {
        reply->begin();
        reply->write("data: first\n\n");
        EXPECT_NE(client.until("data: first\n\n"), "");
      }
      EXPECT_EQ(kept.gone.count(), expected);
      hang_up(client);
      ASSERT_TRUE(kept.gone.reaches(++expected));
      use_in_vain(*reply, begun);
    }
  }
  wait_until_alone(server);
  EXPECT_EQ(kept.gone.count(), expected);
}

// So much has been sent ahead that nothing more is read: the hang-up stands behind it.
TEST(HttpLife, NoticesHangUpsBehindPipelinedRequests) {
  Kept kept;
  TestServer server(kept.handler());
  // Sockets hold the first, with its end behind it; of the second they do not, but a reset passes by.
  const std::vector<std::pair<std::size_t, HangUp>> cases = {{90000, hang_ups[0]}, {1000000, hang_ups[1]}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    HttpClient client(server.port());
    const auto reply = kept.reply_to(client);
    ASSERT_TRUE(reply);
    // As much as goes without waiting.
    const std::string ahead = post("/ahead", std::string(cases[i].first, 'x'));
    const timeval at_most = {.tv_sec = 0, .tv_usec = 200000};
    ::setsockopt(client.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &at_most, sizeof(at_most));
    client.send(ahead);
    cases[i].second(client);
    EXPECT_TRUE(kept.gone.reaches(static_cast<int>(i) + 1));
  }
}

TEST(HttpLife, ServesLargeRequestsThatWereSentAhead) {
  TestServer server([](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    std::this_thread::sleep_for(milliseconds(5));  // more comes in than is read ahead
    echo(request, reply);
  });
  HttpClient client(server.port());
  const std::string body(300000, 'x');
  std::thread sender([&] {
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(client.send(post(concat("/", i), body)));
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(client.receive().body, concat("POST /", i, "? ", body));
  sender.join();
}

TEST(HttpLife, LetsGoOfWhatHangUpsWouldHaveTold) {
  Replies replies;
  TestServer server(
      [&](const HttpRequest&, std::shared_ptr<HttpReply> reply) { replies.push(std::move(reply)); });
  HttpClient client(server.port());
  for (const bool stream : {false, true}) {
    client.send(get("/"));
    const auto reply = replies.pop();
    ASSERT_TRUE(reply);
    auto held = std::make_shared<int>(0);
    reply->on_gone([reply, held] { ++*held; });  // holds the reply itself: would never be freed
    if (stream) reply->begin();
    EXPECT_EQ(held.use_count(), 2);
    if (stream) {
      reply->end();
    } else {
      reply->send({});
    }
    EXPECT_EQ(held.use_count(), 1);
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_EQ(*held, 0);
  }
}

TEST(HttpLife, DropsClientsThatTakeNothing) {
  HttpOptions options = test_options();
  options.send = milliseconds(50);
  options.max_unsent = 1 << 30;
  SmallClient small(options);
  ASSERT_TRUE(small.reply);
  small.reply->write(std::string(std::size_t{32} << 20, 'x'));  // more than sockets hold
  ASSERT_TRUE(small.kept.gone.reaches(1));
  use_in_vain(*small.reply, true);
  wait_until_alone(small.server);
  EXPECT_EQ(small.kept.gone.count(), 1);
}

TEST(HttpLife, BoundsWhatIsKeptForSlowClients) {
  HttpOptions options = test_options();
  options.max_unsent = 1 << 20;
  SmallClient small(options);
  ASSERT_TRUE(small.reply);
  int writes = 0;
  for (; writes < 1000 && small.kept.gone.count() == 0; ++writes) {
    small.reply->write(std::string(100000, 'x'));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_LT(writes, 1000);  // 100 MB: far more than sockets hold
  EXPECT_TRUE(small.kept.gone.reaches(1));
}

// One event that is larger than what slow clients may leave, and more behind it before it has been taken.
TEST(HttpLife, LargeEventsReachClientsThatRead) {
  HttpOptions options = test_options();
  options.max_unsent = 1 << 20;
  SmallClient small(options);
  ASSERT_TRUE(small.reply);
  const std::string large(std::size_t{24} << 20, 'x');  // more than sockets hold
  small.reply->write(large);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(milliseconds(2));  // each is taken for itself
    small.reply->write("more");
  }
  small.reply->end();
  const Answer answer = small.client.receive();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body.size(), large.size() + 20);
  EXPECT_EQ(small.kept.gone.count(), 0);
}

// A client that reads slowly but reads loses nothing.
TEST(HttpLife, WaitsForSlowReaders) {
  HttpOptions options = test_options();
  options.max_unsent = 64 << 20;
  SmallClient small(options);
  ASSERT_TRUE(small.reply);
  std::string expected;
  for (int i = 0; i < 10000; ++i) {
    const std::string data = "data: " + std::string(400, 'x') + std::to_string(i) + "\n\n";
    expected += data;
    small.reply->write(data);
  }
  small.reply->end();
  const Answer answer = small.client.receive();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, expected);
  EXPECT_EQ(small.kept.gone.count(), 0);
}

TEST(HttpLife, ClosesIdleConnections) {
  HttpOptions options = test_options();
  options.idle = milliseconds(300);
  TestServer server(echo, options);
  HttpClient silent(server.port());
  EXPECT_EQ(silent.rest(), "");
  HttpClient once(server.port());
  EXPECT_EQ(once.ask(get("/")).status, 200);
  EXPECT_EQ(once.rest(), "");
  wait_until_alone(server);
}

TEST(HttpLife, RefusesRequestsThatDoNotComeToAnEnd) {
  HttpOptions options = test_options();
  options.receive = milliseconds(30);
  TestServer server(echo, options);
  for (const char* text :
       {"G", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell",
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"}) {
    HttpClient client(server.port());
    client.send(text);
    Answer answer = client.receive();
    if (answer.status == 100) answer = client.receive();
    EXPECT_EQ(answer.status, 408);
    EXPECT_EQ(client.rest(), "");
  }
}

TEST(HttpLife, HasNoDeadlineForHandlers) {
  Kept kept;
  HttpOptions options = test_options();
  options.receive = options.send = options.idle = milliseconds(300);
  TestServer server(kept.handler(), options);
  HttpClient client(server.port());
  const auto reply = kept.reply_to(client);
  ASSERT_TRUE(reply);
  std::this_thread::sleep_for(milliseconds(700));
  reply->begin();
  reply->write("data: 1\n\n");
  std::this_thread::sleep_for(milliseconds(700));
  reply->write("data: 2\n\n");
  reply->end();
  EXPECT_EQ(client.receive().body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(kept.gone.count(), 0);
}

TEST(HttpLife, AnswersForRepliesThatAreLetGoOf) {
  std::vector<std::string> logged;
  std::mutex mutex;
  HttpOptions options = test_options();
  options.log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    logged.push_back(line);
  };
  std::shared_ptr<HttpReply> held;  // by somebody else, while the handler throws
  TestServer server(
      [&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
        if (request.path.starts_with("/stream")) {
          reply->begin();
          reply->write("data: x\n\n");
        }
        if (request.path == "/held") held = reply;
        if (request.path != "/drop" && request.path != "/stream")
          throw std::runtime_error("secret of " + request.path);
      },
      options);
  HttpClient client(server.port());
  for (const char* path : {"/drop", "/throw", "/held"}) {  // on one connection
    const Answer answer = client.ask(get(path));
    EXPECT_EQ(answer.status, 500) << path;
    EXPECT_EQ(answer.body, "refused: the server failed to answer the request");
  }
  held->send({.body = "too late"});
  for (const char* path : {"/stream", "/stream/throw"}) {
    HttpClient other(server.port());
    const Answer answer = other.ask(get(path));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "data: x\n\n");
    EXPECT_FALSE(answer.whole) << "no last chunk";
  }
  EXPECT_TRUE(server.shut_down(patience));
  std::sort(logged.begin(), logged.end());  // of two workers
  const std::vector<std::string> expected = {"a request failed: secret of /held",
                                             "a request failed: secret of /stream/throw",
                                             "a request failed: secret of /throw"};
  EXPECT_EQ(logged, expected);
}

TEST(HttpLife, RefusesTooManyConnections) {
  HttpOptions options = test_options();
  options.max_connections = 2;
  TestServer server(echo, options);
  HttpClient first(server.port());
  HttpClient second(server.port());
  EXPECT_EQ(first.ask(get("/")).status, 200);
  EXPECT_EQ(second.ask(get("/")).status, 200);
  for (int i = 0; i < 3; ++i) {
    HttpClient third(server.port());
    const Answer answer = third.ask(get("/"));
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.body, "refused: expected at most 2 connections at a time");
    EXPECT_EQ(third.rest(), "");
  }
  EXPECT_EQ(first.ask(get("/")).status, 200);
  first.close();
  second.close();
  wait_until_alone(server);
  HttpClient fourth(server.port());
  EXPECT_EQ(fourth.ask(get("/")).status, 200);
}

TEST(HttpLife, WaitsForDescriptors) {
  Counter logged;
  HttpOptions options = test_options();
  options.log = [&](const std::string&) { logged.add(); };
  TestServer server(echo, options);
  HttpClient client(0);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(client.descriptor());
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool connected = client.connect(server.port()) && client.send(get("/"));
  const bool told = logged.reaches(1);
  std::this_thread::sleep_for(milliseconds(250));  // it tries again, and says nothing more
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(connected);
  EXPECT_TRUE(told);
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(logged.count(), 1);
}

// ---- The end.

TEST(HttpLife, StopsAcceptingAndEndsWhatIsUnderWay) {
  Kept kept;
  TestServer server(kept.handler());
  HttpClient streams(server.port());
  const auto stream = kept.reply_to(streams);
  ASSERT_TRUE(stream);
  stream->begin();
  stream->write("data: 1\n\n");
  HttpClient waits(server.port());
  const auto waiting = kept.reply_to(waits);
  ASSERT_TRUE(waiting);
  HttpClient idle(server.port());
  HttpClient half(server.port());
  half.send("GET / HT");
  server.stop_accepting();
  EXPECT_EQ(idle.rest(), "");
  EXPECT_EQ(half.rest(), "");
  EXPECT_FALSE(HttpClient(server.port()).connected);
  stream->write("data: 2\n\n");
  stream->end();
  const Answer streamed = streams.receive();
  EXPECT_EQ(streamed.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_TRUE(streamed.whole);
  EXPECT_EQ(streams.rest(), "");
  waiting->send({.body = "{}"});
  const Answer answer = waits.receive();
  EXPECT_EQ(answer.body, "{}");
  EXPECT_NE(answer.head.find("\r\nConnection: close\r\n"), std::string::npos);
  streams.close();
  waits.close();
  wait_until_alone(server);
  EXPECT_TRUE(server.shut_down(std::chrono::seconds(0)));
  EXPECT_EQ(kept.gone.count(), 0);
}

TEST(HttpLife, ShutsDownWhenAnswersHaveEnded) {
  Kept kept;
  TestServer server(kept.handler());
  HttpClient client(server.port());
  const auto reply = kept.reply_to(client);
  ASSERT_TRUE(reply);
  std::thread answers([&] {
    while (HttpClient(server.port()).connected) std::this_thread::yield();  // until shut_down() has begun
    reply->send({.body = std::string(5000000, 'x')});
    const Answer answer = client.receive();
    EXPECT_EQ(answer.body.size(), 5000000U);
    client.close();
  });
  EXPECT_TRUE(server.shut_down(patience));
  EXPECT_EQ(server.connections(), 0);
  answers.join();
  EXPECT_EQ(kept.gone.count(), 0);
  EXPECT_TRUE(server.shut_down(patience));  // again
  server.stop_accepting();
}

TEST(HttpLife, CutsWhatDoesNotEnd) {
  Kept kept;
  auto server = std::make_unique<TestServer>(kept.handler());
  HttpClient client(server->port());
  const auto waiting = kept.reply_to(client);
  HttpClient other(server->port());
  const auto stream = kept.reply_to(other);
  ASSERT_TRUE(waiting && stream);
  stream->begin();
  EXPECT_FALSE(server->shut_down(milliseconds(1)));
  EXPECT_EQ(kept.gone.count(), 2);
  EXPECT_FALSE(other.receive().whole);
  EXPECT_EQ(client.receive().status, 0);
  server.reset();
  use_in_vain(*waiting, false);  // outlives the server
  use_in_vain(*stream, true);
  EXPECT_EQ(kept.gone.count(), 2);
}

TEST(HttpLife, EndsWithoutHavingBegun) {
  HttpServer server(test_options(), echo, plain_refusal);
  EXPECT_NE(server.port(), 0);
  server.stop_accepting();
  EXPECT_TRUE(server.shut_down(patience));
  EXPECT_THROW(server.start(), Error);
}

// Replies from many threads while clients hang up and the server ends.
TEST(HttpLife, EndsAmongAnswersFromManyThreads) {
  std::vector<std::thread> writers;
  std::mutex mutex;
  std::atomic<int> gone = 0;
  auto server = std::make_unique<TestServer>([&](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
    const std::lock_guard lock(mutex);
    reply->on_gone([&] { ++gone; });
    writers.emplace_back([reply = std::move(reply)] {
      reply->begin();
      for (int i = 0; i < 200; ++i) {
        reply->write("data: x\n\n");
        if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
      }
      reply->end();
    });
  });
  std::vector<HttpClient> clients;
  for (int i = 0; i < 40; ++i) {
    clients.emplace_back(server->port());
    clients.back().send(get("/"));
    if (i % 3 == 0) clients.back().reset();
    if (i % 3 == 1) clients.back().until("data: x");
  }
  server->shut_down(milliseconds(1));
  server.reset();
  for (std::thread& writer : writers) writer.join();
  EXPECT_LE(gone, 40);
}

}  // namespace
}  // namespace gsa::serve
