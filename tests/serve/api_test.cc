// The API over the scheduler and a model made by rule, as the HTTP server would call it.
#include "serve/core/api.h"

#include <gtest/gtest.h>

#include <thread>

#include "serve/api_testing.h"
#include "serve/core/completion_call.h"
#include "serve/rule_model.h"

namespace gsa::serve {
namespace {

using gsa::testing::RecordingReply;

class ApiTest : public ::testing::Test {
 protected:
  ~ApiTest() override { stop(); }

  // Everything is made by the first request, so that tests can say how before.
  Api& api() {
    if (api_) return *api_;
    options_.model = "tiny";
    model_ = std::make_unique<RuleModel>(rules_);
    scheduler_ = std::make_unique<Scheduler>(*model_, *tokenizer_, scheduling_);
    if (compute_) thread_ = std::thread([this] { scheduler_->run(); });
    api_ = std::make_unique<Api>(*scheduler_, *tokenizer_, options_);
    return *api_;
  }
  void stop() {
    if (thread_.joinable()) {
      scheduler_->stop(std::chrono::seconds(0));
      thread_.join();
    }
  }

  std::shared_ptr<RecordingReply> call(HttpRequest request) {
    auto reply = std::make_shared<RecordingReply>();
    api().handle(std::move(request), reply);
    return reply;
  }
  std::shared_ptr<RecordingReply> post(const std::string& path, const std::string& body) {
    return call({.method = "POST",
                 .path = path,
                 .query = "",
                 .authorization = "",
                 .content_type = "application/json",
                 .origin = "",
                 .body = body});
  }
  std::shared_ptr<RecordingReply> get(const std::string& path, const std::string& authorization = "") {
    return call({.method = "GET",
                 .path = path,
                 .query = "",
                 .authorization = authorization,
                 .content_type = "",
                 .origin = "",
                 .body = ""});
  }

  // What the model writes behind a prompt, greedily.
  std::string written(std::vector<std::int64_t> tokens, std::size_t count) {
    api();
    std::string text;
    while (text.size() < count) {
      tokens.push_back(model_->next(tokens));
      text += static_cast<char>(tokens.back());
    }
    return text;
  }

  RuleOptions rules_;
  SchedulerOptions scheduling_;
  ApiOptions options_;
  bool compute_ = true;
  std::unique_ptr<data::Tokenizer> tokenizer_ = data::byte_tokenizer();
  std::unique_ptr<RuleModel> model_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Api> api_;
  std::thread thread_;
};

TEST_F(ApiTest, CompletionsOfSeveralPrompts) {
  const Json json = post("/v1/completions",
                         R"({"prompt": [[256, 97, 98], [99]], "n": 2, "temperature": 0, "max_tokens": 5})")
                        ->json();
  ASSERT_EQ(json.value("object", ""), "text_completion") << json.dump();
  EXPECT_EQ(json["model"], "tiny");
  ASSERT_EQ(json["choices"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], i < 2 ? written({256, 'a', 'b'}, 5) : written({'c'}, 5));
    EXPECT_EQ(json["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);  // each prompt once
  EXPECT_EQ(json["usage"]["completion_tokens"], 20);
  EXPECT_EQ(json["usage"]["total_tokens"], 24);
}

TEST_F(ApiTest, TheModelEndsAText) {
  rules_.end_after = 5;
  const Json json = post("/v1/completions", R"({"prompt": "ab", "temperature": 0, "logprobs": 1})")->json();
  const std::string text = written({256, 'a', 'b'}, 2);
  EXPECT_EQ(json["choices"][0]["text"], text);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  // The mark has a log-probability but no text.
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"],
            Json::array({text.substr(0, 1), text.substr(1), "token_id:257"}));
  EXPECT_EQ(json["choices"][0]["logprobs"]["text_offset"], Json::array({0, 1, 2}));
}

// Of a chat's template.
TEST_F(ApiTest, StopTokensEndAText) {
  const std::vector<std::int64_t> prompt = {256, 'a'};
  const std::string text = written(prompt, 8);
  const std::size_t at = text.find(text[4]);
  CompletionRequest request;
  request.chat = true;
  request.prompts = {prompt};
  request.max_tokens = 8;
  request.text.sampling = {.temperature = 0, .logprobs = 0};
  request.text.stop_tokens = {text[4]};
  request.text.ignore_eos = true;
  const auto reply = std::make_shared<RecordingReply>();
  const auto worker = std::make_shared<Worker>();
  answer_completion({*scheduler_, *tokenizer_, "tiny", worker, std::make_shared<std::atomic<bool>>(false)},
                    request, reply);
  const Json json = reply->json();
  worker->close();
  EXPECT_EQ(json["choices"][0]["message"]["content"], text.substr(0, at));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), at + 1);
  EXPECT_EQ(json["usage"]["completion_tokens"], at + 1);
}

TEST_F(ApiTest, StopStringsEndAText) {
  const std::string text = written({256, 'a'}, 8);
  const Json json =
      post("/v1/completions", R"({"prompt": "a", "temperature": 0, "stop": ")" + text.substr(3, 2) + R"("})")
          ->json();
  EXPECT_EQ(json["choices"][0]["text"], text.substr(0, 3));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
}

// As lm-eval's local-completions asks for the likelihood of a continuation.
TEST_F(ApiTest, EchoedLogprobs) {
  for (const int max_tokens : {0, 1}) {
    const Json json = post("/v1/completions", concat(R"({"prompt": [[256, 97, 98], [99, 100]], "echo": true,
        "temperature": 0, "logprobs": 1, "seed": 1234, "max_tokens": )",
                                                     max_tokens, "}"))
                          ->json();
    ASSERT_EQ(json["choices"].size(), 2U) << json.dump();
    const Json& choice = json["choices"][0];
    EXPECT_EQ(choice["text"], "ab" + written({256, 'a', 'b'}, static_cast<std::size_t>(max_tokens)));
    const Json& logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), 3U + static_cast<std::size_t>(max_tokens));
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    EXPECT_EQ(logprobs["tokens"][2], "b");
    EXPECT_LT(logprobs["token_logprobs"][2].get<double>(), 0);
    EXPECT_TRUE(logprobs["top_logprobs"][2].contains("b"));
    // What would have been the most likely token is there as well.
    const std::string likely = written({256, 'a'}, 1);
    EXPECT_GT(logprobs["top_logprobs"][2][likely].get<double>(), logprobs["token_logprobs"][2].get<double>());
    if (max_tokens == 1) {
      EXPECT_EQ(logprobs["token_logprobs"][3], logprobs["top_logprobs"][3][written({256, 'a', 'b'}, 1)]);
    }
    EXPECT_EQ(json["usage"]["completion_tokens"], 2 * max_tokens);
  }
}

// Read once, told with every sample, however early the others come: in passes of eight tokens they have long ended when
// the prompt has been read.
TEST_F(ApiTest, SamplesShareTheLogprobsOfTheirPrompt) {
  rules_.max_chunk = 8;
  const std::string prompt(40, 'a');
  EXPECT_EQ(post("/v1/completions", R"({"prompt": ")" + prompt + R"(", "max_tokens": 1})")->response().status,
            200);  // five pages of eight are in the prefix cache
  const std::int64_t before = model_->prefilled;
  const std::string body = R"({"prompt": ")" + prompt +
                           R"(", "echo": true, "logprobs": 2, "temperature": 0, "max_tokens": 3, "n": 3)";
  const Json json = post("/v1/completions", body + "}")->json();
  EXPECT_EQ(model_->prefilled - before, 41 + 2);  // the others found all but the last token
  ASSERT_EQ(json["choices"].size(), 3U) << json.dump();
  const Json& first = json["choices"][0];
  ASSERT_EQ(first["logprobs"]["tokens"].size(), 44U);
  EXPECT_EQ(first["logprobs"]["text_offset"][43], 42);
  Json streamed;
  const auto reply = post("/v1/completions", body + R"(, "stream": true})");
  for (const Json& event : reply->events()) {
    if (event == "[DONE]") continue;
    const Json& choice = event["choices"].at(0);
    for (const auto& [name, list] : choice["logprobs"].items()) {
      for (const Json& value : list) streamed[choice["index"].get<std::size_t>()][name].push_back(value);
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(json["choices"][i]["text"], first["text"]);
    EXPECT_EQ(json["choices"][i]["logprobs"], first["logprobs"]);
    EXPECT_EQ(streamed[i], first["logprobs"]);
  }
}

TEST_F(ApiTest, EchoedLogprobsAreBounded) {
  options_.max_echoed_logprobs = 4 * 2 * 3;
  const std::string body = R"({"prompt": "abc", "echo": true, "max_tokens": 1, "n": 2, "logprobs": )";
  EXPECT_EQ(post("/v1/completions", body + "2}")->response().status, 200);
  const auto refused = post("/v1/completions", body + "3}");
  EXPECT_EQ(refused->response().status, 400);
  EXPECT_EQ(refused->json()["error"]["param"], "logprobs");
}

TEST_F(ApiTest, LongAnswersAreMadeBesideTheComputeThread) {
  api();
  const auto sender = [&](const std::string& rest) {
    return post("/v1/completions",
                R"({"prompt": ")" + std::string(1000, 'a') + R"(", "max_tokens": 2)" + rest)
        ->sender();
  };
  EXPECT_EQ(sender("}"), thread_.get_id());
  EXPECT_NE(sender(R"(, "echo": true, "logprobs": 1})"), thread_.get_id());
  EXPECT_NE(sender(R"(, "echo": true, "logprobs": 1, "stream": true})"), thread_.get_id());
  EXPECT_NE(sender(R"(, "logprobs": 1, "stream": true})"), thread_.get_id());
  EXPECT_EQ(sender(R"(, "stream": true})"), thread_.get_id());
}

TEST_F(ApiTest, CompletionStream) {
  const auto reply =
      post("/v1/completions", R"({"prompt": "ab", "echo": true, "temperature": 0, "max_tokens": 3,
      "n": 2, "stream": true, "stream_options": {"include_usage": true}})");
  const std::vector<Json> events = reply->events();
  EXPECT_TRUE(reply->begun());
  ASSERT_GE(events.size(), 3U);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json& last = events[events.size() - 2];
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], 6);
  std::string texts[2];
  std::vector<std::string> finishes;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    EXPECT_TRUE(events[i].contains("usage") && events[i]["usage"].is_null());
    EXPECT_EQ(events[i]["id"], last["id"]);
    const Json& choice = events[i]["choices"].at(0);
    texts[choice["index"].get<std::size_t>()] += choice["text"];
    if (!choice["finish_reason"].is_null()) finishes.push_back(choice["finish_reason"]);
  }
  EXPECT_EQ(texts[0], "ab" + written({256, 'a', 'b'}, 3));
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(finishes, (std::vector<std::string>{"length", "length"}));
}

// What the model read and wrote, the mark that ended it included; each token of a stream is an event.
TEST_F(ApiTest, TokenIds) {
  rules_.end_after = 6;
  const std::string body = R"({"prompt": "ab", "temperature": 0, "max_tokens": 9, "return_token_ids": true)";
  const std::string text = written({256, 'a', 'b'}, 3);
  const Json ids = {text[0], text[1], text[2], 257}, prompt = {256, 'a', 'b'};
  const Json whole = post("/v1/completions", body + R"(, "n": 2})")->json();
  for (const Json& choice : whole["choices"]) {
    EXPECT_EQ(choice["token_ids"], ids);
    EXPECT_EQ(choice["prompt_token_ids"], prompt);
  }
  Json streamed = Json::array();
  const std::vector<Json> events = post("/v1/completions", body + R"(, "stream": true})")->events();
  ASSERT_EQ(events.size(), 7U);  // the prompt's, four tokens, the end, [DONE]
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], prompt);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(events[i]["choices"][0].contains("prompt_token_ids"), i == 0);
    for (const Json& id : events[i]["choices"][0]["token_ids"]) streamed.push_back(id);
  }
  EXPECT_EQ(streamed, ids);
  EXPECT_FALSE(post("/v1/completions", R"({"prompt": "ab"})")->json()["choices"][0].contains("token_ids"));
}

// Of a chat the prompt belongs to all choices.
TEST_F(ApiTest, TokenIdsOfChats) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 2,
      "return_token_ids": true)";
  std::vector<std::int64_t> prompt = {256};
  for (const char c : std::string("User: hi\nAssistant:")) prompt.push_back(c);
  const std::string text = written(prompt, 2);
  const Json json = post("/v1/chat/completions", body + "}")->json();
  EXPECT_EQ(json["prompt_token_ids"], Json(prompt));
  EXPECT_EQ(json["choices"][0]["token_ids"], Json({text[0], text[1]}));
  const std::vector<Json> events = post("/v1/chat/completions", body + R"(, "stream": true})")->events();
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0]["prompt_token_ids"], Json(prompt));
  EXPECT_EQ(events[1]["choices"][0]["token_ids"], Json::array({text[0]}));
  EXPECT_EQ(events[2]["choices"][0]["token_ids"], Json::array({text[1]}));
  EXPECT_FALSE(events[1].contains("prompt_token_ids"));
}

TEST_F(ApiTest, StreamedLogprobsAreThoseOfTheWhole) {
  const std::string body =
      R"({"prompt": "ab", "echo": true, "logprobs": 2, "temperature": 0, "max_tokens": 4)";
  const Json whole = post("/v1/completions", body + "}")->json()["choices"][0]["logprobs"];
  Json streamed;
  for (const Json& event : post("/v1/completions", body + R"(, "stream": true})")->events()) {
    if (event == "[DONE]") continue;
    EXPECT_FALSE(event.contains("usage"));
    for (const auto& [name, list] : event["choices"].at(0)["logprobs"].items()) {
      for (const Json& value : list) streamed[name].push_back(value);
    }
  }
  EXPECT_EQ(streamed, whole);
}

TEST_F(ApiTest, ChatWholeAndStreamed) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4,
      "logprobs": true, "top_logprobs": 1)";
  const Json json = post("/v1/chat/completions", body + "}")->json();
  std::vector<std::int64_t> prompt = {256};
  for (const char c : std::string("User: hi\nAssistant:")) prompt.push_back(c);
  const std::string text = written(prompt, 4);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"]["content"], text);
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), 4U);
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["token"], text.substr(0, 1));

  const std::vector<Json> events = post("/v1/chat/completions", body + R"(, "stream": true})")->events();
  ASSERT_EQ(events.size(), 7U);  // role, four tokens, the end, [DONE]
  EXPECT_EQ(events[0]["choices"][0]["delta"], Json::parse(R"({"role": "assistant", "content": ""})"));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i + 1]["object"], "chat.completion.chunk");
    EXPECT_EQ(events[i + 1]["choices"][0]["delta"]["content"], text.substr(i, 1));
    EXPECT_EQ(events[i + 1]["choices"][0]["logprobs"]["content"].size(), 1U);
    EXPECT_TRUE(events[i + 1]["choices"][0]["finish_reason"].is_null());
  }
  EXPECT_EQ(events[5]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events[5]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events[6], "[DONE]");
}

TEST_F(ApiTest, SeedsRepeat) {
  const auto text = [&](const std::string& seed) {
    return post("/v1/completions",
                R"({"prompt": "ab", "temperature": 2, "max_tokens": 40, "n": 2)" + seed + "}")
        ->json()["choices"];
  };
  const Json first = text(R"(, "seed": 5)");
  EXPECT_EQ(first, text(R"(, "seed": 5)"));
  EXPECT_NE(first, text(R"(, "seed": 6)"));
  EXPECT_NE(first[0]["text"], first[1]["text"]);
}

TEST_F(ApiTest, AFailedPassIsAServerError) {
  compute_ = false;
  const auto reply = post("/v1/completions", R"({"prompt": "ab", "n": 3})");
  model_->fail_next = true;
  thread_ = std::thread([this] { scheduler_->run(); });
  const HttpResponse response = reply->response();
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(Json::parse(response.body)["error"]["type"], "server_error");
  EXPECT_EQ(post("/v1/completions", R"({"prompt": "ab"})")->response().status,
            200);  // and the server goes on
  // The two that waited for the first to read their prompt went with it; no client has left.
  EXPECT_EQ(scheduler_->metrics().failed, 3);
  EXPECT_EQ(scheduler_->metrics().cancelled, 0);
}

TEST_F(ApiTest, AFailureInAStreamIsAnEvent) {
  rules_.a_step = std::chrono::milliseconds(1);
  const auto reply =
      post("/v1/completions", R"({"prompt": "ab", "stream": true, "max_tokens": 3000, "ignore_eos": true})");
  reply->wait_for_writes(2);
  model_->fail_next = true;
  const std::vector<Json> events = reply->events();
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events[events.size() - 2]["error"]["type"], "server_error");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(reply->answers(), 1);
}

TEST_F(ApiTest, AClientThatHangsUpCancelsItsTexts) {
  rules_.a_step = std::chrono::milliseconds(1);
  const auto reply =
      post("/v1/completions",
           R"({"prompt": "ab", "n": 2, "stream": true, "max_tokens": 3000, "ignore_eos": true})");
  reply->wait_for_writes(3);
  reply->hang_up();
  while (scheduler_->metrics().cancelled < 2) std::this_thread::yield();  // hangs where they go on
  EXPECT_EQ(reply->answers(), 0);
}

TEST_F(ApiTest, AFullQueueSaysWhenToComeBack) {
  scheduling_.max_queue = 1;
  compute_ = false;
  const auto waiting = post("/v1/completions", R"({"prompt": "ab"})");
  EXPECT_EQ(waiting->answers(), 0);
  const HttpResponse response = post("/v1/completions", R"({"prompt": "ab"})")->response();
  EXPECT_EQ(response.status, 429);
  ASSERT_EQ(response.headers.size(), 1U);
  EXPECT_EQ(response.headers[0].first, "Retry-After");
  EXPECT_GE(std::stoi(response.headers[0].second), 1);
  EXPECT_EQ(Json::parse(response.body)["error"]["type"], "rate_limit_error");
}

// Trying again would not help: the field is named.
TEST_F(ApiTest, MoreTextsThanMayEverWaitAreRefusedByName) {
  scheduling_.max_queue = 3;
  const auto refused = [&](const char* path, const char* body, const char* param) {
    const auto reply = post(path, body);
    EXPECT_EQ(reply->response().status, 400) << body;
    EXPECT_EQ(reply->json()["error"]["param"], param) << body;
    return reply->json()["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(refused("/v1/completions", R"({"prompt": "ab", "n": 4})", "n"),
            "'n': expected an integer from 1 to 3, got 4");
  refused("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "n": 4})", "n");
  refused("/v1/completions", R"({"prompt": ["a", "b"], "n": 2})", "n");
  refused("/v1/completions", R"({"prompt": ["a", "b", "c", "d"]})", "prompt");
  EXPECT_EQ(post("/v1/completions", R"({"prompt": ["a", "b", "c"]})")->response().status, 200);
}

TEST_F(ApiTest, AServerThatStops) {
  EXPECT_EQ(get("/health")->response().status, 200);
  api().stopping();
  EXPECT_EQ(get("/health")->response().status, 503);
  stop();
  EXPECT_EQ(post("/v1/completions", R"({"prompt": "ab"})")->response().status, 503);
}

// So that a proxy or a supervisor learns of it. One that fails now and then is no reason.
TEST_F(ApiTest, AServerWhoseModelFailsIsNotHealthy) {
  const auto ask = [&] {
    return post("/v1/completions", R"({"prompt": "ab", "max_tokens": 1})")->response().status;
  };
  const auto health = [&] { return get("/health")->response().status; };
  EXPECT_EQ(ask(), 200);
  model_->fail_all = true;
  for (const int expected : {200, 200, 503, 503}) {
    EXPECT_EQ(ask(), 500);
    EXPECT_EQ(health(), expected);
  }
  model_->fail_all = false;
  EXPECT_EQ(ask(), 200);
  EXPECT_EQ(health(), 200);
  model_->lost = true;
  EXPECT_EQ(ask(), 500);
  EXPECT_EQ(health(), 503);
  EXPECT_NE(get("/health")->response().body.find("device has failed"), std::string::npos);
}

TEST_F(ApiTest, WhatTheEndCutsIsNoFault) {
  rules_.a_step = std::chrono::milliseconds(1);
  const auto reply = post("/v1/completions", R"({"prompt": "ab", "max_tokens": 3000, "ignore_eos": true})");
  const auto look = post("/gsa/look", R"({"tokens": [97, 98, 99], "position": 2})");
  api().stopping();
  stop();
  EXPECT_EQ(reply->response().status, 503);
  EXPECT_NE(look->response().status, 500);  // it may have been done before
}

TEST_F(ApiTest, ErrorsNameTheField) {
  const auto reply = post("/v1/completions", R"({"prompt": "ab", "top_p": 7})");
  EXPECT_EQ(reply->response().status, 400);
  EXPECT_EQ(reply->json(),
            Json::parse(R"({"error": {"message": "'top_p': expected a number above 0, up to 1, got 7",
      "type": "invalid_request_error", "param": "top_p", "code": "invalid_value"}})"));
  EXPECT_EQ(post("/v1/chat/completions", R"({"model": "gpt-4", "messages": []})")->response().status, 404);
}

TEST_F(ApiTest, RoutesAndMethods) {
  EXPECT_EQ(get("/v2/models")->response().status, 404);
  EXPECT_EQ(get("//v1/models/")->response().status, 200);
  EXPECT_EQ(get("/v1/models/tiny/")->response().status, get("/v1/models/tiny")->response().status);
  EXPECT_EQ(get("/v1/models//")->response().status, 404);
  const HttpResponse wrong = get("/v1/completions")->response();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers, (HttpHeaders{{"Allow", "POST, OPTIONS"}}));
  const HttpResponse head = call({.method = "HEAD",
                                  .path = "/health",
                                  .query = "",
                                  .authorization = "",
                                  .content_type = "",
                                  .origin = "",
                                  .body = ""})
                                ->response();
  EXPECT_EQ(head.status, 200);
  const HttpResponse options = call({.method = "OPTIONS",
                                     .path = "/v1/models",
                                     .query = "",
                                     .authorization = "",
                                     .content_type = "",
                                     .origin = "http://evil.example",
                                     .body = ""})
                                   ->response();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers, (HttpHeaders{{"Allow", "GET, HEAD, OPTIONS"}}));  // and nothing of CORS
}

TEST_F(ApiTest, PagesOfOthersCanPostNothing) {
  const auto status = [&](const std::string& type, const std::string& origin) {
    return call({.method = "POST",
                 .path = "/tokenize",
                 .query = "",
                 .authorization = "",
                 .content_type = type,
                 .origin = origin,
                 .body = R"({"prompt": "a"})"})
        ->response()
        .status;
  };
  options_.origins = {"https://proxy.example"};
  for (const char* own :
       {"http://127.0.0.1:8000", "http://LOCALHOST:8000", "http://[::1]:8000", "https://proxy.example"}) {
    EXPECT_EQ(status("Application/JSON; charset=utf-8", own), 200) << own;
    EXPECT_EQ(status("text/plain", own), 415) << own;
  }
  // A name that its owner can point at this machine.
  for (const char* other : {"http://evil.example:8000", "http://127.0.0.1.evil.example",
                            "https://proxy.example.evil", "http://", "http://:8000", "null"}) {
    EXPECT_EQ(status("application/json", other), 403) << other;
  }
  EXPECT_EQ(status("", ""), 200);
  EXPECT_EQ(status("application/x-www-form-urlencoded", ""), 200);  // curl -d
}

// A name that its owner can point at this machine is, to a browser, the origin of what is answered.
TEST_F(ApiTest, OtherNamesOfThisMachineAreRefused) {
  const auto status = [&](const std::string& host, const char* method = "GET") {
    HttpRequest request{.method = method,
                        .path = "/metrics",
                        .query = "",
                        .authorization = "",
                        .content_type = "",
                        .origin = "",
                        .body = ""};
    request.host = host;
    return call(request)->response().status;
  };
  EXPECT_EQ(status("evil.example:8000"), 200);  // where --host says so
  stop();
  api_.reset();
  scheduler_.reset();
  options_.check_host = true;
  options_.origins = {"https://Model.example"};
  for (const char* own : {"127.0.0.1:8000", "192.168.1.7", "localhost", "LOCALHOST:8000", "[::1]:8000",
                          "model.example", "model.example:443", ""})
    EXPECT_EQ(status(own), 200) << own;
  for (const char* other : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                            "model.example.evil", "localhost.evil", "[::1", ":8000"})
    EXPECT_EQ(status(other), 403) << other;
  EXPECT_EQ(status("evil.example", "OPTIONS"), 403);
}

TEST_F(ApiTest, Keys) {
  options_.api_keys = {"one", "another"};
  EXPECT_EQ(get("/v1/models", "Bearer one")->response().status, 200);
  EXPECT_EQ(get("/v1/models", "bearer another")->response().status, 200);
  for (const char* wrong :
       {"", "one", "Bearer", "Bearer ", "Bearer on", "Bearer oneone", "Bearer One", "Basic one"}) {
    const HttpResponse response = get("/v1/models", wrong)->response();
    EXPECT_EQ(response.status, 401) << wrong;
    EXPECT_EQ(Json::parse(response.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(response.headers, (HttpHeaders{{"WWW-Authenticate", "Bearer"}}));
  }
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/gsa/look"})
    EXPECT_EQ(post(path, "{}")->response().status, 401) << path;
  EXPECT_EQ(get("/v1/models/tiny")->response().status, 401);
  EXPECT_EQ(get("/health")->response().status, 200);
  EXPECT_EQ(get("/metrics")->response().status, 200);
}

TEST_F(ApiTest, Models) {
  const Json list = get("/v1/models")->json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], scheduler_->max_length());
  EXPECT_EQ(get("/v1/models/tiny")->json(), list["data"][0]);
  EXPECT_EQ(get("/v1/models/%74iny")->json(), list["data"][0]);
  const auto other = get("/v1/models/other%zz%");
  EXPECT_EQ(other->response().status, 404);
  EXPECT_NE(other->response().body.find("`other%zz%`"), std::string::npos);
}

TEST_F(ApiTest, TokenizeAndBack) {
  const Json json = post("/tokenize", R"({"prompt": "h\u00e9", "return_token_strs": true})")->json();
  EXPECT_EQ(json["tokens"], Json::array({256, 'h', 0xC3, 0xA9}));
  EXPECT_EQ(json["count"], 4);
  EXPECT_EQ(json["max_model_len"], scheduler_->max_length());
  EXPECT_EQ(json["token_strs"], Json::array({"", "h", "\xEF\xBF\xBD", "\xEF\xBF\xBD"}));
  EXPECT_EQ(post("/tokenize", R"({"prompt": "h", "add_special_tokens": false})")->json()["tokens"],
            Json::array({'h'}));
  const Json chat = post("/tokenize", R"({"messages": [{"role": "user", "content": "hi"}]})")->json();
  EXPECT_EQ(chat["count"], 20);
  EXPECT_EQ(post("/tokenize", R"({"messages": [], "prompt": "a"})")->response().status, 400);
  EXPECT_EQ(post("/detokenize", R"({"tokens": [256, 104, 195, 169]})")->json(),
            Json::parse(R"({"prompt": "h\u00e9"})"));
  EXPECT_EQ(post("/detokenize", R"({"tokens": [256, 104, 195, 169], "return_token_strs": true})")->json(),
            Json({{"prompt", "h\u00e9"}, {"token_strs", json["token_strs"]}}));
  EXPECT_EQ(post("/detokenize", R"({"tokens": []})")->json()["prompt"], "");
  EXPECT_EQ(post("/detokenize", R"({"tokens": [258]})")->json()["error"]["param"], "tokens[0]");
}

// No context bounds what is tokenised for its own sake.
TEST_F(ApiTest, TokenizedTextsAreBounded) {
  options_.max_tokenized = 5;
  const auto status = [&](const char* path, const std::string& body, const char* param) {
    const auto reply = post(path, body);
    const int got = reply->response().status;
    if (got != 200) {
      EXPECT_EQ(reply->json()["error"]["param"], param) << body;
    }
    return got;
  };
  EXPECT_EQ(status("/tokenize", R"({"prompt": "abcde"})", "prompt"), 200);
  EXPECT_EQ(status("/tokenize", R"({"prompt": "abcdef"})", "prompt"), 400);
  const auto messages = [](const char* last) {
    return concat(R"({"messages": [{"role": "user", "content": "abc"}, {"role": "user", "content": ")", last,
                  "\"}]}");
  };
  EXPECT_EQ(status("/tokenize", messages("de"), "messages"), 200);
  EXPECT_EQ(status("/tokenize", messages("def"), "messages"), 400);
  EXPECT_EQ(status("/detokenize", R"({"tokens": [256, 97, 98, 99, 100, 101, 257]})", "tokens"), 200);
  EXPECT_EQ(status("/detokenize", R"({"tokens": [97, 98, 99, 100, 101, 102]})", "tokens"), 400);
}

TEST_F(ApiTest, ThePageIsOpen) {
  options_.api_keys = {"one"};
  const HttpResponse response = get("/")->response();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.type, "text/html; charset=utf-8");
  EXPECT_NE(response.body.find("<html"), std::string::npos);
}

TEST_F(ApiTest, Look) {
  const Json json = post("/gsa/look", R"({"tokens": [97, 98, 99], "position": 2})")->json();
  EXPECT_EQ(json["position"], 2);
  EXPECT_EQ(json["sparse"], true);
  ASSERT_EQ(json["layers"].size(), 2U);
  EXPECT_EQ(json["layers"][0], Json::parse(R"({"k_t": 1, "positions": [0], "weights": [1], "kept_mass": 0.5,
      "value_gate": 0.5, "output_gate": 0.5})"));
  EXPECT_EQ(post("/gsa/look", R"({"tokens": [97], "position": 1})")->json()["error"]["param"], "position");
  EXPECT_EQ(post("/gsa/look", R"({"tokens": [97]})")->json()["error"]["param"], "position");
  EXPECT_EQ(post("/gsa/look", R"({"tokens": [], "position": 0})")->json()["error"]["param"], "tokens");
}

TEST_F(ApiTest, LooksBecomeJsonBesideTheComputeThread) {
  const auto reply = post("/gsa/look", R"({"tokens": [97, 98, 99], "position": 2})");
  EXPECT_EQ(reply->response().status, 200);
  EXPECT_NE(reply->sender(), thread_.get_id());
}

TEST_F(ApiTest, AClientThatHangsUpCancelsItsLook) {
  compute_ = false;
  const auto reply = post("/gsa/look", R"({"tokens": [97, 98, 99], "position": 2})");
  reply->hang_up();
  thread_ = std::thread([this] { scheduler_->run(); });
  EXPECT_EQ(post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})")->response().status, 200);
  EXPECT_EQ(model_->prefilled, 2);                // nothing of it was read
  EXPECT_EQ(scheduler_->metrics().cancelled, 0);  // a look is no text
  EXPECT_EQ(reply->answers(), 0);
}

TEST_F(ApiTest, MetricsCountWhatWasDone) {
  post("/v1/completions", R"({"prompt": "ab", "max_tokens": 3, "ignore_eos": true})")->json();
  const HttpResponse response = get("/metrics")->response();
  EXPECT_TRUE(response.type.starts_with("text/plain; version=0.0.4"));
  EXPECT_NE(response.body.find("\ngsa_generation_tokens_total{model_name=\"tiny\"} 3\n"), std::string::npos);
}

// What a request has waited for a thread, and for its tokens, is part of what its client waits.
TEST_F(ApiTest, LatenciesCountFromTheRequest) {
  HttpRequest request{.method = "POST",
                      .path = "/v1/completions",
                      .query = "",
                      .authorization = "",
                      .content_type = "",
                      .origin = "",
                      .body = R"({"prompt": "ab", "max_tokens": 1})"};
  request.received = std::chrono::steady_clock::now() - std::chrono::seconds(1000);
  EXPECT_EQ(call(request)->response().status, 200);
  const MetricsSnapshot metrics = scheduler_->metrics();
  EXPECT_GE(metrics.first_token_seconds.sum(), 1000);
  EXPECT_GE(metrics.request_seconds.sum(), 1000);
}

}  // namespace
}  // namespace gsa::serve
