// Numbers as text for people.
#pragma once

#include <cstdint>
#include <string>

namespace gsa {

std::string grouped(std::int64_t value);        // 131,072
std::string fixed(double value, int decimals);  // 3.65 with two decimals

}  // namespace gsa
