#include "client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace gsa::serve_fuzz {
namespace {

constexpr int kPatience = 60'000;  // milliseconds before a server that does nothing is a finding

void sleep_us(std::size_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

// Statuses of a request in which nothing is wrong: no room, a pass that failed.
// Several prompts times n may be more texts than the small queue of this server ever takes.
bool fits_good(const Answer& answer) {
  const bool too_many =
      answer.status == 400 && answer.body.find("at most 6 texts in all") != std::string::npos;
  return answer.status < 300 || answer.status == 429 || answer.status == 503 || answer.status == 500 ||
         too_many;
}

}  // namespace

void Counts::add(const Counts& other) {
  for (const auto& [status, n] : other.statuses) statuses[status] += n;
  for (std::size_t i = 0; i < std::size(levels); ++i) levels[i] += other.levels[i];
  requests += other.requests;
  cut += other.cut;
  hung_up += other.hung_up;
  stalled += other.stalled;
  pieces += other.pieces;
  pipelined += other.pipelined;
  again += other.again;
  probes += other.probes;
  probes_put_off += other.probes_put_off;
}

bool Client::connect(int receive_buffer) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) throw Error(concat("gsa_serve_fuzz: no socket: ", std::strerror(errno)));
  if (receive_buffer > 0)
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  const timeval limit = {.tv_sec = kPatience / 1000, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const int no_delay = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof(no_delay));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  closed_ = false;
  input_.clear();
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return true;
  const std::string why = std::strerror(errno);
  close();
  if (!stopping_) throw Finding(concat("connect: ", why));
  return false;
}

void Client::close(bool reset) {
  if (socket_ < 0) return;
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  if (reset) ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  ::close(std::exchange(socket_, -1));
}

// False: the other side takes no more, which answers may explain.
bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) throw Finding("the server reads nothing");
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// Where parsers wait for more: at ends of lines and shortly before the last byte, or anywhere.
bool Client::send_in_pieces(std::string_view bytes, Random& random) {
  std::vector<std::size_t> ends = {bytes.size()};
  for (std::size_t i = random.between(1, 5); i > 0; --i) {
    std::size_t end = random.below(bytes.size() + 1);
    const std::size_t kind = random.below(3);
    if (kind == 0) end = std::min(bytes.find("\r\n", end), bytes.size()) + random.below(5);
    if (kind == 1) end = bytes.size() - std::min(bytes.size(), random.between(1, 8));
    ends.push_back(std::min(end, bytes.size()));
  }
  if (random.one_in(3)) {  // the last ones one by one
    for (std::size_t i = 1; i <= std::min<std::size_t>(bytes.size(), 7); ++i)
      ends.push_back(bytes.size() - i);
  }
  std::sort(ends.begin(), ends.end());
  std::size_t at = 0;
  for (const std::size_t end : ends) {
    if (!send(bytes.substr(at, end - at))) return false;
    at = end;
    sleep_us(random.below(800));
  }
  return true;
}

bool Client::receive(int milliseconds) {
  pollfd descriptor = {.fd = socket_, .events = POLLIN, .revents = 0};
  if (closed_ || ::poll(&descriptor, 1, milliseconds) <= 0) return false;
  char buffer[32768];
  const ssize_t n = ::recv(socket_, buffer, sizeof(buffer), 0);
  if (n > 0) {
    input_.append(buffer, static_cast<std::size_t>(n));
  } else {
    closed_ = true;
  }
  return true;
}

// To right HTTP: an answer to each request, or until one says that it is the last. False: none came at all.
bool Client::read_answers(const Traffic& traffic, bool pieces) {
  bool any = false;
  for (std::size_t i = 0; i < traffic.heads.size();) {
    const Body body = traffic.heads[i] ? Body::absent : Body::present;
    const std::optional<Answer> answer = first_answer(input_, closed_, body);
    if (!answer) {
      if (closed_ && !any && input_.empty()) return false;
      if (closed_ && stopping_) return true;
      if (closed_) throw Finding(concat("answer ", i + 1, " is not whole: ", input_.substr(0, 400)));
      if (!receive(kPatience)) throw Finding(concat("no answer ", i + 1, " came; so far: ", input_));
      continue;
    }
    any = true;
    input_.erase(0, answer->size);
    check_answer(*answer, stopping_);
    count(*answer);
    if (answer->status == 100) continue;
    // On a busy machine pieces may come too late.
    const bool late = pieces && answer->status == 408;
    if (traffic.level == Level::good && !fits_good(*answer) && !late)
      throw Finding(concat("a request that is right got ", answer->status, ": ", answer->body));
    ++i;
    if (answer->closes) {
      close();
      return true;
    }
  }
  if (!input_.empty()) throw Finding(concat("more than was asked for: ", input_.substr(0, 400)));
  return true;
}

// To wrong HTTP: whatever comes must be answers.
void Client::read_what_comes(const Traffic& traffic, Random& random) {
  const bool until_closed = random.one_in(6);
  const auto patience = static_cast<int>(random.below(random.one_in(4) ? 60 : 8));
  while (receive(until_closed ? kPatience : patience)) {
  }
  if (until_closed && !closed_)
    throw Finding(concat("the server neither answers nor closes; so far: ", input_));
  const bool head = traffic.bytes.find("HEAD") != std::string::npos;
  while (!input_.empty()) {
    const std::optional<Answer> answer = first_answer(input_, closed_, head ? Body::unknown : Body::present);
    if (!answer) {
      if (closed_ && !stopping_ && !head)
        throw Finding(concat("an answer is not whole: ", input_.substr(0, 400)));
      break;
    }
    input_.erase(0, answer->size);
    check_answer(*answer, stopping_);
    count(*answer);
  }
}

bool Client::play(const Traffic& traffic, Random& random) {
  const bool stalls = random.one_in(150);
  if (stalls) close();
  const bool reused = socket_ >= 0;
  if (!reused && !connect(stalls ? 2048 : 0)) return false;
  counts.requests += static_cast<std::int64_t>(traffic.heads.size());
  counts.levels[static_cast<std::size_t>(traffic.level)] += static_cast<std::int64_t>(traffic.heads.size());
  counts.pipelined += traffic.heads.size() > 1;

  const std::size_t manner = random.below(20);
  if (manner < 2) {  // a part of it, and away
    ++counts.cut;
    send(std::string_view(traffic.bytes).substr(0, random.below(traffic.bytes.size() + 1)));
    if (random.one_in(2)) sleep_us(random.below(2000));
    close(random.one_in(2));
    return true;
  }
  const bool pieces = random.one_in(7);
  counts.pieces += pieces;
  const bool sent = pieces ? send_in_pieces(traffic.bytes, random) : send(traffic.bytes);
  if (stalls) {  // reads nothing
    ++counts.stalled;
    sleep_us(random.below(400'000));
    close(random.one_in(2));
    return true;
  }
  if (manner < 5) {  // before or within the answer
    ++counts.hung_up;
    if (random.one_in(4)) ::shutdown(socket_, SHUT_WR);
    for (std::size_t i = random.below(4); i > 0 && receive(static_cast<int>(random.below(5))); --i) {
    }
    close(random.one_in(2));
    return true;
  }
  if (!traffic.right_http()) {
    read_what_comes(traffic, random);
    close(random.one_in(4));
    return true;
  }
  if (!read_answers(traffic, pieces)) {
    close();
    if (stopping_) return false;
    // A connection that was idle may have been closed when the request came.
    if (!reused)
      throw Finding(concat("the server closed without an answer", sent ? "" : ", nor read it all"));
    ++counts.again;
    if (!connect()) return false;
    send(traffic.bytes);
    if (!read_answers(traffic, /*pieces=*/false) && !stopping_)
      throw Finding("the server closed without an answer");
  }
  if (random.one_in(4)) close();
  return true;
}

std::optional<Answer> Client::ask(const std::string& bytes) {
  close();
  if (!connect()) return std::nullopt;
  send(bytes);
  std::optional<Answer> answer;
  while (!(answer = first_answer(input_, closed_, Body::present))) {
    if (closed_ && stopping_) break;
    if (closed_) throw Finding(concat("a right request: the answer is not whole: ", input_));
    if (!receive(kPatience)) throw Finding(concat("a right request: no answer came: ", input_));
  }
  close();
  if (answer) check_answer(*answer, stopping_);
  return answer;
}

}  // namespace gsa::serve_fuzz
