// How many tokens of prompts are read between two steps of running texts: learnt from what passes take. No torch.
//
// A token costs more the longer its context is, so there is a price for each range of contexts: the first 1,024
// tokens, the next 1,024, then ranges twice as long each time. A range without a price takes the nearest shorter one's,
// as if the cost grew with the context; before any pass has been timed, one has a page.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

namespace gsa::serve {

class Pace {
 public:
  // max_gap: between two tokens of a running text. Passes have max_chunk tokens at most.
  Pace(std::chrono::duration<double> max_gap, std::int64_t page_size, std::int64_t max_chunk);

  // What a pass may have.
  struct Room {
    double seconds = 0;
    std::int64_t tokens = 0;
  };
  // Where somebody writes, what is foreseen to fit into the gap, and a page in any case, of a text that has been read
  // up to first_context; else max_chunk tokens.
  Room room(bool somebody_writes, std::int64_t first_context) const;
  // Takes up to so many tokens behind a context out of the room; how many.
  std::int64_t take(Room& room, std::int64_t context, std::int64_t tokens) const;

  struct Part {
    std::int64_t context = 0, tokens = 0;
  };
  // A pass over these took so long. full: somebody would have had more tokens for it.
  void read(std::span<const Part> parts, bool full, double seconds);
  // So did a step of the running texts.
  void stepped(double seconds) { step_ = seconds; }

 private:
  double price(std::size_t range) const;
  double foreseen(const Part& part) const;  // seconds
  double allowed() const;                   // seconds of a pass beside a step

  const double gap_;
  const std::int64_t page_size_, max_chunk_;
  std::array<double, 48> prices_{};  // seconds a token, by range; 0: none yet
  double step_ = 0;
  std::int64_t longest_;  // that a pass may have: twice as long as what has been timed
};

}  // namespace gsa::serve
