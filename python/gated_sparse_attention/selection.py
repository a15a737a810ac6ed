"""What a layer with an indexer selected, for the layers after it that share it.

Its followers attend by the masks, and their attention is a part of what the indexer learns to score by: the loss of a
group of layers is the mean of its layers' (docs/specification.md).
"""

import math
from dataclasses import dataclass

from torch import Tensor

from .config import IndexerConfig
from .functional import IndexerInputs


def indexer_inputs(config: IndexerConfig, q: Tensor, k: Tensor, w: Tensor, bias: Tensor | None) -> IndexerInputs:
    return IndexerInputs(q, k, w, bias, 1 / math.sqrt(config.head_size), config.form)


@dataclass(frozen=True)
class SharedSelection:
    """masks: of each group of the plan what was selected, as gsa::attend takes it; None where the group is dense.
    k_t: AttentionResult's. indexer: where its loss is wanted, its inputs at its temperature [T, ...], with gradient."""

    masks: tuple[Tensor | None, ...]
    k_t: Tensor | None = None
    indexer: IndexerInputs | None = None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Side by side, as functions take them that compute a block again in the backward pass."""
        inputs = self.indexer
        learned = (None,) * 4 if inputs is None else (inputs.q, inputs.k, inputs.w, inputs.bias)
        return self.k_t, *learned, *self.masks

    @classmethod
    def of(cls, tensors: tuple[Tensor | None, ...], config: IndexerConfig) -> "SharedSelection":
        """The other way; config: of the indexer."""
        k_t, q, k, w, bias, *masks = tensors
        return cls(tuple(masks), k_t, None if q is None else indexer_inputs(config, q, k, w, bias))
