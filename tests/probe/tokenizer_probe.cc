// Lets the Python tests use tokenizers: texts in, ids and texts out.
//
//   tokenizer_probe SOURCE    reads lines of hexadecimal bytes, each a text; writes for each a JSON object with
//                             its ids, what decode() makes of them, and the bytes_of() all of them ("text",
//                             "pieces", both hexadecimal), and the ids as a prompt
#include <iostream>
#include <string>

#include "core/json.h"
#include "data/tokenizer.h"
#include "gsa/error.h"

namespace {

std::string from_hexadecimal(const std::string& line) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string to_hexadecimal(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) gsa::bad_argument("tokenizer_probe", "SOURCE", "one", gsa::concat(argc - 1));
    const auto tokenizer = gsa::data::load_tokenizer(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::vector<std::int32_t> ids;
      tokenizer->encode(from_hexadecimal(line), ids);
      std::string pieces;
      for (const std::int32_t id : ids) pieces += tokenizer->bytes_of(id);
      const gsa::Json result{{"ids", ids},
                             {"text", to_hexadecimal(tokenizer->decode(ids))},
                             {"pieces", to_hexadecimal(pieces)},
                             {"prompt", prompt_ids(*tokenizer, from_hexadecimal(line))}};
      std::cout << result.dump() << '\n';
    }
    return 0;
  } catch (const gsa::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
