"""For transformers (5.11 or newer). Importing this registers the model with AutoConfig, AutoModel and
AutoModelForCausalLM, for folders of model_type "gated_sparse_attention" and, where no other model has it, of the
older name "gsa"; the package imports it by itself as soon as transformers' Auto classes are imported."""

from .._transformers import OLDEST, installed, usable

if not usable():
    raise ImportError(
        f"gated_sparse_attention.huggingface: expected transformers {'.'.join(map(str, OLDEST))} or newer, "
        f"got {installed() or 'none'}"
    )

from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, TokenizersBackend

from ..config_json import MODEL_TYPE, OLD_MODEL_TYPE
from .cache import GatedSparseCache
from .configuration import GatedSparseAttentionConfig
from .modeling import (
    GatedSparseAttentionForCausalLM, GatedSparseAttentionModel, GatedSparseAttentionPreTrainedModel,
    GatedSparseCausalLMOutput, GatedSparseOutput,
)  # fmt: skip
from .tokenizer import GsaByteTokenizer

__all__ = [
    "GatedSparseAttentionConfig", "GatedSparseAttentionForCausalLM", "GatedSparseAttentionModel",
    "GatedSparseAttentionPreTrainedModel", "GatedSparseCache", "GatedSparseCausalLMOutput", "GatedSparseOutput",
    "GsaByteTokenizer",
]  # fmt: skip

AutoConfig.register(MODEL_TYPE, GatedSparseAttentionConfig, exist_ok=True)
if OLD_MODEL_TYPE not in CONFIG_MAPPING:  # a model of flash-linear-attention has that name, too
    CONFIG_MAPPING.register(OLD_MODEL_TYPE, GatedSparseAttentionConfig)
AutoModel.register(GatedSparseAttentionConfig, GatedSparseAttentionModel, exist_ok=True)
AutoModelForCausalLM.register(GatedSparseAttentionConfig, GatedSparseAttentionForCausalLM, exist_ok=True)
# Folders with a tokenizer.json have transformers' own class; the byte tokenizer is found by its name alone.
AutoTokenizer.register(
    GatedSparseAttentionConfig, TokenizersBackend, slow_tokenizer_class=GsaByteTokenizer, exist_ok=True
)
