"""The configuration for transformers: the keys of a model folder's config.json (docs/model.md) as attributes."""

from typing import Any

from transformers import PreTrainedConfig

from .._errors import NotAFile, bad_argument, bad_file
from ..config import ModelConfig, every_nth_layer
from ..config_json import MODEL_TYPE, OLD_MODEL_TYPE, config_from_dict

_SPARSE_ONLY = ("index_", "dense_below")  # keys that say nothing where sparse_attention is false


class GatedSparseAttentionConfig(PreTrainedConfig):
    """Sizes as Llama's; the defaults are the gsa system of a 7B-class model."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    rope_parameters: dict | None = None

    qkv_bias: bool = False
    qk_norm: bool = False
    sparse_attention: bool = True
    value_gate: str = "elementwise"
    output_gate: str = "elementwise"
    gate_init: float = 0.9
    gate_init_std: float = 0.002
    index_n_heads: int = 4
    index_head_dim: int = 64
    index_topk: int = 2048
    index_topk_min: int = 256
    index_topk_max: int = 4096
    index_budget: str = "inverse"
    index_score: str = "sigmoid"
    index_rope_fraction: float = 1.0
    index_temperature: float = 0.1
    index_temperature_learned: bool = False
    index_variance_momentum: float = 0.99
    index_layers: list[int] | None = None
    dense_below: int = 0

    default_theta = 10000.0

    def __post_init__(self, index_every: int = 1, **kwargs):
        """index_every: gives every n-th layer an indexer, in place of the list of them."""
        where, layers = type(self).__name__, self.num_hidden_layers
        if index_every != 1:
            if self.index_layers is not None:
                bad_argument(where, "index_every", "1 beside index_layers", index_every)
            self.index_layers = every_nth_layer(layers, index_every) or None
        if self.index_layers is not None and not self.sparse_attention:
            bad_argument(where, "index_layers", "None where sparse_attention is False", self.index_layers)
        if self.index_layers == list(range(layers)):  # what is meant without a list
            self.index_layers = None
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        if config_dict.get("model_type") == OLD_MODEL_TYPE and "sparse_attention" not in config_dict:
            bad_file("config.json", f"the key 'sparse_attention', as of this package's models of type '{OLD_MODEL_TYPE}'",
                     "none, as of another model with that name")  # fmt: skip
        if "index_every" in config_dict:
            bad_file("config.json", "the key 'index_layers', a list", "'index_every'")
        # What files of before these keys meant; our own always have them. The model has had another name, too.
        old = {"gate_init": 0.5, "index_rope_fraction": 0.5, "index_temperature": 1.0}
        return super().from_dict(old | config_dict | {"model_type": MODEL_TYPE}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        return self._without_idle_keys(super().to_dict())

    def to_diff_dict(self) -> dict[str, Any]:
        return self._without_idle_keys(super().to_diff_dict())

    def _without_idle_keys(self, values: dict[str, Any]) -> dict[str, Any]:
        values = {key: value for key, value in values.items() if key != "index_layers" or value is not None}
        if self.sparse_attention:
            return values
        return {key: value for key, value in values.items() if not key.startswith(_SPARSE_ONLY)}

    def model_config(self) -> ModelConfig:
        """The same in the words of ModelConfig; keys that are unknown or say something else are refused, as in a
        file."""
        where = type(self).__name__
        if self.output_attentions:
            bad_argument(where, "output_attentions", "False, as there are no attention matrices", True)
        # transformers answers for its own keys and for layers that it has quantised.
        its_own = {*PreTrainedConfig().to_dict(), "quantization_config"}
        values = {key: value for key, value in self.to_dict().items() if key not in its_own}
        return config_from_dict({"model_type": MODEL_TYPE} | values, NotAFile(where))
