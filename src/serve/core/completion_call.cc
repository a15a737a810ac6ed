#include "serve/core/completion_call.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

#include "serve/core/completion_answer.h"

namespace gsa::serve {
namespace {

// Bytes of an answer, by estimate, above which it is not made on the thread that computes.
constexpr std::size_t kLong = 16 << 10;
constexpr std::size_t kNumber = 32;  // bytes of a log-probability in JSON, with its token
constexpr std::size_t kId = 7;       // of a token id
constexpr const char* kDone = "data: [DONE]\n\n";

struct Choice {
  explicit Choice(LogprobList list) : logprobs(std::move(list)) {}

  // Of a whole answer.
  std::string text;
  std::vector<infer::SampledToken> tokens;  // where log-probabilities are wanted
  // Where they are wanted: of a whole answer, or what has not been written of a stream.
  std::vector<std::int32_t> ids;
  // Of a stream: what has not been written.
  LogprobList logprobs;
  std::vector<std::function<void()>>
      early;  // came before the log-probabilities of the prompt, which go first

  std::optional<Finish> finish;
  TextUsage usage;
};

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(CallHost host, CompletionRequest request, std::shared_ptr<HttpReply> reply)
      : host_(std::move(host)),
        request_(std::move(request)),
        head_(new_head(request_.chat, host_.model)),
        beginning_(chunk_beginning(head_)),
        reply_(std::move(reply)),
        prompt_logprobs_(request_.prompts.size()),
        open_(request_.prompts.size() * static_cast<std::size_t>(request_.n)) {
    for (std::size_t i = 0; i < open_; ++i) choices_.emplace_back(logprob_list(i));
    by_worker_ = request_.stream && (request_.wants_logprobs() || estimated_bytes() > kLong);
  }

  void start();
  // Whether all that happens to its texts is told on the worker's thread, in order: a stream with log-probabilities,
  // whose JSON takes longer than a token's own, or with a long echo.
  bool by_worker() const { return by_worker_; }
  Worker& worker() const { return *host_.worker; }

  void prompt(std::size_t index, std::vector<infer::SampledToken> logprobs);
  void token(std::size_t index, const infer::SampledToken& token, const std::string& more);
  void finished(std::size_t index, Finish finish, const std::string& more, const TextUsage& usage);
  void failed(const std::string& message);

 private:
  std::size_t prompt_of(std::size_t index) const { return index / static_cast<std::size_t>(request_.n); }
  LogprobList logprob_list(std::size_t index) const {
    return {host_.tokenizer, request_.chat,
            infer::is_empty_text(host_.tokenizer, request_.prompts[prompt_of(index)])};
  }
  std::size_t estimated_bytes() const;
  void begin();
  std::string event(const OrderedJson& choice, const OrderedJson& prompt_ids = nullptr) const;
  std::string events_of(std::size_t index, const std::string& more, std::optional<Finish> finish);
  OrderedJson stream_logprobs(std::size_t index);
  OrderedJson with_ids(OrderedJson choice, std::vector<std::int32_t> ids) const;
  bool is_early(std::size_t index) const;
  TextUsage usage() const;
  void finish_answer();
  std::string whole_choice(std::size_t index) const;
  void send_answer() const;
  void cancel(bool failed = false);

  const CallHost host_;
  const CompletionRequest request_;
  const AnswerHead head_;
  const std::string beginning_;  // of a chunk
  const std::shared_ptr<HttpReply> reply_;
  bool by_worker_ = false;

  // Texts are written by one thread, but the one that submits begins the stream.
  std::mutex mutex_;
  std::vector<Choice> choices_;
  // By prompt; all of its samples have the same.
  std::vector<std::optional<std::vector<infer::SampledToken>>> prompt_logprobs_;
  std::size_t open_;  // choices that go on
  bool begun_ = false, ended_ = false;
  std::atomic<bool> gone_ = false;  // the client hung up: nobody wants the rest

  // Apart from the other, which is held while the reply is written to: the reply may call while it holds a lock of its
  // own.
  std::mutex cancel_mutex_;
  std::vector<TextId> ids_;
  bool cancelled_ = false, failed_ = false;
};

class Sink final : public TextSink {
 public:
  Sink(std::shared_ptr<Call> call, std::size_t index) : call_(std::move(call)), index_(index) {}

  void prompt(std::vector<infer::SampledToken> logprobs) override {
    tell([index = index_, logprobs = std::move(logprobs)](Call& call) mutable {
      call.prompt(index, std::move(logprobs));
    });
  }
  void token(const infer::SampledToken& token, const std::string& more) override {
    tell([index = index_, token, more](Call& call) { call.token(index, token, more); });
  }
  void finished(Finish finish, const std::string& more, const TextUsage& usage) override {
    tell([index = index_, finish, more, usage](Call& call) { call.finished(index, finish, more, usage); });
  }
  void failed(const std::string& message) override {
    tell([message](Call& call) { call.failed(message); });
  }

 private:
  template <typename Work>
  void tell(Work work) noexcept {
    const auto now_or_later = [&](Call& call) {
      if (!call.by_worker()) return work(call);
      call.worker().post([held = call_, work = std::move(work)]() mutable { guarded(*held, work); });
    };
    guarded(*call_, now_or_later);
  }

  // An answer that cannot be made (memory, say) must not take the thread along.
  template <typename Work>
  static void guarded(Call& call, Work& work) noexcept {
    try {
      try {
        work(call);
      } catch (const std::exception& error) {
        call.failed(error.what());
      }
    } catch (...) {  // the reply, let go of without an answer, closes the connection
    }
  }

  std::shared_ptr<Call> call_;
  std::size_t index_;
};

void Call::start() {
  reply_->on_gone([weak = weak_from_this()] {
    const auto call = weak.lock();
    if (!call) return;
    call->gone_ = true;
    call->cancel();
  });
  std::vector<std::shared_ptr<TextSink>> sinks;
  for (std::size_t i = 0; i < choices_.size(); ++i)
    sinks.push_back(std::make_shared<Sink>(shared_from_this(), i));
  std::vector<TextId> ids = host_.scheduler.submit(texts_of(request_), std::move(sinks));
  bool late = false;  // cancelled before there was anything to cancel
  {
    const std::lock_guard lock(cancel_mutex_);
    ids_ = std::move(ids);
    late = cancelled_;
  }
  if (late) cancel();
  const std::lock_guard lock(mutex_);
  if (request_.stream) begin();
}

void Call::cancel(bool failed) {
  std::vector<TextId> ids;
  {
    const std::lock_guard lock(cancel_mutex_);
    cancelled_ = true;
    failed = failed_ = failed_ || failed;
    ids.swap(ids_);
  }
  for (const TextId id : ids) host_.scheduler.cancel(id, failed);
}

// The head of a stream, and what is known before the first token. Whoever comes first does it.
void Call::begin() {
  if (std::exchange(begun_, true) || ended_) return;
  reply_->begin();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const auto& prompt = request_.prompts[prompt_of(i)];
    const bool echoes = request_.echo && !request_.wants_logprobs();
    if (request_.chat) {
      const OrderedJson first =
          delta_json(i, {{"role", "assistant"}, {"content", ""}}, nullptr, std::nullopt);
      reply_->write(event(first, request_.return_token_ids ? OrderedJson(prompt) : OrderedJson()));
    } else if (echoes || request_.return_token_ids) {
      const std::string text = echoes ? request_.echoed[prompt_of(i)] : "";
      OrderedJson first = with_ids(choice_json(false, i, text, stream_logprobs(i), std::nullopt), {});
      if (request_.return_token_ids) first["prompt_token_ids"] = prompt;
      reply_->write(event(first));
    }
  }
}

std::string Call::event(const OrderedJson& choice, const OrderedJson& prompt_ids) const {
  std::optional<OrderedJson> usage;
  if (request_.include_usage) usage = nullptr;
  return chunk_event(beginning_, choice, usage, prompt_ids);
}

OrderedJson Call::with_ids(OrderedJson choice, std::vector<std::int32_t> ids) const {
  if (request_.return_token_ids) choice["token_ids"] = std::move(ids);
  return choice;
}

OrderedJson Call::stream_logprobs(std::size_t index) {
  return request_.wants_logprobs() ? choices_[index].logprobs.take() : OrderedJson();
}

std::string Call::events_of(std::size_t index, const std::string& more, std::optional<Finish> finish) {
  std::vector<std::int32_t> ids = std::exchange(choices_[index].ids, {});
  if (!request_.chat) {
    return event(with_ids(choice_json(false, index, more, stream_logprobs(index), finish), std::move(ids)));
  }
  std::string events;
  if (!more.empty() || !choices_[index].logprobs.empty() || !ids.empty()) {
    events = event(with_ids(delta_json(index, {{"content", more}}, stream_logprobs(index), std::nullopt),
                            std::move(ids)));
  }
  if (finish) events += event(delta_json(index, OrderedJson::object(), nullptr, finish));
  return events;
}

// The prompt's log-probabilities come with its first sample; others may be faster, by the prefix cache.
bool Call::is_early(std::size_t index) const {
  return request_.stream && request_.text.prompt_logprobs && !prompt_logprobs_[prompt_of(index)];
}

void Call::prompt(std::size_t index, std::vector<infer::SampledToken> logprobs) {
  std::vector<std::function<void()>> early;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || gone_) return;
    const std::size_t prompt = prompt_of(index);
    const auto& known = prompt_logprobs_[prompt].emplace(std::move(logprobs));
    if (!request_.stream) return;
    begin();
    std::string events;  // at once: HttpOptions::max_unsent is about what comes behind
    const std::size_t n = static_cast<std::size_t>(request_.n);
    for (std::size_t i = prompt * n; i < (prompt + 1) * n; ++i) {
      choices_[i].logprobs.prompt(request_.prompts[prompt], known);
      events += events_of(i, request_.echoed[prompt], std::nullopt);
      for (auto& step : std::exchange(choices_[i].early, {})) early.push_back(std::move(step));
    }
    prompt_logprobs_[prompt].emplace();  // written; that it was there is still known
    reply_->write(std::move(events));
  }
  for (const auto& step : early) step();
}

void Call::token(std::size_t index, const infer::SampledToken& token, const std::string& more) {
  const std::lock_guard lock(mutex_);
  if (ended_ || gone_) return;
  Choice& choice = choices_[index];
  if (is_early(index)) {
    choice.early.emplace_back([this, index, token, more] { this->token(index, token, more); });
    return;
  }
  if (request_.return_token_ids) choice.ids.push_back(token.id);
  if (!request_.stream) {
    if (request_.wants_logprobs()) choice.tokens.push_back(token);
    choice.text += more;
    return;
  }
  if (request_.wants_logprobs()) choice.logprobs.token(token);
  begin();
  // With ids each token is an event: who asks for them wants to know of every one.
  if (!more.empty() || request_.return_token_ids) reply_->write(events_of(index, more, std::nullopt));
}

void Call::finished(std::size_t index, Finish finish, const std::string& more, const TextUsage& usage) {
  const std::lock_guard lock(mutex_);
  if (ended_ || gone_) return;
  Choice& choice = choices_[index];
  if (is_early(index)) {
    choice.early.emplace_back([=, this] { finished(index, finish, more, usage); });
    return;
  }
  choice.finish = finish;
  choice.usage = usage;
  if (request_.stream) {
    begin();
    reply_->write(events_of(index, more, finish));
  } else {
    choice.text += more;
  }
  if (--open_ == 0) finish_answer();
}

// A prompt counts once, however many texts go on from it; the others find it in the cache.
TextUsage Call::usage() const {
  TextUsage sum;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const TextUsage& usage = choices_[i].usage;
    sum.completion_tokens += usage.completion_tokens;
    if (i % static_cast<std::size_t>(request_.n) != 0) continue;
    sum.prompt_tokens += usage.prompt_tokens;
    sum.cached_tokens += usage.cached_tokens;
  }
  return sum;
}

void Call::finish_answer() {
  ended_ = true;
  if (request_.stream) {
    if (request_.include_usage) reply_->write(chunk_event(beginning_, std::nullopt, usage_json(usage())));
    reply_->write(kDone);
    reply_->end();
    return;
  }
  // After the end nobody else touches it.
  if (estimated_bytes() <= kLong) return send_answer();
  host_.worker->post([self = shared_from_this()] { self->send_answer(); });
}

// Of a whole answer; of a stream that begins, its echo and the ids of its prompts.
std::size_t Call::estimated_bytes() const {
  const auto numbers = static_cast<std::size_t>(request_.text.sampling.logprobs.value_or(0) + 1);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    bytes += choices_[i].text.size() + choices_[i].tokens.size() * numbers * kNumber;
    if (request_.return_token_ids)
      bytes += (request_.prompts[prompt_of(i)].size() + choices_[i].ids.size()) * kId;
    if (!request_.echo) continue;
    bytes += request_.echoed[prompt_of(i)].size();
    if (request_.wants_logprobs()) bytes += request_.prompts[prompt_of(i)].size() * numbers * kNumber;
  }
  return bytes;
}

std::string Call::whole_choice(std::size_t index) const {
  const Choice& choice = choices_[index];
  const std::size_t prompt = prompt_of(index);
  OrderedJson logprobs;
  if (request_.wants_logprobs()) {
    LogprobList list = logprob_list(index);
    if (prompt_logprobs_[prompt]) list.prompt(request_.prompts[prompt], *prompt_logprobs_[prompt]);
    for (const infer::SampledToken& token : choice.tokens) list.token(token);
    logprobs = list.take();
  }
  const std::string text = request_.echo ? request_.echoed[prompt] + choice.text : choice.text;
  OrderedJson json =
      with_ids(choice_json(request_.chat, index, text, std::move(logprobs), choice.finish), choice.ids);
  if (request_.return_token_ids && !request_.chat) json["prompt_token_ids"] = request_.prompts[prompt];
  return text_of(json);
}

void Call::send_answer() const {
  if (gone_) return;
  HttpResponse response;
  try {
    std::vector<std::string> choices;
    for (std::size_t i = 0; i < choices_.size(); ++i) choices.push_back(whole_choice(i));
    const bool ids = request_.return_token_ids && request_.chat;  // one prompt, of all choices
    response.body =
        answer_text(head_, choices, usage(), ids ? OrderedJson(request_.prompts[0]) : OrderedJson());
  } catch (const std::exception& error) {
    response.status = 500;
    response.body = text_of(error_json(500, error.what()));
  }
  reply_->send(std::move(response));
}

void Call::failed(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    const int status = *host_.stopping ? 503 : 500;  // cut by the end of the server, or by a fault
    const OrderedJson error = error_json(status, message);
    if (begun_) {  // the status is out: the client learns of it by an event, and the stream ends as others do
      reply_->write(event_of(error) + kDone);
      reply_->end();
    } else {
      HttpResponse response;
      response.status = status;
      response.body = text_of(error);
      reply_->send(std::move(response));
    }
  }
  cancel(/*failed=*/true);
}

}  // namespace

void answer_completion(const CallHost& host, CompletionRequest request, std::shared_ptr<HttpReply> reply) {
  std::make_shared<Call>(host, std::move(request), std::move(reply))->start();
}

}  // namespace gsa::serve
