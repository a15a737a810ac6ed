"""config.json of a model folder: keys of Llama, Mistral, Qwen and ours (docs/model.md), read as strictly as the program
reads them."""

import json
import math
from pathlib import Path
from typing import Any

from ._errors import bad_file, origin
from .config import BUDGETS, FORMS, GATES, ModelConfig, YarnConfig
from .json_file import read_json, shown_json

MODEL_TYPE = "gated_sparse_attention"
OLD_MODEL_TYPE = "gsa"  # which is still read
_ARCHITECTURE = "GatedSparseAttentionForCausalLM"
# Families of Hugging Face: architecture, qkv_bias, qk_norm. Mistral without a window is a Llama by another name.
_FAMILIES = {
    "llama": ("LlamaForCausalLM", False, False),
    "mistral": ("MistralForCausalLM", False, False),
    "qwen2": ("Qwen2ForCausalLM", True, False),
    "qwen3": ("Qwen3ForCausalLM", False, True),
}
# What a family's file means where it leaves these out; elsewhere as many as heads, and hidden_size shared evenly.
_ABSENT = {
    "mistral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}
_TYPES = (*_FAMILIES, MODEL_TYPE, OLD_MODEL_TYPE)

# key -> field of ModelConfig, its kind, and whether a file may leave it out.
_LLAMA = {
    "vocab_size": ("vocab_size", int, False),
    "hidden_size": ("attention.d_model", int, False),
    "intermediate_size": ("intermediate", int, False),
    "num_hidden_layers": ("layers", int, False),
    "num_attention_heads": ("attention.heads", int, False),
    "num_key_value_heads": ("attention.kv_heads", int, True),
    "head_dim": ("attention.head_size", int, True),
    "max_position_embeddings": ("max_positions", int, False),
    "rms_norm_eps": ("rms_eps", float, False),
    "initializer_range": ("attention.init_std", float, True),
    "tie_word_embeddings": ("tie_embeddings", bool, True),
}
_PARTS = {
    "qkv_bias": ("attention.qkv_bias", bool, True),
    "qk_norm": ("attention.qk_norm", bool, True),
}
_OURS = {
    "sparse_attention": ("attention.sparse", bool, False),
    "value_gate": ("attention.value_gate", GATES, False),
    "output_gate": ("attention.output_gate", GATES, False),
    "gate_init": ("attention.gate_init", float, True),
    "gate_init_std": ("attention.gate_init_std", float, True),
}
# Only where sparse_attention is true: elsewhere such a key would say nothing, and is refused.
_SPARSE = {
    "index_n_heads": ("attention.indexer.heads", int, False),
    "index_head_dim": ("attention.indexer.head_size", int, False),
    "index_topk": ("attention.budget.base", int, False),
    "index_topk_min": ("attention.budget.min", int, False),
    "index_topk_max": ("attention.budget.max", int, False),
    "index_budget": ("attention.budget.mode", BUDGETS, False),
    "index_score": ("attention.indexer.form", FORMS, False),
    "index_rope_fraction": ("attention.indexer.rope_fraction", float, True),
    "index_temperature": ("attention.indexer.temperature.value", float, True),
    "index_temperature_learned": ("attention.indexer.temperature.learned", bool, True),
    "index_variance_momentum": ("attention.indexer.mean_variance_momentum", float, True),
    "dense_below": ("attention.dense_below", int, True),
}
_YARN = {
    "factor": ("factor", float, False),
    "original_max_position_embeddings": ("original_length", int, True),
    "beta_fast": ("beta_fast", float, True),
    "beta_slow": ("beta_slow", float, True),
    "attention_factor": ("attention_factor", float, True),
}
_LLAMA3 = {
    "factor": ("factor", float, False),
    "low_freq_factor": ("low_freq_factor", float, False),
    "high_freq_factor": ("high_freq_factor", float, False),
    "original_max_position_embeddings": ("original_length", int, True),
}
_LINEAR = {"factor": ("linear_factor", float, False)}
_ONE_VALUE = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "add_cross_attention": False,
              "sliding_window": None, "quantization_config": None, "rope_interleaved": False,
              "use_mrope": False}  # fmt: skip
# About generation, training elsewhere, or the program that wrote the file; as in src/model/config_json.cc.
_WITHOUT_MEANING = set("""_attn_implementation _attn_implementation_autoset _flash_attn_2_enabled _name_or_path
architectures attention_dropout attn_implementation auto_map bad_words_ids begin_suppress_tokens
chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample
early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id gradient_checkpointing id2label is_decoder is_encoder_decoder is_llama_config label2id
length_penalty max_length max_sequence_length min_length model_max_length no_repeat_ngram_size num_beam_groups
num_beams num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix
pretraining_tp problem_type pruned_heads remove_invalid_values repetition_penalty return_dict
return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
tie_encoder_decoder tokenizer_class tokenizer_model_max_length tokenizer_padding_side top_k top_p torchscript
transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16
use_cache""".split())
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def _place(config: Any, path: str) -> tuple[Any, str]:
    *parents, name = path.split(".")
    for parent in parents:
        config = getattr(config, parent)
    return config, name


def _checked(value: Any, kind: Any, key: str, file: Any) -> Any:
    if isinstance(kind, tuple):
        if value not in kind:
            bad_file(file, f"'{key}' to be {', '.join(kind[:-1])} or {kind[-1]}", json.dumps(value))
    elif kind is bool:
        if not isinstance(value, bool):
            bad_file(file, f"'{key}' to be true or false", json.dumps(value))
    elif isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        bad_file(file, f"'{key}' to be {'a whole number' if kind is int else 'a number'}", json.dumps(value))
    elif not math.isfinite(value):
        bad_file(file, f"'{key}' to be a finite number", value)
    return float(value) if kind is float else value


def _read(keys: dict, values: dict, config: Any, file: Any, prefix: str = "") -> None:
    """Takes keys out of values and puts what they say into config. null counts as absent."""
    for key, (path, kind, optional) in keys.items():
        value = values.pop(key, None)
        if value is None:
            if not optional:
                bad_file(file, f"the key '{prefix}{key}'", "none")
            continue
        setattr(*_place(config, path), _checked(value, kind, prefix + key, file))


def _read_yarn(scaling: dict, yarn: YarnConfig, file: Any, prefix: str) -> None:
    _read(_YARN, scaling, yarn, file, prefix)
    scales = [_checked(scaling.pop(key, None) or 0.0, float, prefix + key, file) for key in ("mscale", "mscale_all_dim")]
    if yarn.attention_factor is None and all(scales):
        steps = 0.1 * math.log(max(yarn.factor, 1.0))
        yarn.attention_factor = (scales[0] * steps + 1) / (scales[1] * steps + 1)
    truncate = scaling.pop("truncate", None)
    if truncate is not None:
        yarn.truncate = _checked(truncate, bool, prefix + "truncate", file)


def _refuse_window(values: dict, config: ModelConfig, in_all_layers: bool, file: Any) -> None:
    """Takes out the keys of Mistral and Qwen, whose attention may be blind beyond a window. One that no sequence
    reaches is none; any other is refused."""
    windowed, window = in_all_layers, values.pop("sliding_window", 4096)
    if not in_all_layers:
        first = values.pop("max_window_layers", None)
        windowed = bool(values.pop("use_sliding_window", None)) and (28 if first is None else first) < config.layers
        types = values.pop("layer_types", None)
        if types is not None:
            windowed = any(kind != "full_attention" for kind in types)
    if windowed and window is not None and _checked(window, int, "sliding_window", file) < config.max_positions:
        bad_file(file, f"no sliding window (sliding_window null, or at least the {config.max_positions} of "
                 "max_position_embeddings), as every token sees all before it here; with max_position_embeddings "
                 f"{window} in config.json the model is taken for texts that short", f"a window of {window}")  # fmt: skip


def _read_rope(values: dict, config: ModelConfig, file: Any) -> None:
    rope = config.attention.rope
    theta = values.pop("rope_theta", None)
    if theta is not None:
        rope.theta = _checked(theta, float, "rope_theta", file)
    found = {key: values.pop(key) for key in ("rope_parameters", "rope_scaling") if values.get(key) is not None}
    values.pop("rope_parameters", None), values.pop("rope_scaling", None)
    if len(found) > 1:
        bad_file(file, "one of rope_parameters and rope_scaling", "both")
    for name, scaling in found.items():
        if not isinstance(scaling, dict):
            bad_file(file, f"'{name}' to be an object", json.dumps(scaling))
        scaling = dict(scaling)
        if scaling.get("rope_theta") is not None:
            rope.theta = _checked(scaling["rope_theta"], float, f"{name}.rope_theta", file)
        scaling.pop("rope_theta", None)
        old = scaling.pop("type", None)
        kind = scaling.pop("rope_type", None) or old or "default"
        # Where the original length is not said, it is the longest that the model is meant for.
        if kind == "yarn":
            rope.yarn.original_length = config.max_positions
            _read_yarn(scaling, rope.yarn, file, name + ".")
        elif kind == "linear":
            _read(_LINEAR, scaling, rope, file, name + ".")
        elif kind == "llama3":
            rope.llama3.original_length = config.max_positions
            _read(_LLAMA3, scaling, rope.llama3, file, name + ".")
        elif kind != "default":
            bad_file(file, f"'{name}.rope_type' to be \"default\", \"linear\", \"llama3\" or \"yarn\"", json.dumps(kind))
        if scaling:
            bad_file(file, "keys that are known here", f"'{name}.{next(iter(scaling))}'")


def _read_tokens(values: dict, key: str, file: Any) -> list[int]:
    value = values.pop(key, None)
    if value is None or value == -1:  # -1 stands for "none" in some files
        return []
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 2**31 for i in ids):
        bad_file(file, f"'{key}' to be a token's number or a list of them", json.dumps(value))
    return ids


def _read_index_layers(values: dict, config: ModelConfig, file: Any) -> None:
    """Absent: every layer has an indexer. Which layers may stand there is validated with the rest."""
    value = values.pop("index_layers", None)
    if value is None:
        return
    whole = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not whole or not value or min(value) < 0:
        bad_file(file, "'index_layers' to be a list of layers", json.dumps(value))
    config.set_index_layers(value)


def config_from_dict(values: dict[str, Any], file: Any = "config.json") -> ModelConfig:
    """What a config.json says; `file` names it in complaints."""
    values = dict(values)
    kind = values.pop("model_type", None)
    if kind not in _TYPES:
        names = [json.dumps(name) for name in _TYPES]
        bad_file(file, f"'model_type' to be an architecture that is known here: {', '.join(names[:-1])} or {names[-1]}",
                 "none" if kind is None else shown_json(kind))  # fmt: skip
    values = _ABSENT.get(kind, {}) | values
    config = ModelConfig().apply("standard")
    heads, width = values.get("num_attention_heads"), values.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:  # what files leave out, or null
        config.attention.kv_heads, config.attention.head_size = heads, width // heads
    _read(_LLAMA, values, config, file)
    _read_rope(values, config, file)
    bos = _read_tokens(values, "bos_token_id", file)
    if len(bos) > 1:
        bad_file(file, "'bos_token_id' to be one token", json.dumps(bos))
    config.bos_id = bos[0] if bos else None
    config.eos_ids = _read_tokens(values, "eos_token_id", file)
    for key in ("torch_dtype", "dtype"):
        dtype = values.pop(key, None)
        if dtype is not None and dtype not in _DTYPES:
            bad_file(file, f"'{key}' to be {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}", json.dumps(dtype))
    if kind in _FAMILIES:
        _, config.attention.qkv_bias, config.attention.qk_norm = _FAMILIES[kind]
        config.mistral = kind == "mistral"
        if kind != "llama":
            _refuse_window(values, config, kind == "mistral", file)
    else:
        _read(_PARTS, values, config, file)
        # What files of before these keys meant; our own always have them.
        config.attention.gate_init = 0.5
        _read(_OURS, values, config, file)
        if config.attention.sparse:
            config.attention.indexer.rope_fraction, config.attention.indexer.temperature.value = 0.5, 1.0
            _read(_SPARSE, values, config, file)
            _read_index_layers(values, config, file)
    for key, value in values.items():
        if key in _ONE_VALUE and value not in (_ONE_VALUE[key], None):
            bad_file(file, f"'{key}' to be {json.dumps(_ONE_VALUE[key])}", json.dumps(value))
        if key not in _ONE_VALUE and key not in _WITHOUT_MEANING:
            bad_file(file, "keys that are known here", f"'{key}'")
    try:
        config.validate()
    except ValueError as error:
        raise ValueError(f"{origin(file)}: {error}") from None
    return config


def config_to_dict(config: ModelConfig, dtype: str | None = None) -> dict[str, Any]:
    """As the program writes it; a standard model is one of the families, if one has its parts."""
    config.validate()
    attention, family = config.attention, None
    if attention.system() == "standard":
        parts = (attention.qkv_bias, attention.qk_norm)
        family = next((name for name, (_, *has) in _FAMILIES.items() if tuple(has) == parts), None)
        if family == "llama" and config.mistral:
            family = "mistral"

    def fields(keys: dict, of: Any) -> dict:
        return {key: getattr(*_place(of, path)) for key, (path, _, _) in keys.items()}

    result: dict[str, Any] = {
        "architectures": [_FAMILIES[family][0] if family else _ARCHITECTURE],
        "model_type": family or MODEL_TYPE,
    }
    if dtype is not None:
        result["torch_dtype"] = dtype
    result |= fields(_LLAMA, config) | {"hidden_act": "silu"}
    if family != "qwen2":  # which has no such key
        result["attention_bias"] = False
    result["mlp_bias"] = False
    if family == "mistral":  # whose default is one
        result["sliding_window"] = None
    rope = attention.rope
    result["rope_theta"] = rope.theta
    if rope.has_yarn():
        yarn = {key: value for key, value in fields(_YARN, rope.yarn).items() if value is not None}
        result["rope_scaling"] = {"rope_type": "yarn"} | yarn | ({} if rope.yarn.truncate else {"truncate": False})
    elif rope.linear_factor != 1:
        result["rope_scaling"] = {"rope_type": "linear"} | fields(_LINEAR, rope)
    elif rope.llama3.factor != 1:
        result["rope_scaling"] = {"rope_type": "llama3"} | fields(_LLAMA3, rope.llama3)
    result["bos_token_id"] = config.bos_id
    result["eos_token_id"] = config.eos_ids[0] if len(config.eos_ids) == 1 else config.eos_ids or None
    if family is None:
        # Only where there is something to say, so that files without them stay what they were.
        result |= {key: value for key, value in fields(_PARTS, config).items() if value}
        result |= fields(_OURS, config)
        if config.attention.sparse:
            result |= fields(_SPARSE, config)
            if config.indexers() < config.layers:
                result["index_layers"] = list(config.index_layers)
    return result


def read_config(folder: str | Path) -> ModelConfig:
    file = Path(folder) / "config.json"
    values = read_json(file)
    if not isinstance(values, dict):
        bad_file(file, "an object", shown_json(values))
    return config_from_dict(values, file)
