#include "serve/core/metrics.h"

#include <gtest/gtest.h>

namespace gsa::serve {
namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, HistogramsCountByUpperBound) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 7.0}) histogram.observe(value);
  EXPECT_EQ(histogram.counts(), (std::vector<std::int64_t>{2, 2, 1}));  // a bound belongs to its bucket
  EXPECT_EQ(histogram.count(), 5);
  EXPECT_DOUBLE_EQ(histogram.sum(), 12);
}

TEST(Metrics, PrometheusReadsThem) {
  MetricsSnapshot metrics;
  metrics.waiting = 3;
  metrics.reading = 1;
  metrics.writing = 4;
  metrics.pages_total = 8;
  metrics.pages_held = 2;
  metrics.generated_tokens = 12345678901;
  metrics.finished_stop = 5;
  metrics.finished_length = 6;
  metrics.batch.observe(1);
  metrics.batch.observe(3);
  metrics.batch.observe(1000);
  const std::string text = prometheus_text(metrics, "a\"b\\c\nd");
  const std::string label = R"({model_name="a\"b\\c\nd")";
  EXPECT_TRUE(has_line(text, "# TYPE gsa_num_requests_running gauge"));
  EXPECT_TRUE(has_line(text, "gsa_num_requests_running" + label + "} 5"));
  EXPECT_TRUE(has_line(text, "gsa_num_requests_waiting" + label + "} 3"));
  EXPECT_TRUE(has_line(text, "gsa_kv_cache_usage" + label + "} 0.25"));
  EXPECT_TRUE(has_line(text, "# TYPE gsa_generation_tokens_total counter"));
  EXPECT_TRUE(has_line(text, "gsa_generation_tokens_total" + label + "} 12345678901"));
  EXPECT_TRUE(has_line(text, "gsa_request_success_total" + label + R"(,finished_reason="stop"} 5)"));
  EXPECT_TRUE(has_line(text, "gsa_request_success_total" + label + R"(,finished_reason="length"} 6)"));
  // Buckets are cumulative and the last one has all.
  EXPECT_TRUE(has_line(text, "gsa_decode_batch_size_bucket" + label + R"(,le="1"} 1)"));
  EXPECT_TRUE(has_line(text, "gsa_decode_batch_size_bucket" + label + R"(,le="4"} 2)"));
  EXPECT_TRUE(has_line(text, "gsa_decode_batch_size_bucket" + label + R"(,le="+Inf"} 3)"));
  EXPECT_TRUE(has_line(text, "gsa_decode_batch_size_sum" + label + "} 1004"));
  EXPECT_TRUE(has_line(text, "gsa_decode_batch_size_count" + label + "} 3"));
}

TEST(Metrics, NoPagesAreNoUsage) {
  EXPECT_TRUE(has_line(prometheus_text({}, "m"), R"(gsa_kv_cache_usage{model_name="m"} 0)"));
}

}  // namespace
}  // namespace gsa::serve
