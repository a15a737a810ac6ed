#include "data/stories.h"

#include <algorithm>
#include <cmath>

#include "gsa/error.h"

namespace gsa::data {
namespace {

constexpr const char* kHeroes[] = {"Ada", "Ben",  "Cleo", "Dan",  "Eve", "Finn", "Gus",  "Hana",
                                   "Ivo", "June", "Kai",  "Lena", "Max", "Nora", "Otto", "Pia"};
// No letter is so rare that a small tokenizer would leave it out: every word shall become a token.
constexpr Stories::Kind kKinds[] = {
    {"visited",
     {"Athens", "Berlin", "Cairo", "Delhi", "Dublin", "Lima", "Lisbon", "London", "Madrid", "Milan", "Oslo",
      "Paris", "Prague", "Seoul", "Tokyo", "Turin"}},
    {"fed",
     {"cats", "cows", "crows", "dogs", "ducks", "foxes", "frogs", "goats", "hares", "hens", "horses", "mice",
      "owls", "pigs", "sheep", "swans"}},
    {"ate",
     {"apples", "bread", "cake", "cheese", "cherries", "corn", "eggs", "figs", "honey", "lemons", "nuts",
      "peaches", "pears", "plums", "rice", "soup"}},
    {"drank",
     {"beer", "broth", "cider", "cocoa", "coffee", "cream", "brandy", "milk", "mint", "punch", "rum",
      "sherry", "tea", "tonic", "water", "wine"}},
    {"played",
     {"bingo", "bowls", "bridge", "cards", "checkers", "chess", "darts", "dice", "dominoes", "golf", "hockey",
      "marbles", "polo", "rugby", "snooker", "tennis"}},
    {"wore",
     {"aprons", "belts", "boots", "caps", "capes", "cloaks", "coats", "crowns", "gloves", "gowns", "hats",
      "masks", "rings", "scarves", "shirts", "shoes"}},
    {"sold",
     {"axes", "brushes", "chains", "combs", "hammers", "hooks", "keys", "knives", "ladders", "nails",
      "needles", "pens", "rakes", "ropes", "saws", "spades"}},
    {"planted",
     {"alders", "ashes", "beeches", "birches", "cedars", "elms", "firs", "palms", "larches", "limes",
      "maples", "oaks", "pines", "poplars", "willows", "yews"}},
    {"picked",
     {"asters", "clover", "daisies", "ferns", "irises", "ivy", "lilacs", "lilies", "moss", "orchids",
      "pansies", "peonies", "poppies", "roses", "tulips", "violets"}},
    {"found",
     {"amber", "bones", "books", "coins", "copper", "coral", "glass", "gold", "flint", "maps", "pearls",
      "rubies", "shells", "silver", "stones", "tin"}},
};
// In front of every story, so that every sentence follows a space and has as many tokens here as there.
constexpr const char* kOpening = "Story:";
constexpr const char* kTimes[] = {"Later ", "Today ", "Then ", "Soon ", ""};
constexpr const char* kAsides[] = {"It rained all day.",     "The night was long and cold.",
                                   "Nobody said a word.",    "The wind blew from the north.",
                                   "Then the sun came out.", "There was a song in the air."};
constexpr std::size_t kDeedsOfSentence = 3;  // at most
constexpr std::size_t kAsidesOfTen = 2;
// Kinds that come up often are remembered from near, those that come up seldom from afar.
constexpr std::size_t kWeights[] = {1, 1, 3, 9};

std::int64_t count_tokens(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return static_cast<std::int64_t>(ids.size());
}

}  // namespace

std::span<const Stories::Kind> Stories::kinds() { return kKinds; }

Stories::Cast Stories::cast() {
  Cast cast;
  cast.hero = one_of(kHeroes);
  for (const Kind& kind : kKinds) {
    cast.things.push_back(one_of(kind.things));
    cast.weights.push_back(kWeights[below(std::size(kWeights))]);
  }
  return cast;
}

std::size_t Stories::some_kind(const Cast& cast) {
  std::size_t sum = 0;
  for (const std::size_t weight : cast.weights) sum += weight;
  std::size_t left = below(sum), kind = 0;
  while (left >= cast.weights[kind]) left -= cast.weights[kind++];
  return kind;
}

std::string Stories::sentence(const Cast& cast) {
  if (below(10) < kAsidesOfTen) return one_of(kAsides);
  const std::size_t count = 1 + below(kDeedsOfSentence);
  std::vector<std::size_t> chosen;
  while (chosen.size() < count) {
    const std::size_t kind = some_kind(cast);
    if (std::find(chosen.begin(), chosen.end(), kind) == chosen.end()) chosen.push_back(kind);
  }
  std::string text = concat(one_of(kTimes), cast.hero);
  for (std::size_t i = 0; i < count; ++i) {
    const char* const joint = i == 0 ? "" : i + 1 == count ? " and" : ",";
    text += concat(joint, ' ', kKinds[chosen[i]].deed, ' ', cast.things[chosen[i]]);
  }
  return text + '.';
}

std::string Stories::story(int sentences) {
  const Cast who = cast();
  std::string text = kOpening;
  for (int i = 0; i < sentences; ++i) text += ' ' + sentence(who);
  return text;
}

std::string Stories::story(std::int64_t tokens, const Tokenizer& tokenizer) {
  const Cast who = cast();
  std::string text;
  std::int64_t used = 0;
  const auto add = [&](const std::string& next) {
    const std::int64_t size = count_tokens(tokenizer, next);
    if (used + size > tokens) return false;
    text += next;
    used += size;
    return true;
  };
  if (add(kOpening)) {
    while (add(' ' + sentence(who))) {
    }
  }
  return text + std::string(static_cast<std::size_t>(tokens - used), '\n');
}

Needle Stories::needle(double depth, std::int64_t tokens, const Tokenizer& tokenizer) {
  if (!(depth >= 0 && depth <= 1)) bad_argument("needle", "depth", "0 .. 1", concat(depth));
  Cast who = cast();
  const std::size_t kind = below(std::size(kKinds));
  who.weights[kind] = 0;  // the hay says nothing of it
  const std::string deed = concat(who.hero, ' ', kKinds[kind].deed);
  Needle result;
  result.answer = concat(' ', who.things[kind]);
  result.needle = concat(deed, result.answer, '.');
  result.question = concat("Soon ", deed);
  const auto size = [&](const std::string& text) { return count_tokens(tokenizer, text); };
  const std::int64_t room =
      tokens - size(kOpening) - size(' ' + result.needle) - size(' ' + result.question + result.answer);
  if (room < 0) bad_argument("needle", "tokens", "room for a needle and its question", concat(tokens));

  std::vector<std::string> hay;
  std::vector<std::int64_t> ends = {0};  // tokens up to the end of each sentence
  for (;;) {
    std::string next = ' ' + sentence(who);
    const std::int64_t end = ends.back() + size(next);
    if (end > room) break;
    hay.push_back(std::move(next));
    ends.push_back(end);
  }
  // Between the sentences where the wanted depth comes closest.
  const double wanted = depth * static_cast<double>(ends.back());
  const auto miss = [&](std::size_t i) { return std::abs(static_cast<double>(ends[i]) - wanted); };
  std::size_t place = 0;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (miss(i) < miss(place)) place = i;
  }
  hay.insert(hay.begin() + static_cast<std::ptrdiff_t>(place), ' ' + result.needle);
  result.prompt = kOpening;
  for (const std::string& part : hay) result.prompt += part;
  const std::size_t named = result.prompt.find(deed) + deed.size();
  result.prompt += ' ' + result.question;
  result.tokens = size(result.prompt);
  result.distance = result.tokens - size(result.prompt.substr(0, named));
  return result;
}

}  // namespace gsa::data
