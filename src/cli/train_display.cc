#include "cli/train_display.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <numeric>

#include "cli/progress.h"
#include "cli/text.h"
#include "nn/device.h"

namespace gsa::cli {
namespace {

using train::LayerStats;
using train::StepReport;

std::string number_text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Mean over the layers that have it.
template <typename Get>
std::optional<double> mean_of(const std::vector<LayerStats>& layers, const Get& get) {
  double sum = 0;
  int count = 0;
  for (const LayerStats& layer : layers) {
    if (const std::optional<double> value = get(layer)) {
      sum += *value;
      ++count;
    }
  }
  return count == 0 ? std::nullopt : std::optional<double>(sum / count);
}

std::optional<double> value_gate(const LayerStats& layer) { return layer.value_gate_mean; }
std::optional<double> output_gate(const LayerStats& layer) { return layer.output_gate_mean; }

double mean_of_layers(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double tflops(const StepReport& report) { return report.floating_point / report.seconds / 1e12; }

std::string layer_tag(const char* name, std::size_t layer) {
  char text[64];
  std::snprintf(text, sizeof text, "%s/layer_%02zu", name, layer);
  return text;
}

std::size_t terminal_width() {
  winsize size = {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

train::TrainEvents TrainDisplay::events() {
  train::TrainEvents events;
  events.step = [this](const StepReport& report) { step(report); };
  events.validation = [this](std::int64_t at, double loss) {
    line(concat("step ", at, "  validation loss ", number_text("%.4f", loss)));
    log_->add({{"kind", "validation"}, {"step", at}, {"loss", loss}});
    if (board_) board_->add(at, {{"validation/loss", loss}});
  };
  events.sample = [this](std::int64_t at, const std::string& text) {
    // Quoted as JSON: what a model writes may hold anything, control characters of terminals included.
    line(concat("step ", at, "  sample ",
                OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace)));
    log_->add({{"kind", "sample"}, {"step", at}, {"text", text}});
  };
  events.saved = [this](std::int64_t at, const std::filesystem::path& folder) {
    line(concat("step ", at, "  saved ", folder.string()));
  };
  events.note = [this](std::int64_t at, const std::string& text) {
    line(concat("step ", at, "  ", text));
    log_->add({{"kind", "note"}, {"step", at}, {"text", text}});
  };
  return events;
}

void TrainDisplay::open(train::Trainer& trainer) {
  terminal_ = is_terminal(STDOUT_FILENO);
  config_ = trainer.config();
  device_ = trainer.device();
  model_layers_ = trainer.model()->config().layers;
  const std::filesystem::path folder = config_.output.folder;
  log_.emplace(folder / "metrics.jsonl", trainer.step());
  // gsa train has shown these with the run's introduction.
  for (const std::string& note : trainer.notes()) {
    log_->add({{"kind", "note"}, {"step", trainer.step()}, {"text", note}});
  }
  if (config_.output.tensorboard) board_.emplace(folder / "tensorboard", trainer.step());
}

// Not by std::cout, which takes a signal that comes while a slow reader is waited for as a failure.
void TrainDisplay::show(const std::string& text) {
  for (std::size_t done = 0; done < text.size() && !unread_;) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      pollfd reader{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&reader, 1, -1);
    } else if (errno != EINTR) {
      unread_ = true;
      std::cerr << concat("note: standard output can no longer be written (", std::strerror(errno),
                          "); training goes on, and metrics.jsonl has every step\n");
    }
  }
}

void TrainDisplay::close() {
  if (live_) show("\r\033[K");
  live_ = false;
}

void TrainDisplay::line(const std::string& text) {
  close();
  show(text + "\n");
}

void TrainDisplay::step(const StepReport& report) {
  if (report.phase != phase_) layers_.clear();  // another phase, other numbers
  phase_ = report.phase;
  if (!report.layers.empty()) layers_ = report.layers;
  // The first step of a process pays for what later ones find ready.
  seconds_a_step_ = steps_seen_ < 2 ? report.seconds : 0.9 * seconds_a_step_ + 0.1 * report.seconds;
  ++steps_seen_;
  record(report);
  if (!report.spike.empty()) {
    line(concat("step ", report.step, "  spike: ", report.spike,
                report.skipped ? ", skipped" : ", not skipped", " (", report.spikes, " so far)"));
  }
  if (report.logged) {
    line(summary(report));
  } else if (terminal_) {
    // A summary has single-byte characters only, so that cutting is safe.
    show("\r\033[K" + summary(report).substr(0, terminal_width() - 1));
    live_ = true;
  }
}

std::string TrainDisplay::summary(const StepReport& report) const {
  std::string text = concat(nn::name_of(report.phase), " ", report.step, "/", config_.steps());
  const auto add = [&](const std::string& part) { text += "  " + part; };
  // First, because a narrow terminal cuts the line.
  add(duration(seconds_a_step_ * static_cast<double>(config_.steps() - report.step)) + " left");
  if (report.loss) add("loss " + number_text("%.4f", *report.loss));
  if (!report.kl.empty()) {
    const auto worst = std::max_element(report.kl.begin(), report.kl.end());
    add(concat("KL ", number_text("%.4f", mean_of_layers(report.kl)), " (worst ", number_text("%.4f", *worst),
               " in layer ", report.kl_layers[static_cast<std::size_t>(worst - report.kl.begin())], ")"));
  }
  if (!report.kept.empty()) {
    const auto worst = std::min_element(report.kept.begin(), report.kept.end());
    add(concat("kept ", number_text("%.3f", mean_of_layers(report.kept)), " (worst ",
               number_text("%.3f", *worst), " in layer ", worst - report.kept.begin(), ")"));
  }
  if (!report.kl.empty() && !layers_.empty()) {
    add("k " +
        number_text("%.1f", *mean_of(layers_, [](const LayerStats& s) { return std::optional(s.k_mean); })));
  }
  const auto g2 = mean_of(layers_, value_gate), g1 = mean_of(layers_, output_gate);
  if (g1) add("G1 " + number_text("%.3f", *g1));
  if (g2) add("G2 " + number_text("%.3f", *g2));
  if (report.loss) add("norm " + number_text("%.3f", report.model_norm));
  if (!report.kl.empty()) add("indexer " + number_text("%.3f", report.indexer_norm));
  add("lr " + number_text("%.2e", report.lr));
  add(scaled(static_cast<double>(report.tokens) / report.seconds, "tok/s"));
  add(number_text("%.3g TFLOPS", tflops(report)));
  if (config_.output.peak_tflops > 0)
    add("MFU " + number_text("%.3f", tflops(report) / config_.output.peak_tflops));
  add(scaled_bytes(static_cast<double>(nn::memory_in_use(device_))));
  return text;
}

void TrainDisplay::record(const StepReport& report) {
  OrderedJson json{{"kind", "step"}, {"step", report.step}, {"phase", nn::name_of(report.phase)}};
  train::Scalars scalars;
  const auto put = [&](const char* key, const std::string& tag, double value) {
    json[key] = value;
    scalars.emplace_back(tag, value);
  };
  if (report.loss) put("loss", "train/loss", *report.loss);
  if (!report.kl.empty()) {
    json["kl"] = report.kl;
    scalars.emplace_back("train/kl", mean_of_layers(report.kl));
    // Where some layers share a selection, which layer each number is of.
    if (std::ssize(report.kl) < model_layers_) json["kl_layers"] = report.kl_layers;
    for (std::size_t i = 0; i < report.kl.size(); ++i) {
      scalars.emplace_back(layer_tag("kl", static_cast<std::size_t>(report.kl_layers[i])), report.kl[i]);
    }
  }
  if (!report.kept.empty()) {
    json["kept_mass"] = report.kept;
    scalars.emplace_back("train/kept_mass", mean_of_layers(report.kept));
    for (std::size_t i = 0; i < report.kept.size(); ++i)
      scalars.emplace_back(layer_tag("kept_mass", i), report.kept[i]);
  }
  if (!report.layers.empty()) {
    OrderedJson layers = OrderedJson::array();
    for (std::size_t i = 0; i < report.layers.size(); ++i) {
      const LayerStats& layer = report.layers[i];
      OrderedJson entry;
      const auto put_layer = [&](const char* key, std::optional<double> value) {
        if (!value) return;
        entry[key] = *value;
        scalars.emplace_back(layer_tag(key, i), *value);
      };
      if (report.phase != nn::Phase::dense) {
        put_layer("k_mean", layer.k_mean);
        if (report.kept.empty()) {
          put_layer("kept_mass", layer.kept_mass);
        } else {
          entry["kept_mass"] = report.kept[i];  // of the whole step
        }
      }
      put_layer("value_gate", layer.value_gate_mean);
      put_layer("output_gate", layer.output_gate_mean);
      layers.push_back(entry);
    }
    json["layers"] = layers;
  }
  if (report.loss) put("gradient_norm", "train/gradient_norm", report.model_norm);
  if (!report.kl.empty()) put("indexer_gradient_norm", "train/indexer_gradient_norm", report.indexer_norm);
  put("lr", "train/lr", report.lr);
  put("epoch", "train/epoch", report.epoch);
  json["tokens"] = report.tokens;
  json["seconds"] = report.seconds;
  put("tokens_per_second", "speed/tokens_per_second", static_cast<double>(report.tokens) / report.seconds);
  put("tflops", "speed/tflops", tflops(report));
  if (config_.output.peak_tflops > 0) put("mfu", "speed/mfu", tflops(report) / config_.output.peak_tflops);
  put("memory_bytes", "speed/memory_bytes", static_cast<double>(nn::memory_in_use(device_)));
  put("spikes", "train/spikes", static_cast<double>(report.spikes));
  if (!report.spike.empty()) json["spike"] = report.spike;
  if (report.skipped) json["skipped"] = true;
  log_->add(json);
  if (board_) board_->add(report.step, scalars);
}

}  // namespace gsa::cli
