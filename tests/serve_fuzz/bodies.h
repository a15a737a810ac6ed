// Requests to every route of the server, right ones and such with wrong JSON.
#pragma once

#include <string>

#include "random.h"

namespace gsa::serve_fuzz {

constexpr const char* kModel = "rule";
constexpr const char* kKey = "key";

struct Call {
  std::string method = "POST";
  std::string path;
  std::string body;
};

// One that is answered with 200 where there is room.
Call good_call(Random& random);
// One with a body that was mutated as JSON: values, names, structure.
Call bad_json_call(Random& random);

}  // namespace gsa::serve_fuzz
