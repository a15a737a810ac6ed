"""Gated sparse attention: operators, module and model in torch.

    functional                  every operator as a typed function
    GatedSparseAttention        one layer, any of the four systems or their ablations
    GatedSparseForCausalLM      a Llama-shaped model of such layers; load_model, save_model for its folders
    huggingface                 the same for transformers, registered with its Auto classes as soon as these are used
"""

import importlib as _importlib

from . import functional
from .attention import AttentionResult, GatedSparseAttention
from .config import (
    AttentionConfig, BudgetConfig, IndexerConfig, ModelConfig, RopeConfig, TemperatureConfig, YarnConfig,
    every_nth_layer,
)  # fmt: skip
from .indexer_kl_sample import KlSample
from .model import GatedSparseForCausalLM, GatedSparseModel, ModelLoss, ModelResult
from .model_io import load_model, save_model, save_sharded_model
from ._transformers import register_when_used as _register_when_used

__all__ = [
    "AttentionConfig", "AttentionResult", "BudgetConfig", "GatedSparseAttention", "GatedSparseForCausalLM",
    "GatedSparseModel", "IndexerConfig", "KlSample", "ModelConfig", "ModelLoss", "ModelResult", "RopeConfig",
    "TemperatureConfig", "YarnConfig", "every_nth_layer", "functional", "load_model", "save_model",
    "save_sharded_model",
]  # fmt: skip


def __getattr__(name):
    if name == "huggingface":  # takes as long as transformers does: only who asks for it waits
        return _importlib.import_module(".huggingface", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_register_when_used()
