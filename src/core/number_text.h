// Numbers as text for people.
#pragma once

#include <cstdint>
#include <string>

namespace gsa {

std::string grouped(std::int64_t value);        // 131,072
std::string fixed(double value, int decimals);  // 3.65 with two decimals
std::string three_digits(double value);         // 365, 36.5, 3.65; 0.37: two decimals at most

}  // namespace gsa
