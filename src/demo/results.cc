#include "demo/results.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/json.h"

namespace gsa::demo {
namespace {

double mean(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

OrderedJson json_of(const Curve& curve) { return {{"step", curve.step}, {"value", curve.value}}; }

OrderedJson json_of(const Settings& s) {
  return {{"seed", s.seed},
          {"threads", s.threads},
          {"processor", s.processor},
          {"vocabulary", s.vocabulary},
          {"train_tokens", s.train_tokens},
          {"validation_tokens", s.validation_tokens},
          {"length", s.length},
          {"batch_tokens", s.batch_tokens},
          {"steps", {{"dense", s.dense}, {"warmup", s.warmup}, {"sparse", s.sparse}}},
          {"learning_rate", s.learning_rate},
          {"layers", s.layers},
          {"d_model", s.d_model},
          {"heads", s.heads},
          {"kv_heads", s.kv_heads},
          {"k", {{"base", s.k_base}, {"min", s.k_min}, {"max", s.k_max}}},
          {"mean_visible_keys", s.mean_visible}};
}

OrderedJson json_of(const ModelResults& m) {
  OrderedJson json{{"system", m.system},
                   {"folder", m.folder},
                   {"parameters", m.parameters},
                   {"seconds", m.seconds},
                   {"tokens_per_second", m.tokens_per_second},
                   {"validation_loss", m.validation_loss},
                   {"perplexity", m.perplexity},
                   {"recall_mean", m.mean_recall()},
                   {"first_token_mean", m.first_token_mean},
                   {"first_token_even_share", m.even_share},
                   {"first_token", m.first_token},
                   {"largest_activation", m.largest_activation}};
  if (!m.value_gate.empty()) json["value_gate"] = m.value_gate;
  if (!m.output_gate.empty()) json["output_gate"] = m.output_gate;
  if (m.sparse()) {
    json["k_mean"] = m.k_mean;
    json["kept_mass"] = m.kept_mass;
    json["k_counts"] = m.k_counts;
  }
  json["recall"] = OrderedJson::array();
  for (const Depth& depth : m.recall) {
    OrderedJson entry{{"depth", depth.depth},
                      {"distance", depth.distance},
                      {"questions", depth.questions},
                      {"recall", depth.recall}};
    if (m.sparse()) entry["selected"] = depth.selected;
    json["recall"].push_back(entry);
  }
  json["replies"] = OrderedJson::array();
  for (const Reply& reply : m.replies) {
    json["replies"].push_back(
        {{"said", reply.said}, {"probability", reply.probability}, {"right", reply.right}});
  }
  json["samples"] = OrderedJson::array();
  for (const Sample& sample : m.samples)
    json["samples"].push_back({{"prompt", sample.prompt}, {"text", sample.text}});
  json["loss"] = json_of(m.loss);
  json["validation"] = json_of(m.validation);
  if (!m.kl.empty()) {
    json["kl"] = OrderedJson::array();
    for (const Curve& curve : m.kl) json["kl"].push_back(json_of(curve));
  }
  return json;
}

}  // namespace

double ModelResults::mean_k() const { return mean(k_mean); }
double ModelResults::mean_kept() const { return mean(kept_mass); }

double ModelResults::mean_recall() const { return recall_beyond(-1); }

double ModelResults::recall_beyond(double distance) const {
  double right = 0;
  std::int64_t questions = 0;
  for (const Depth& depth : recall) {
    if (depth.distance <= distance) continue;
    right += depth.recall * static_cast<double>(depth.questions);
    questions += depth.questions;
  }
  return questions > 0 ? right / static_cast<double>(questions) : std::numeric_limits<double>::quiet_NaN();
}

std::string Results::to_json() const {
  OrderedJson asked = OrderedJson::array();
  for (const AskedQuestion& question : questions) {
    asked.push_back({{"needle", question.needle},
                     {"question", question.question},
                     {"answer", question.answer},
                     {"distance", question.distance}});
  }
  const OrderedJson json{
      {"settings", json_of(settings)}, {"seconds", seconds}, {"chance", chance}, {"questions", asked},
      {"standard", json_of(standard)}, {"gsa", json_of(gsa)}};
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Curve thinned(const Curve& curve, std::size_t points) {
  const std::size_t size = curve.value.size();
  if (points == 0 || size <= points) return curve;
  Curve result;
  for (std::size_t i = 0; i < points; ++i) {
    const std::size_t begin = i * size / points, end = (i + 1) * size / points;
    const auto part = [&](const std::vector<double>& values) {
      return mean({values.begin() + static_cast<std::ptrdiff_t>(begin),
                   values.begin() + static_cast<std::ptrdiff_t>(end)});
    };
    result.step.push_back(part(curve.step));
    result.value.push_back(part(curve.value));
  }
  return result;
}

}  // namespace gsa::demo
