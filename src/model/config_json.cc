#include "model/config_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "core/suggest.h"

namespace gsa::nn {
namespace {

// ---- The keys, each declared once: reader and writer visit the same list.

template <typename Config, typename Visitor>
void visit_llama_keys(Config& c, Visitor& v) {
  v.integer("vocab_size", c.vocab_size);
  v.integer("hidden_size", c.attention.d_model);
  v.integer("intermediate_size", c.intermediate);
  v.integer("num_hidden_layers", c.layers);
  v.integer("num_attention_heads", c.attention.heads);
  // Older files leave these two out; the reader has put the format's defaults in place.
  v.optional_integer("num_key_value_heads", c.attention.kv_heads);
  v.optional_integer("head_dim", c.attention.head_size);
  v.integer("max_position_embeddings", c.max_positions);
  v.real("rms_norm_eps", c.rms_eps);
  v.optional_real("initializer_range", c.attention.init_std);
  v.optional_boolean("tie_word_embeddings", c.tie_embeddings);
}

// The families of Hugging Face. Mistral without a window is a Llama by another name.
struct Family {
  const char* type;
  const char* architecture;
  bool qkv_bias, qk_norm, mistral;
  // Where a file leaves them out; 0: as many as heads, and heads that share hidden_size evenly.
  std::int64_t kv_heads, head_size;
};

constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", false, false, false, 0, 0},
                                {"mistral", "MistralForCausalLM", false, false, true, 8, 0},
                                {"qwen2", "Qwen2ForCausalLM", true, false, false, 32, 0},
                                {"qwen3", "Qwen3ForCausalLM", false, true, false, 32, 128}};

// By which transformers knows a model that is no family's (python/gated_sparse_attention), and the name of
// before.
constexpr const char* kOurType = "gated_sparse_attention";
constexpr const char* kOurArchitecture = "GatedSparseAttentionForCausalLM";
constexpr const char* kOurOldType = "gsa";

// Of a standard model; null: none has its parts, which only a file of ours can say.
const Family* family_of(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  const bool mistral = config.mistral && !a.qkv_bias && !a.qk_norm;
  const auto* const found = std::ranges::find_if(kFamilies, [&](const Family& family) {
    return family.qkv_bias == a.qkv_bias && family.qk_norm == a.qk_norm && family.mistral == mistral;
  });
  return found == std::end(kFamilies) ? nullptr : found;
}

template <typename Config, typename Visitor>
void visit_gsa_keys(Config& c, Visitor& v) {
  auto& a = c.attention;
  v.boolean("sparse_attention", a.sparse);
  v.name("value_gate", a.value_gate, gate_kind_by_name);
  v.name("output_gate", a.output_gate, gate_kind_by_name);
  v.optional_real("gate_init", a.gate_init);
  v.optional_real("gate_init_std", a.gate_init_std);
}

// Only where sparse_attention is true: elsewhere such a key would say nothing, and is refused.
template <typename Config, typename Visitor>
void visit_sparse_keys(Config& c, Visitor& v) {
  auto& a = c.attention;
  v.integer("index_n_heads", a.indexer.heads);
  v.integer("index_head_dim", a.indexer.head_size);
  v.integer("index_topk", a.budget.base);
  v.integer("index_topk_min", a.budget.min);
  v.integer("index_topk_max", a.budget.max);
  v.name("index_budget", a.budget.mode, budget_mode_by_name);
  v.name("index_score", a.indexer.form, score_form_by_name);
  v.optional_real("index_rope_fraction", a.indexer.rope_fraction);
  v.optional_real("index_temperature", a.indexer.temperature.value);
  v.optional_boolean("index_temperature_learned", a.indexer.temperature.learned);
  v.optional_real("index_variance_momentum", a.indexer.mean_variance_momentum);
  v.optional_integer("dense_below", a.dense_below);
}

// What index_rope_fraction and index_temperature mean where a file leaves them out: the defaults of the time
// before all dimensions were rotated and the loss had a temperature. Files of ours always have the keys.
constexpr double kAbsentRopeFraction = 0.5;
constexpr double kAbsentTemperature = 1;
// Likewise of gate_init, where the file has gates.
constexpr double kAbsentGateInit = 0.5;

template <typename Yarn, typename Visitor>
void visit_yarn_keys(Yarn& yarn, Visitor& v) {
  v.real("factor", yarn.factor);
  v.optional_integer("original_max_position_embeddings", yarn.original_length);
  v.optional_real("beta_fast", yarn.beta_fast);
  v.optional_real("beta_slow", yarn.beta_slow);
}

template <typename Llama3, typename Visitor>
void visit_llama3_keys(Llama3& llama3, Visitor& v) {
  v.real("factor", llama3.factor);
  v.real("low_freq_factor", llama3.low_freq_factor);
  v.real("high_freq_factor", llama3.high_freq_factor);
  v.optional_integer("original_max_position_embeddings", llama3.original_length);
}

// Keys that change nothing here: about generation, training elsewhere, or the program that wrote the file.
const std::set<std::string>& keys_without_meaning() {
  static const std::set<std::string> keys = {"_attn_implementation",
                                             "_attn_implementation_autoset",
                                             "_flash_attn_2_enabled",
                                             "_name_or_path",
                                             "architectures",
                                             "attention_dropout",
                                             "attn_implementation",
                                             "auto_map",
                                             "bad_words_ids",
                                             "begin_suppress_tokens",
                                             "chunk_size_feed_forward",
                                             "cross_attention_hidden_size",
                                             "decoder_start_token_id",
                                             "diversity_penalty",
                                             "do_sample",
                                             "early_stopping",
                                             "encoder_no_repeat_ngram_size",
                                             "exponential_decay_length_penalty",
                                             "finetuning_task",
                                             "forced_bos_token_id",
                                             "forced_eos_token_id",
                                             "gradient_checkpointing",
                                             "id2label",
                                             "is_decoder",
                                             "is_encoder_decoder",
                                             "is_llama_config",
                                             "label2id",
                                             "length_penalty",
                                             "max_length",
                                             "max_sequence_length",
                                             "min_length",
                                             "model_max_length",
                                             "no_repeat_ngram_size",
                                             "num_beam_groups",
                                             "num_beams",
                                             "num_return_sequences",
                                             "output_attentions",
                                             "output_hidden_states",
                                             "output_scores",
                                             "pad_token_id",
                                             "prefix",
                                             "pretraining_tp",
                                             "problem_type",
                                             "pruned_heads",
                                             "remove_invalid_values",
                                             "repetition_penalty",
                                             "return_dict",
                                             "return_dict_in_generate",
                                             "sep_token_id",
                                             "suppress_tokens",
                                             "task_specific_params",
                                             "temperature",
                                             "tf_legacy_loss",
                                             "tie_encoder_decoder",
                                             "tokenizer_class",
                                             "tokenizer_model_max_length",
                                             "tokenizer_padding_side",
                                             "top_k",
                                             "top_p",
                                             "torchscript",
                                             "transformers.js_config",
                                             "transformers_version",
                                             "typical_p",
                                             "unk_token_id",
                                             "unsloth_fixed",
                                             "unsloth_version",
                                             "use_bfloat16",
                                             "use_cache"};
  return keys;
}

// Keys with one value that we can honour.
const std::map<std::string, Json>& keys_of_one_value() {
  static const std::map<std::string, Json> keys = {
      {"hidden_act", "silu"},         {"attention_bias", false},   {"mlp_bias", false},
      {"add_cross_attention", false}, {"sliding_window", nullptr}, {"quantization_config", nullptr},
      {"rope_interleaved", false},    {"use_mrope", false}};
  return keys;
}

// ---- Writing

class Writer {
 public:
  explicit Writer(OrderedJson& json) : json_(json) {}

  void integer(const char* key, std::int64_t value) { json_[key] = value; }
  void real(const char* key, double value) { json_[key] = value; }
  void boolean(const char* key, bool value) { json_[key] = value; }
  template <typename Enum, typename Parse>
  void name(const char* key, Enum value, const Parse&) {
    json_[key] = name_of(value);
  }
  void optional_integer(const char* key, std::int64_t value) { integer(key, value); }
  void optional_real(const char* key, double value) { real(key, value); }
  void optional_boolean(const char* key, bool value) { boolean(key, value); }

 private:
  OrderedJson& json_;
};

// ---- Reading

class Reader {
 public:
  Reader(const Json& json, const std::string& file, std::string prefix = "")
      : json_(json), file_(file), prefix_(std::move(prefix)) {}

  void integer(const char* key, std::int64_t& value) {
    const Json& got = require(key);
    if (!fits_integer(got)) bad(key, "a whole number", got);
    value = got.get<std::int64_t>();
  }
  void real(const char* key, double& value) {
    const Json& got = require(key);
    if (!got.is_number() || !std::isfinite(got.get<double>())) bad(key, "a number", got);
    value = got.get<double>();
  }
  void boolean(const char* key, bool& value) {
    const Json& got = require(key);
    if (!got.is_boolean()) bad(key, "true or false", got);
    value = got.get<bool>();
  }
  template <typename Enum, typename Parse>
  void name(const char* key, Enum& value, const Parse& parse) {
    const Json& got = require(key);
    if (!got.is_string()) bad(key, "a name", got);
    try {
      value = parse(got.get_ref<const std::string&>());
    } catch (const Error& error) {
      throw Error(concat("file '", file_, "': key '", prefix_, key, "': ", error.what()));
    }
  }
  void optional_integer(const char* key, std::int64_t& value) {
    if (present(key)) integer(key, value);
  }
  void optional_real(const char* key, double& value) {
    if (present(key)) real(key, value);
  }
  void optional_boolean(const char* key, bool& value) {
    if (present(key)) boolean(key, value);
  }

  // Known, and null counts as absent, as other programs write what they do not set.
  bool present(const char* key) {
    known_.insert(key);
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }

  const Json& at(const char* key) { return require(key); }

  [[noreturn]] void bad(const std::string& key, const std::string& expected, const Json& got) const {
    bad_file(file_, concat("'", prefix_, key, "' to be ", expected), shown(got));
  }

  // After everything was read: every key that is left over must be harmless.
  void refuse_other_keys() const {
    for (const auto& [key, value] : json_.items()) {
      if (known_.contains(key) || (prefix_.empty() && keys_without_meaning().contains(key))) continue;
      const auto one = keys_of_one_value().find(key);
      if (prefix_.empty() && one != keys_of_one_value().end()) {
        if (value != one->second && !value.is_null()) bad(key, shown(one->second), value);
        continue;
      }
      const std::vector<std::string> names(known_.begin(), known_.end());
      bad_file(file_, "keys that are known here", with_suggestion(prefix_ + key, names));
    }
  }

  const std::string& file() const { return file_; }
  void allow(const char* key) { known_.insert(key); }

 private:
  static bool fits_integer(const Json& value) {
    return value.is_number_integer() && (!value.is_number_unsigned() ||
                                         value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  }

  const Json& require(const char* key) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found == json_.end()) bad_file(file_, concat("the key '", prefix_, key, "'"), "none");
    return *found;
  }

  const Json& json_;
  const std::string& file_;
  std::string prefix_;
  std::set<std::string> known_;
};

void read_yarn(Reader& reader, YarnConfig& yarn, std::int64_t max_positions) {
  yarn.original_length = max_positions;
  visit_yarn_keys(yarn, reader);
  const auto number = [&](const char* key) {
    double value = 0;
    reader.optional_real(key, value);
    return value;
  };
  const double mscale = number("mscale"), mscale_all_dim = number("mscale_all_dim");
  if (reader.present("attention_factor")) {
    yarn.attention_factor = number("attention_factor");
  } else if (mscale != 0 && mscale_all_dim != 0) {
    const double steps = 0.1 * std::log(std::max(yarn.factor, 1.0));
    yarn.attention_factor = (mscale * steps + 1) / (mscale_all_dim * steps + 1);
  }
  reader.optional_boolean("truncate", yarn.truncate);
}

// Two shapes are in use: rope_theta and rope_scaling side by side, or one object rope_parameters. What was
// the original length is, where it is not said, the longest that the model is meant for.
void read_rope(Reader& top, RopeConfig& rope, std::int64_t max_positions) {
  top.optional_real("rope_theta", rope.theta);
  const char* key = top.present("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (top.present("rope_parameters") && top.present("rope_scaling")) {
    bad_file(top.file(), "one of rope_parameters and rope_scaling", "both");
  }
  if (!top.present(key)) return;
  const Json& object = top.at(key);
  if (!object.is_object()) top.bad(key, "an object", object);
  Reader reader(object, top.file(), std::string(key) + ".");
  reader.optional_real("rope_theta", rope.theta);
  const char* type_key = reader.present("rope_type") || !reader.present("type") ? "rope_type" : "type";
  reader.allow("rope_type");
  reader.allow("type");  // the older name; where both stand, rope_type counts
  const Json type = reader.present(type_key) ? reader.at(type_key) : Json("default");
  if (type == "yarn") {
    read_yarn(reader, rope.yarn, max_positions);
  } else if (type == "linear") {
    reader.real("factor", rope.linear_factor);
  } else if (type == "llama3") {
    rope.llama3.original_length = max_positions;
    visit_llama3_keys(rope.llama3, reader);
  } else if (type != "default") {
    reader.bad(type_key, "\"default\", \"linear\", \"llama3\" or \"yarn\"", type);
  }
  reader.refuse_other_keys();
}

// Keys of Mistral and Qwen, whose attention may be blind beyond a window. One that no sequence reaches is
// none; any other is refused.
void refuse_window(Reader& reader, const Json& json, const ModelConfig& config, bool in_all_layers) {
  constexpr std::int64_t kAbsentWindow = 4096, kAbsentFirst = 28;  // as these families have it
  bool windowed = in_all_layers;
  if (!in_all_layers) {
    std::int64_t first = kAbsentFirst;
    reader.optional_boolean("use_sliding_window", windowed);
    reader.optional_integer("max_window_layers", first);
    windowed = windowed && first < config.layers;
    if (reader.present("layer_types")) {
      const Json& types = reader.at("layer_types");
      if (!types.is_array()) reader.bad("layer_types", "a list", types);
      windowed = std::ranges::any_of(types, [](const Json& type) { return type != "full_attention"; });
    }
  }
  std::int64_t window = kAbsentWindow;
  reader.optional_integer("sliding_window", window);
  if (!windowed || (json.contains("sliding_window") && json["sliding_window"].is_null())) return;
  if (window < config.max_positions) {
    bad_file(reader.file(),
             concat("no sliding window (sliding_window null, or at least the ", config.max_positions,
                    " of max_position_embeddings), as every token sees all before it here; with "
                    "max_position_embeddings ",
                    window, " in config.json the model is taken for texts that short"),
             concat("a window of ", window));
  }
}

std::vector<std::int64_t> read_ids(Reader& reader, const char* key) {
  if (!reader.present(key)) return {};
  const Json& value = reader.at(key);
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<std::int64_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) {
      reader.bad(key, "a token's number or a list of them", value);
    }
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

// -1 stands for "none" in some files.
void read_special_tokens(Reader& reader, ModelConfig& config) {
  const auto none = [&](const char* key) { return reader.present(key) && reader.at(key) == -1; };
  if (!none("bos_token_id")) {
    const auto ids = read_ids(reader, "bos_token_id");
    if (ids.size() > 1) reader.bad("bos_token_id", "one token", reader.at("bos_token_id"));
    if (!ids.empty()) config.bos_id = ids[0];
  }
  if (!none("eos_token_id")) config.eos_ids = read_ids(reader, "eos_token_id");
}

// Absent: every layer has an indexer. Which layers may stand there is validated with the rest.
void read_index_layers(Reader& reader, ModelConfig& config) {
  constexpr const char* kKey = "index_layers";
  if (!reader.present(kKey)) return;
  const Json& value = reader.at(kKey);
  const auto is_layer = [](const Json& layer) {
    return layer.is_number_unsigned() && layer.get<std::uint64_t>() <= INT32_MAX;
  };
  if (!value.is_array() || value.empty() || !std::ranges::all_of(value, is_layer)) {
    reader.bad(kKey, "a list of layers", value);
  }
  set_index_layers(config, value.get<std::vector<std::int64_t>>());
}

std::optional<DType> read_dtype(Reader& reader) {
  std::optional<DType> dtype;
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (!reader.present(key)) continue;
    const Json& value = reader.at(key);
    for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      if (value == name_of(type)) dtype = type;
    }
    if (!dtype) reader.bad(key, "float32, bfloat16, float16 or float64", value);
  }
  return dtype;
}

void write_rope(OrderedJson& json, const RopeConfig& rope) {
  json["rope_theta"] = rope.theta;
  OrderedJson scaling;
  Writer writer(scaling);
  if (rope.has_yarn()) {
    scaling["rope_type"] = "yarn";
    visit_yarn_keys(rope.yarn, writer);
    if (rope.yarn.attention_factor) scaling["attention_factor"] = *rope.yarn.attention_factor;
    if (!rope.yarn.truncate) scaling["truncate"] = false;
  } else if (rope.linear_factor != 1) {
    scaling["rope_type"] = "linear";
    scaling["factor"] = rope.linear_factor;
  } else if (rope.llama3.factor != 1) {
    scaling["rope_type"] = "llama3";
    visit_llama3_keys(rope.llama3, writer);
  } else {
    return;
  }
  json["rope_scaling"] = scaling;
}

}  // namespace

std::string config_to_json(const ConfigFile& file) {
  const ModelConfig& config = file.config;
  config.validate();
  const AttentionConfig& attention = config.attention;
  const Family* family = system_of(attention) == System::standard ? family_of(config) : nullptr;
  OrderedJson json;
  json["architectures"] = OrderedJson::array({family ? family->architecture : kOurArchitecture});
  json["model_type"] = family ? family->type : kOurType;
  if (file.dtype) json["torch_dtype"] = name_of(*file.dtype);
  Writer writer(json);
  visit_llama_keys(config, writer);
  json["hidden_act"] = "silu";
  if (!family || !family->qkv_bias) json["attention_bias"] = false;  // Qwen2 has no such key
  json["mlp_bias"] = false;
  if (family && family->mistral) json["sliding_window"] = nullptr;  // its default is one
  write_rope(json, config.attention.rope);
  json["bos_token_id"] = config.bos_id ? OrderedJson(*config.bos_id) : OrderedJson(nullptr);
  json["eos_token_id"] = config.eos_ids.empty()       ? OrderedJson(nullptr)
                         : config.eos_ids.size() == 1 ? OrderedJson(config.eos_ids[0])
                                                      : OrderedJson(config.eos_ids);
  if (!family) {
    // Only where there is something to say, so that files without them stay what they were.
    if (attention.qkv_bias) json["qkv_bias"] = true;
    if (attention.qk_norm) json["qk_norm"] = true;
    visit_gsa_keys(config, writer);
    if (config.attention.sparse) visit_sparse_keys(config, writer);
    if (config.indexers() < config.layers && config.attention.sparse)
      json["index_layers"] = config.index_layers;
  }
  return json.dump(2) + "\n";
}

ConfigFile config_from_json(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  if (!json.is_object()) bad_file(file, "an object", shown(json));
  Reader reader(json, file);
  const Json type = reader.present("model_type") ? reader.at("model_type") : Json();
  const bool ours = type == kOurType || type == kOurOldType;
  const auto* const family =
      std::ranges::find_if(kFamilies, [&](const Family& known) { return type == known.type; });
  if (!ours && family == std::end(kFamilies)) {
    std::string known;
    for (const Family& one : kFamilies) known += concat('"', one.type, "\", ");
    bad_file(file,
             concat("'model_type' to be an architecture that is known here: ", known, '"', kOurType,
                    "\" or \"", kOurOldType, '"'),
             type.is_null() ? "none" : shown(type));
  }

  ConfigFile result;
  ModelConfig& config = result.config;
  config.attention = AttentionConfig::standard();
  // What files may leave out; null is not that, but says what Llama's absence does. (Bad values are left for
  // the visit below to complain about.)
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_unsigned() ? found->get<std::int64_t>() : 0;
  };
  const auto absent = [&](const char* key, std::int64_t familys, std::int64_t llamas) {
    return familys > 0 && !json.contains(key) ? familys : llamas;
  };
  if (const std::int64_t heads = number("num_attention_heads"); heads > 0) {
    AttentionConfig& a = config.attention;
    a.kv_heads = absent("num_key_value_heads", ours ? 0 : family->kv_heads, heads);
    a.head_size = absent("head_dim", ours ? 0 : family->head_size, number("hidden_size") / heads);
  }
  visit_llama_keys(config, reader);
  read_rope(reader, config.attention.rope, config.max_positions);
  read_special_tokens(reader, config);
  result.dtype = read_dtype(reader);
  if (!ours) {
    config.attention.qkv_bias = family->qkv_bias;
    config.attention.qk_norm = family->qk_norm;
    config.mistral = family->mistral;
    if (type != "llama") refuse_window(reader, json, config, family->mistral);
  } else {
    reader.optional_boolean("qkv_bias", config.attention.qkv_bias);
    reader.optional_boolean("qk_norm", config.attention.qk_norm);
    config.attention.gate_init = kAbsentGateInit;
    visit_gsa_keys(config, reader);
    if (config.attention.sparse) {
      config.attention.indexer.rope_fraction = kAbsentRopeFraction;
      config.attention.indexer.temperature.value = kAbsentTemperature;
      visit_sparse_keys(config, reader);
      read_index_layers(reader, config);
    }
  }
  reader.refuse_other_keys();
  try {
    config.validate();
  } catch (const Error& error) {
    throw Error(concat("file '", file, "': ", error.what()));
  }
  return result;
}

}  // namespace gsa::nn
