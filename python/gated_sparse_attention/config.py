"""The configuration of a layer and of a model: fields, defaults, presets and names are those of the C++ side
(src/model/config.h, src/model/model_config.h), where each is explained."""

import math
from copy import deepcopy
from dataclasses import dataclass, field, replace

from ._errors import bad_argument, require_one_of

GATES = ("none", "elementwise", "headwise")
FORMS = ("sigmoid", "relu")
BUDGETS = ("inverse", "proportional", "fixed")
PHASES = ("dense", "warmup", "sparse")
SUPPORTS = ("selected", "all")
SYSTEMS = ("standard", "sparse-only", "gated-only", "gsa")
PRESETS = ("tiny", "small", "paper-1.7b", "llama-7b-class")
_INT32_MAX = 2**31 - 1
_SPARSE_PAYS = 16384


def _require(holds: bool, where: str, name: str, expected: str, got: object) -> None:
    if not holds:
        bad_argument(where, name, expected, got)


def _positive(where: str, name: str, value: float) -> None:
    _require(value > 0 and math.isfinite(value), where, name, "a positive finite number", value)


def _range(where: str, name: str, value: int, low: int, high: int) -> None:
    _require(low <= value <= high, where, name, f"a number in {low} .. {high}", value)


@dataclass
class YarnConfig:
    """RoPE beyond the trained length; factor 1 is plain RoPE. attention_factor None: 0.1 ln(factor) + 1."""

    factor: float = 1.0
    original_length: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def scale_of_attention(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor


@dataclass
class Llama3RopeConfig:
    """Llama 3.1's scaling; factor 1 is plain RoPE."""

    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192


@dataclass
class RopeConfig:
    """At most one of the three scalings."""

    theta: float = 10000.0
    yarn: YarnConfig = field(default_factory=YarnConfig)
    linear_factor: float = 1.0
    llama3: Llama3RopeConfig = field(default_factory=Llama3RopeConfig)

    def has_yarn(self) -> bool:
        return self.yarn.factor != 1 or self.yarn.attention_factor is not None

    def validate(self, where: str) -> None:
        yarn = self.yarn
        _require(self.theta > 1 and math.isfinite(self.theta), where, "rope.theta", "a finite number above 1", self.theta)
        _require(yarn.factor >= 1 and math.isfinite(yarn.factor), where, "rope.yarn.factor",
                 "a finite number, 1 or more", yarn.factor)  # fmt: skip
        _require(yarn.original_length > 0, where, "rope.yarn.original_length", "a positive number", yarn.original_length)
        _positive(where, "rope.yarn.beta_slow", yarn.beta_slow)
        _require(yarn.beta_fast > yarn.beta_slow and math.isfinite(yarn.beta_fast), where, "rope.yarn.beta_fast",
                 f"a finite number above beta_slow ({yarn.beta_slow})", yarn.beta_fast)  # fmt: skip
        if yarn.attention_factor is not None:
            _positive(where, "rope.yarn.attention_factor", yarn.attention_factor)
        llama3 = self.llama3
        for name, factor in (("linear_factor", self.linear_factor), ("llama3.factor", llama3.factor)):
            _require(factor >= 1 and math.isfinite(factor), where, f"rope.{name}", "a finite number, 1 or more", factor)
        _positive(where, "rope.llama3.low_freq_factor", llama3.low_freq_factor)
        _require(llama3.high_freq_factor > llama3.low_freq_factor and math.isfinite(llama3.high_freq_factor), where,
                 "rope.llama3.high_freq_factor", f"a finite number above low_freq_factor ({llama3.low_freq_factor})",
                 llama3.high_freq_factor)  # fmt: skip
        _require(llama3.original_length > 0, where, "rope.llama3.original_length", "a positive number",
                 llama3.original_length)  # fmt: skip
        scalings = self.has_yarn() + (self.linear_factor != 1) + (llama3.factor != 1)
        _require(scalings <= 1, where, "rope", "one of YaRN, linear and llama3 scaling", scalings)


@dataclass
class TemperatureConfig:
    """softmax(I / value) in the indexer's loss; the selection never sees it."""

    value: float = 0.1
    learned: bool = False


@dataclass
class IndexerConfig:
    heads: int = 4
    head_size: int = 64
    form: str = "sigmoid"
    rope_fraction: float = 1.0
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    mean_variance_momentum: float = 0.99

    def set_form(self, form: str) -> None:
        """Where the form changes, the temperature becomes the form's default, unless it is learned."""
        if form == self.form:
            return
        self.form = form
        if not self.temperature.learned:
            self.temperature.value = 0.1 if form == "sigmoid" else 1.0

    def validate(self, where: str) -> None:
        _range(where, "indexer.heads", self.heads, 1, 128)
        _range(where, "indexer.head_size", self.head_size, 1, 256)
        require_one_of(where, "indexer.form", self.form, FORMS)
        _require(0 <= self.rope_fraction <= 1, where, "indexer.rope_fraction", "a number in 0 .. 1", self.rope_fraction)
        rotated = self.rope_fraction * self.head_size
        _require(abs(rotated - 2 * round(rotated / 2)) < 1e-9, where, "indexer.rope_fraction",
                 f"a share of head_size {self.head_size} that is an even number of dimensions",
                 f"{self.rope_fraction} ({rotated} dimensions)")  # fmt: skip
        _positive(where, "indexer.temperature.value", self.temperature.value)
        _require(0 <= self.mean_variance_momentum < 1, where, "indexer.mean_variance_momentum",
                 "a number in 0 .. 1, below 1", self.mean_variance_momentum)  # fmt: skip


@dataclass
class BudgetConfig:
    mode: str = "inverse"
    base: int = 2048
    min: int = 256
    max: int = 4096

    def validate(self, where: str) -> None:
        require_one_of(where, "budget.mode", self.mode, BUDGETS)
        _range(where, "budget.min", self.min, 1, _INT32_MAX)
        _range(where, "budget.max", self.max, 1, _INT32_MAX)
        _require(self.min <= self.max, where, "budget.min", f"at most budget.max ({self.max})", self.min)
        _range(where, "budget.base", self.base, self.min, self.max)


@dataclass
class AttentionConfig:
    """One attention layer. The defaults are the gsa system of a 7B-class model."""

    d_model: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    qkv_bias: bool = False
    qk_norm: bool = False
    sparse: bool = True
    shares_selection: bool = False  # sparse without an indexer of its own: takes the selection of a layer before
    indexer: IndexerConfig = field(default_factory=IndexerConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    dense_below: int = 0
    value_gate: str = "elementwise"
    output_gate: str = "elementwise"
    rope: RopeConfig = field(default_factory=RopeConfig)
    init_std: float = 0.02
    gate_init: float = 0.9
    gate_init_std: float = 0.002

    def apply(self, system: str) -> "AttentionConfig":
        """Sets the switches of one of the four systems and leaves sizes, k and all the rest. Returns itself."""
        require_one_of("AttentionConfig", "system", system, SYSTEMS)
        self.sparse = system in ("sparse-only", "gsa")
        self.indexer.set_form("relu" if system == "sparse-only" else "sigmoid")
        self.budget.mode = "fixed" if system == "sparse-only" else "inverse"
        gates = "elementwise" if system in ("gated-only", "gsa") else "none"
        self.value_gate = self.output_gate = gates
        if not self.sparse:  # they say nothing where everything is dense
            self.dense_below, self.shares_selection = 0, False
        return self

    def system(self) -> str | None:
        """Which of the four systems this is; None for an ablation."""

        def switches(config: AttentionConfig) -> tuple:
            selection = (config.indexer.form, config.budget.mode) if config.sparse else ()
            return config.sparse, config.value_gate, config.output_gate, selection

        found = [name for name in SYSTEMS if switches(deepcopy(self).apply(name)) == switches(self)]
        return found[0] if found else None

    def has_indexer(self) -> bool:
        return self.sparse and not self.shares_selection

    def indexer_rope_size(self) -> int:
        return round(self.indexer.rope_fraction * self.indexer.head_size)

    def validate(self) -> None:
        where = "AttentionConfig"
        _require(self.d_model > 0, where, "d_model", "a positive number", self.d_model)
        _require(self.heads > 0, where, "heads", "a positive number", self.heads)
        _require(self.kv_heads > 0 and self.heads % self.kv_heads == 0, where, "kv_heads",
                 f"a positive divisor of heads ({self.heads})", self.kv_heads)  # fmt: skip
        _require(2 <= self.head_size <= 256 and self.head_size % 2 == 0, where, "head_size",
                 "an even number in 2 .. 256", self.head_size)  # fmt: skip
        require_one_of(where, "value_gate", self.value_gate, GATES)
        require_one_of(where, "output_gate", self.output_gate, GATES)
        _require(self.dense_below >= 0, where, "dense_below", "0 or more", self.dense_below)
        if self.sparse:
            self.indexer.validate(where)
            self.budget.validate(where)
        else:
            _require(self.dense_below == 0, where, "dense_below", "0 where sparse is false (everything is dense)",
                     self.dense_below)  # fmt: skip
            _require(not self.shares_selection, where, "shares_selection",
                     "False where sparse is false (nothing is selected)", True)  # fmt: skip
        self.rope.validate(where)
        _positive(where, "init_std", self.init_std)
        _require(0 < self.gate_init < 1, where, "gate_init", "a number between 0 and 1, both excluded", self.gate_init)
        _require(self.gate_init_std >= 0 and math.isfinite(self.gate_init_std), where, "gate_init_std",
                 "a finite number, 0 or more", self.gate_init_std)  # fmt: skip


def every_nth_layer(layers: int, n: int) -> list[int]:
    """Layers 0, n, 2 n, ..., as ModelConfig.index_layers has them: n = 1 gives []."""
    _require(n >= 1, "ModelConfig", "index_every", "a positive number of layers", n)
    return [] if n == 1 or layers == 1 else list(range(0, layers, n))


@dataclass
class ModelConfig:
    """A whole model. ``ModelConfig.preset("tiny").apply("gated-only")`` is a system on a preset's sizes.

    index_layers: layers that have an indexer, ascending, the first is 0: each selects for itself and for the layers
    after it that have none. []: every layer has one, or the model is dense.
    """

    vocab_size: int = 32000
    layers: int = 32
    intermediate: int = 14336
    rms_eps: float = 1e-5
    tie_embeddings: bool = False
    max_positions: int = 4096
    bos_id: int | None = None
    eos_ids: list[int] = field(default_factory=list)
    mistral: bool = False
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    scale_residual_init: bool = False
    index_layers: list[int] = field(default_factory=list)

    @classmethod
    def preset(cls, name: str) -> "ModelConfig":
        require_one_of("ModelConfig", "preset", name, PRESETS)
        if name == "tiny":
            attention = AttentionConfig(
                d_model=128, heads=4, kv_heads=2, head_size=32, indexer=IndexerConfig(heads=4, head_size=16),
                budget=BudgetConfig("inverse", 64, 16, 128), init_std=0.06)  # fmt: skip
            return cls(vocab_size=258, bos_id=256, eos_ids=[257], layers=4, intermediate=352, tie_embeddings=True,
                       max_positions=1024, attention=attention)  # fmt: skip
        if name == "small":
            attention = AttentionConfig(
                d_model=512, heads=8, kv_heads=2, head_size=64, indexer=IndexerConfig(heads=4, head_size=32),
                budget=BudgetConfig("inverse", 512, 64, 1024))  # fmt: skip
            return cls(vocab_size=32768, layers=8, intermediate=1408, tie_embeddings=True, attention=attention)
        if name == "paper-1.7b":
            attention = AttentionConfig(d_model=2048, heads=16, kv_heads=4, dense_below=_SPARSE_PAYS)
            return cls(vocab_size=151936, layers=24, intermediate=5504, attention=attention)
        return cls(attention=AttentionConfig(dense_below=_SPARSE_PAYS))

    def apply(self, system: str) -> "ModelConfig":
        if not self.attention.apply(system).sparse:
            self.index_layers = []
        return self

    def set_index_layers(self, index_layers: list[int]) -> "ModelConfig":
        """A list of every layer becomes the empty one. Returns itself."""
        self.index_layers = [] if index_layers == list(range(self.layers)) else list(index_layers)
        return self

    def has_indexer(self, layer: int) -> bool:
        return self.attention.sparse and (not self.index_layers or layer in self.index_layers)

    def leader_of(self, layer: int) -> int:
        """The layer whose indexer selects for `layer`."""
        return max((leader for leader in self.index_layers if leader <= layer), default=layer)

    def attention_of(self, layer: int) -> AttentionConfig:
        """`attention`, as this layer has it."""
        return replace(self.attention, shares_selection=self.attention.sparse and not self.has_indexer(layer))

    def indexers(self) -> int:
        """How many layers have one."""
        return sum(self.has_indexer(layer) for layer in range(self.layers))

    def trained_length(self) -> int:
        yarn = self.attention.rope.yarn
        return self.max_positions if yarn.factor == 1 else yarn.original_length

    def extend(self, factor: float) -> "ModelConfig":
        """YaRN for `factor` times the trained length; 1 takes an extension away. Returns itself."""
        trained, yarn = self.trained_length(), self.attention.rope.yarn
        _require(1 <= factor <= _INT32_MAX / trained, "ModelConfig", "factor",
                 f"a number from 1 to {_INT32_MAX} positions of the {trained} trained", factor)  # fmt: skip
        rope = self.attention.rope
        if rope.linear_factor != 1 or rope.llama3.factor != 1:
            kind = "linear" if rope.linear_factor != 1 else "llama3"
            _require(factor == 1, "ModelConfig", "factor",
                     f"1, as the model has {kind} scaling, beside which there is no YaRN", factor)  # fmt: skip
            return self
        yarn.factor, yarn.original_length = float(factor), trained
        self.max_positions = round(factor * trained)
        return self

    def residual_std(self) -> float:
        """Deviation of what writes into the residual stream, at the start."""
        std = self.attention.init_std
        return std / math.sqrt(2 * self.layers) if self.scale_residual_init else std

    def validate(self) -> None:
        where = "ModelConfig"
        self.attention.validate()
        _range(where, "vocab_size", self.vocab_size, 1, _INT32_MAX)
        _range(where, "layers", self.layers, 1, 65536)
        self._check_index_layers()
        _range(where, "intermediate", self.intermediate, 1, _INT32_MAX)
        _range(where, "max_positions", self.max_positions, 1, _INT32_MAX)
        _positive(where, "rms_eps", self.rms_eps)
        if self.bos_id is not None:
            _range(where, "bos_id", self.bos_id, 0, self.vocab_size - 1)
        for token in self.eos_ids:
            _range(where, "eos_ids", token, 0, self.vocab_size - 1)

    def _check_index_layers(self) -> None:
        where, listed = "ModelConfig", self.index_layers
        _require(not self.attention.shares_selection, where, "attention.shares_selection",
                 "False, as index_layers says which layers share a selection", True)  # fmt: skip
        if not listed:
            return
        got = ", ".join(map(str, listed))
        _require(self.attention.sparse, where, "index_layers", "none where attention is dense", got)
        good = listed[0] == 0 and listed[-1] < self.layers and all(a < b for a, b in zip(listed, listed[1:]))
        _require(good, where, "index_layers", f"layers in 0 .. {self.layers - 1}, ascending, each once, the first 0 (a "
                 "layer shares the selection of one before it)", got)  # fmt: skip
