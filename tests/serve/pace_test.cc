#include "serve/core/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gsa::serve {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kPacePage = 64, kPaceChunk = 16384;

// What passes of a model take.
struct PaceCosts {
  double pass = 0.002, token = 1e-4, context = 1e-8, step = 0.01;  // seconds
  double of(std::int64_t begin, std::int64_t tokens) const {
    return pass + static_cast<double>(tokens) *
                      (token + context * (static_cast<double>(begin) + static_cast<double>(tokens) / 2));
  }
};

// The longest time between two tokens of a running text while a prompt is read behind so much context, and how many
// passes that took.
struct PaceReading {
  double longest = 0;
  std::int64_t passes = 0;
};
PaceReading reading_of(Pace& pace, const PaceCosts& costs, std::int64_t tokens, std::int64_t begin = 0) {
  PaceReading found;
  for (const std::int64_t end = begin + tokens; begin < end;) {
    Pace::Room room = pace.room(true, begin);
    const std::int64_t count = pace.take(room, begin, end - begin);
    if (count < std::min(kPacePage, end - begin)) ADD_FAILURE() << "less than a page at " << begin;
    const double took = costs.of(begin, count);
    const Pace::Part part{begin, count};
    pace.read({&part, 1}, begin + count < end, took);
    pace.stepped(costs.step);
    found.longest = std::max(found.longest, took + costs.step);
    ++found.passes;
    begin += count;
  }
  return found;
}

TEST(Pace, TheFirstPassIsAPage) {
  const Pace pace(200ms, kPacePage, kPaceChunk);
  Pace::Room room = pace.room(true, 0);
  EXPECT_EQ(pace.take(room, 0, 100'000), kPacePage);
  room = pace.room(false, 0);
  EXPECT_EQ(pace.take(room, 0, 100'000), kPaceChunk);
}

TEST(Pace, PassesStayWithinTheGapAndUseIt) {
  for (const PaceCosts& costs :
       {PaceCosts{.context = 0}, PaceCosts{.context = 1e-9}, PaceCosts{.context = 1e-8},
        PaceCosts{.pass = 0.01, .token = 1e-6, .context = 1e-10}}) {
    Pace pace(200ms, kPacePage, kPaceChunk);
    const PaceReading reading = reading_of(pace, costs, 100'000);
    EXPECT_LE(reading.longest, 0.2) << costs.token << " " << costs.context;
    // Half the gap, seen over all passes.
    const auto fewest = std::max(costs.of(0, 100'000) / 0.1, 100'000.0 / kPaceChunk);
    EXPECT_LE(static_cast<double>(reading.passes), fewest + 20) << costs.token << " " << costs.context;
  }
}

// A short prompt is cheap by the pass and dear by the token; a text far into its context is dear.
TEST(Pace, WhatOtherPromptsTookMisleadsNobody) {
  Pace pace(50ms, kPacePage, kPaceChunk);
  const PaceCosts costs{.context = 2e-9};
  for (std::int64_t i = 0; i < 100; ++i) reading_of(pace, costs, 5);
  const PaceReading reading = reading_of(pace, costs, 20'000);
  EXPECT_LE(reading.longest, 0.05);
  for (std::int64_t i = 0; i < 100; ++i) reading_of(pace, costs, 5);
  EXPECT_LE(reading_of(pace, costs, 20'000).passes, reading.passes);
  // A prefix that was found: nobody has been that far.
  EXPECT_LE(reading_of(pace, costs, 2000, 120'000).longest, 0.05);
  EXPECT_LE(reading_of(pace, costs, 20'000).longest, 0.05);
}

TEST(Pace, LongStepsLeaveLessForPrompts) {
  Pace pace(100ms, kPacePage, kPaceChunk);
  EXPECT_LE(reading_of(pace, {.step = 0.05}, 20'000).longest, 0.1);
  // No room at all: a page all the same.
  const PaceReading reading = reading_of(pace, {.step = 0.5}, 6400);
  EXPECT_GE(reading.passes, 98);
  EXPECT_LE(reading.passes, 102);
}

TEST(Pace, OneSlowPassIsForgotten) {
  Pace pace(100ms, kPacePage, kPaceChunk);
  const PaceCosts costs;
  const std::int64_t before = reading_of(pace, costs, 50'000).passes;
  const Pace::Part part{0, 500};
  pace.read({&part, 1}, true, 3.0);
  EXPECT_LE(reading_of(pace, costs, 50'000).passes, before + 8);
}

TEST(Pace, SharesOfAPassCostWhatTheirContextDoes) {
  Pace pace(100ms, kPacePage, kPaceChunk);
  const PaceCosts costs{.context = 1e-7};
  reading_of(pace, costs, 60'000);
  Pace::Room room = pace.room(true, 50'000);
  const Pace::Room whole = room;
  const std::int64_t near = pace.take(room, 0, 100);
  EXPECT_EQ(near, 100);
  const std::int64_t far = pace.take(room, 50'000, 100'000);
  Pace::Room alone = whole;
  EXPECT_LT(far, pace.take(alone, 50'000, 100'000));
  alone = whole;
  EXPECT_GT(pace.take(alone, 0, 100'000), 4 * far);
}

}  // namespace
}  // namespace gsa::serve
