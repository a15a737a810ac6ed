#include "infer/core/look_json.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/utf8.h"
#include "gsa/error.h"

namespace gsa::infer {
namespace {

// The double nearest to four digits of the number: it is written with these.
double four_digits(double value, std::size_t layer, const char* name) {
  if (!std::isfinite(value)) {
    bad_argument("look_json", concat("layers[", layer, "].", name).c_str(), "finite numbers", concat(value));
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::strtod(text.data(), nullptr);
}

}  // namespace

OrderedJson look_json(const Look& look) {
  OrderedJson layers = OrderedJson::array();
  for (std::size_t n = 0; n < look.layers.size(); ++n) {
    const LayerLook& layer = look.layers[n];
    OrderedJson weights = OrderedJson::array();
    for (const float weight : layer.weights) weights.push_back(four_digits(weight, n, "weights"));
    OrderedJson entry;
    entry["k_t"] = layer.k_t;
    entry["positions"] = layer.positions;
    entry["weights"] = std::move(weights);
    entry["kept_mass"] = four_digits(layer.kept_mass, n, "kept_mass");
    entry["value_gate"] = four_digits(layer.value_gate, n, "value_gate");
    entry["output_gate"] = four_digits(layer.output_gate, n, "output_gate");
    layers.push_back(std::move(entry));
  }
  OrderedJson json;
  json["position"] = look.position;
  json["sparse"] = look.sparse;
  json["layers"] = std::move(layers);
  return json;
}

std::string token_text(const data::Tokenizer& tokenizer, std::int32_t id) {
  const std::string bytes = tokenizer.bytes_of(id);
  std::string_view left = bytes;
  std::string text;
  while (!left.empty()) {
    const std::size_t whole = valid_utf8(left);
    text += left.substr(0, whole);
    left.remove_prefix(whole);
    if (left.empty()) break;
    std::array<char, 8> byte{};
    std::snprintf(byte.data(), byte.size(), "<0x%02X>", static_cast<unsigned char>(left.front()));
    text += byte.data();
    left.remove_prefix(1);
  }
  return text;
}

}  // namespace gsa::infer
