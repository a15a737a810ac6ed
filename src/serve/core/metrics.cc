#include "serve/core/metrics.h"

#include <algorithm>
#include <sstream>

namespace gsa::serve {
namespace {

std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text;
}

// Names are vLLM's with gsa_ before them: colons, which vLLM uses, Prometheus reserves for rules.
class Page {
 public:
  explicit Page(const std::string& model) : label_("model_name=\"" + escaped(model) + '"') {
    out_.precision(15);  // counters stay whole
  }

  void gauge(const char* name, const char* help, double value) { single(name, "gauge", help, value); }
  void counter(const char* name, const char* help, std::int64_t value) {
    single(name, "counter", help, value);
  }

  void head(const char* name, const char* type, const char* help) {
    out_ << "# HELP gsa_" << name << ' ' << help << "\n# TYPE gsa_" << name << ' ' << type << '\n';
  }
  template <typename Number>
  void sample(const std::string& name, const std::string& more, Number value) {
    out_ << "gsa_" << name << '{' << label_ << more << "} " << value << '\n';
  }

  void histogram(const std::string& name, const char* help, const Histogram& histogram) {
    head(name.c_str(), "histogram", help);
    std::int64_t below = 0;
    for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
      below += histogram.counts()[i];  // Prometheus' buckets hold all that is not above the bound
      std::ostringstream bound;
      if (i < histogram.bounds().size()) {
        bound << histogram.bounds()[i];
      } else {
        bound << "+Inf";
      }
      sample(name + "_bucket", ",le=\"" + bound.str() + '"', below);
    }
    sample(name + "_sum", "", histogram.sum());
    sample(name + "_count", "", histogram.count());
  }

  std::string text() const { return out_.str(); }

 private:
  template <typename Number>
  void single(const char* name, const char* type, const char* help, Number value) {
    head(name, type, help);
    sample(name, "", value);
  }

  std::string label_;
  std::ostringstream out_;
};

}  // namespace

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(at)];
  sum_ += value;
  ++count_;
}

std::string prometheus_text(const MetricsSnapshot& metrics, const std::string& model) {
  const MetricsSnapshot& m = metrics;
  Page page(model);
  page.gauge("num_requests_running", "Texts that are read or written.",
             static_cast<double>(m.reading + m.writing));
  page.gauge("num_requests_reading", "Texts whose prompt is being read.", static_cast<double>(m.reading));
  page.gauge("num_requests_waiting", "Texts that wait.", static_cast<double>(m.waiting));
  const double total = static_cast<double>(m.pages_total);
  page.gauge("kv_cache_usage", "Share of the cache's pages that running texts hold.",
             total > 0 ? static_cast<double>(m.pages_held) / total : 0);
  page.gauge("kv_cache_pages", "Pages of the cache.", total);
  page.gauge("kv_cache_pages_in_use", "Pages of running texts or the prefix cache.",
             static_cast<double>(m.pages_in_use));
  page.gauge("kv_cache_prefix_pages", "Pages that the prefix cache holds.",
             static_cast<double>(m.pages_cached));
  page.gauge("prompt_tokens_per_second", "Prompt tokens read, over the last ten seconds.",
             m.prompt_tokens_per_second);
  page.gauge("generation_tokens_per_second", "Tokens written, over the last ten seconds.",
             m.generated_tokens_per_second);

  page.counter("prompt_tokens_total", "Tokens of prompts that were taken up.", m.prompt_tokens);
  page.counter("prefill_tokens_total", "Tokens read in prefill, again after pre-emption included.",
               m.prefilled_tokens);
  page.counter("generation_tokens_total", "Tokens written.", m.generated_tokens);
  page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", m.prefix_hit_tokens);
  page.counter("prefix_cache_queries_total", "Prompt tokens looked up there.", m.prefix_query_tokens);
  page.counter("prefix_cache_evictions_total", "Pages that the prefix cache gave up.", m.evicted_pages);
  page.counter("num_preemptions_total", "Texts that gave up their pages and were read again.", m.preemptions);
  page.counter("decode_steps_total", "Steps in which running texts got a token each.", m.decode_steps);
  page.head("request_success_total", "counter", "Texts that ended, by how.");
  page.sample("request_success_total", ",finished_reason=\"stop\"", m.finished_stop);
  page.sample("request_success_total", ",finished_reason=\"length\"", m.finished_length);
  page.counter("requests_cancelled_total", "Texts whose client hung up.", m.cancelled);
  page.counter("requests_failed_total", "Texts that failed.", m.failed);
  page.counter("requests_refused_total", "Texts that the queue had no room for.", m.refused);

  page.histogram("time_to_first_token_seconds", "From a whole request to its first token.",
                 m.first_token_seconds);
  page.histogram("time_per_output_token_seconds", "From a token to the next.", m.token_seconds);
  page.histogram("e2e_request_latency_seconds", "From a whole request to its end.", m.request_seconds);
  page.histogram("decode_batch_size", "Texts in a decode step.", m.batch);
  return page.text();
}

}  // namespace gsa::serve
