// A client that misbehaves: sends traffic in pieces or in part, hangs up anywhere, and checks what comes back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "answer.h"
#include "traffic.h"

namespace gsa::serve_fuzz {

struct Counts {
  std::map<int, std::int64_t> statuses;
  std::int64_t requests = 0, levels[4] = {};
  std::int64_t cut = 0, hung_up = 0, stalled = 0, pieces = 0, pipelined = 0, again = 0;  // of connections
  std::int64_t probes = 0, probes_put_off = 0;

  void add(const Counts& other);
};

class Client {
 public:
  // stopping: whether the server has been told to end.
  Client(std::uint16_t port, const std::atomic<bool>& stopping) : port_(port), stopping_(stopping) {}
  ~Client() { close(); }

  // One connection's worth; false: the server is gone.
  bool play(const Traffic& traffic, Random& random);
  // One right request on a connection of its own. None: the server is gone.
  std::optional<Answer> ask(const std::string& bytes);

  Counts counts;

 private:
  bool connect(int receive_buffer = 0);
  void close(bool reset = false);
  bool send(std::string_view bytes);
  bool send_in_pieces(std::string_view bytes, Random& random);
  bool receive(int milliseconds);  // false: nothing came
  bool read_answers(const Traffic& traffic, bool pieces);
  void read_what_comes(const Traffic& traffic, Random& random);
  void count(const Answer& answer) { ++counts.statuses[answer.status]; }

  std::uint16_t port_;
  const std::atomic<bool>& stopping_;
  int socket_ = -1;
  bool closed_ = false;  // by the server
  std::string input_;
};

}  // namespace gsa::serve_fuzz
