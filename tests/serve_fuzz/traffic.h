// What a client sends on a connection: requests as bytes, right ones and such with wrong HTTP.
#pragma once

#include <string>
#include <vector>

#include "random.h"

namespace gsa::serve_fuzz {

enum class Level { good, json, http, bytes };  // what was mutated

struct Traffic {
  Level level = Level::good;
  std::string bytes;
  // Whether each request that was meant is HEAD, to which answers have no body. Above Level::json nobody knows.
  std::vector<bool> heads;

  bool right_http() const { return level == Level::good || level == Level::json; }
};

Traffic make_traffic(Random& random);

}  // namespace gsa::serve_fuzz
