"""What a layer with an indexer hands to the layers after it that share its selection: what it selected, and the
indexer's inputs, since those layers' attention is a part of what the indexer learns (docs/specification.md)."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .config import AttentionConfig, BudgetConfig, IndexerConfig, TemperatureConfig
from .functional import BudgetOptions, IndexerInputs


def indexer_inputs(config: IndexerConfig, q: Tensor, k: Tensor, w: Tensor, bias: Tensor | None) -> IndexerInputs:
    return IndexerInputs(q, k, w, bias, 1 / math.sqrt(config.head_size), config.form)


def budget_options(config: BudgetConfig, mean_variance: Tensor | None) -> BudgetOptions:
    return BudgetOptions(config.mode, config.base, config.min, config.max, mean_variance)


def at_temperature(config: TemperatureConfig, log: Tensor | None, inputs: IndexerInputs) -> IndexerInputs:
    """The scores divided by the temperature, for the loss alone: they are linear in w. log: of one that is learned."""
    if log is not None:
        return replace(inputs, w=inputs.w * (-log).exp())
    if config.value != 1:
        return replace(inputs, w=inputs.w / config.value)
    return inputs


def mask_is_affordable(keys: int, q: Tensor, layers: int = 1) -> bool:
    """Whether the mask of so many keys takes no more memory than q [., heads, d], out and their gradients in the layers
    that use it."""
    return -(-keys // 32) <= q.size(-2) * q.size(-1) * q.element_size() * layers


@dataclass(frozen=True)
class SharedSelection:
    """masks: of each group of the plan, as gsa::attend takes it; None where the group is dense, and where it would take
    more memory than it is worth: selecting once more gives the same. k_t: AttentionResult's.

    indexer, log_temperature: its inputs [T, ...] and the temperature that is learned, with gradient; mean_variance:
    what it selected with. None where nobody needs them."""

    masks: tuple[Tensor | None, ...]
    k_t: Tensor | None = None
    indexer: IndexerInputs | None = None
    log_temperature: Tensor | None = None
    mean_variance: Tensor | None = None

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Side by side, as functions take them that compute a block again in the backward pass."""
        inputs = self.indexer
        learned = (None,) * 4 if inputs is None else (inputs.q, inputs.k, inputs.w, inputs.bias)
        return self.k_t, self.log_temperature, self.mean_variance, *learned, *self.masks

    @classmethod
    def of(cls, tensors: tuple[Tensor | None, ...], config: AttentionConfig) -> "SharedSelection":
        """The other way; config: of any of the layers."""
        k_t, log_temperature, mean_variance, q, k, w, bias, *masks = tensors
        inputs = None if q is None else indexer_inputs(config.indexer, q, k, w, bias)
        if mean_variance is not None:
            mean_variance = mean_variance.detach()  # as a result of a checkpoint it may ask for a gradient
        return cls(tuple(masks), k_t, inputs, log_temperature, mean_variance)

    def apart(self) -> "SharedSelection":
        """The same for one layer: what its groups give to a tensor's gradient is summed up before it joins what other
        layers give, as it is where layers are computed again one by one."""
        if self.indexer is None or not torch.is_grad_enabled():
            return self
        own = [None if x is None else x.view_as(x) for x in (self.indexer.bias, self.log_temperature)]
        q, k, w = (x.view_as(x) for x in (self.indexer.q, self.indexer.k, self.indexer.w))
        return replace(self, indexer=replace(self.indexer, q=q, k=k, w=w, bias=own[0]), log_temperature=own[1])
