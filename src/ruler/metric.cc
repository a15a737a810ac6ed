#include "ruler/metric.h"

#include <charconv>
#include <cstdint>
#include <limits>

#include "gsa/error.h"

namespace gsa::ruler {
namespace {

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\v\f";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Of the common letters that two bytes of UTF-8 hold.
std::uint32_t lower_code(std::uint32_t code) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return first <= code && code <= last; };
  if ((within(0xC0, 0xDE) && code != 0xD7) || within(0x391, 0x3A9) || within(0x410, 0x42F)) return code + 32;
  if (within(0x400, 0x40F)) return code + 80;
  if (code == 0x178) return 0xFF;
  // Pairs, the capital first: at even codes, and at odd ones in two ranges.
  const bool odd = within(0x139, 0x148) || within(0x179, 0x17E);
  const bool even =
      within(0x100, 0x137) || within(0x14A, 0x177) || within(0x460, 0x481) || within(0x48A, 0x4BF);
  if ((odd && code % 2 == 1) || (even && code % 2 == 0 && code != 0x130)) return code + 1;
  return code;
}

}  // namespace

std::string cleaned(std::string_view prediction) {
  std::string text(stripped(prediction));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '\n';
  }
  return std::string(stripped(text));
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const auto byte = static_cast<unsigned char>(result[i]);
    if (byte >= 'A' && byte <= 'Z') result[i] = static_cast<char>(byte + 32);
    if (byte < 0xC3 || byte > 0xDF || i + 1 == result.size()) continue;
    const auto next = static_cast<unsigned char>(result[i + 1]);
    if ((next & 0xC0) != 0x80) continue;
    const std::uint32_t code = lower_code(std::uint32_t{byte & 0x1FU} << 6 | (next & 0x3FU));
    result[i] = static_cast<char>(0xC0 | code >> 6);
    result[++i] = static_cast<char>(0x80 | (code & 0x3F));
  }
  return result;
}

double score(Metric metric, std::string_view prediction, const std::vector<std::string>& answers) {
  if (answers.empty()) bad_argument("ruler", "answers", "at least one", "none");
  const std::string text = lower(cleaned(prediction));
  double found = 0;
  for (const std::string& answer : answers) {
    if (text.find(lower(answer)) != std::string::npos) found += 1;
  }
  if (metric == Metric::part) return found > 0 ? 1 : 0;
  return found / static_cast<double>(answers.size());
}

double percentage(const std::vector<double>& scores) {
  if (scores.empty()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const double one : scores) sum += one;
  // Python's round(score, 2): the decimals nearest to the very value, of two as near the even one.
  char text[16];
  const auto written = std::to_chars(text, text + sizeof text, sum / static_cast<double>(scores.size()) * 100,
                                     std::chars_format::fixed, 2);
  double rounded = 0;
  std::from_chars(text, written.ptr, rounded);
  return rounded;
}

}  // namespace gsa::ruler
