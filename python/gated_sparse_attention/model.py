"""A decoder-only language model in the shape of Llama whose attention is any of the four systems or their ablations;
the forward pass is that of src/nn/model.cc.

    model = GatedSparseForCausalLM(ModelConfig.preset("tiny"))
    loss = model.loss(tokens, targets, want_kl=True)
    (loss.sum / loss.count + loss.kl.sum()).backward()

Parameters carry the names that Hugging Face gives to Llama's: model.embed_tokens.weight,
model.layers.N.{input_layernorm,post_attention_layernorm}.weight, model.layers.N.self_attn.*,
model.layers.N.mlp.{gate,up,down}_proj.weight, model.norm.weight, lm_head.weight (untied only).

Tokens are int64 [B, L], or packed [T] with cu_seqlens; hidden states and logits are [B, L, .] or [T, .] accordingly.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ._errors import bad_argument, require_one_of, shown
from .attention import AttendCached, AttentionResult, GatedSparseAttention, joint_linear
from .config import ModelConfig
from .functional import swiglu
from .indexer import make_linear
from .loss import IGNORED, cross_entropy_sum
from .plan import ForwardOptions, SequencePlan
from .rms_norm import RmsNorm
from .selection import SharedSelection

_WHERE = "GatedSparseModel"


@dataclass(frozen=True)
class ModelResult:
    """hidden: after the last norm. kl: where wanted, of each layer with an indexer the mean over the layers that share
    its selection, itself among them. kept: [layers], where AttentionResult has it."""

    hidden: Tensor
    kl: Tensor | None = None
    kept: Tensor | None = None


@dataclass(frozen=True)
class ModelLoss:
    """sum: 0-dim, cross-entropy in nats, added up over the `count` targets that counted. kl, kept: ModelResult's."""

    sum: Tensor
    count: Tensor
    kl: Tensor | None = None
    kept: Tensor | None = None


T = TypeVar("T")


class Uncast(Generic[T]):
    """Goes into a block and out of it as it is. FSDP casts what is a tensor there, and the tensors that it finds in
    containers and dataclasses; in here it finds none."""

    __slots__ = ("value",)

    def __init__(self, value: T):
        self.value = value


@dataclass(frozen=True)
class BlockInputs:
    """mean_variance: of before the pass, which moves nothing (BlockRunner does, outside of any checkpoint). selection:
    another layer's, for one that shares it."""

    plan: SequencePlan
    mean_variance: Tensor | None = None
    selection: SharedSelection | None = None


@dataclass(frozen=True)
class BlockOutputs:
    """AttentionResult's, but for out and kl."""

    kept: Tensor | None = None
    k_t: Tensor | None = None
    variance_totals: Tensor | None = None
    selection: SharedSelection | None = None


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d, width, std = config.attention.d_model, config.intermediate, config.attention.init_std
        self.gate_proj = make_linear(d, width, std)
        self.up_proj = make_linear(d, width, std)
        self.down_proj = make_linear(width, d, config.residual_std())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        return self.down_proj(swiglu(joint_linear(rows, self.gate_proj, self.up_proj))).view(x.shape)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). number: which layer of the model it is.

    What FSDP wraps and hooks see is a block's call, so its arguments and results are these: activations, which a policy
    of mixed precision may cast, as tensors of their own, x and `out` first; in Uncast what needs its bits (tables of
    RoPE, running means, totals, the indexer's inputs that others go by). A plain tuple, as torch before pytorch's PR
    174692 looks into no dataclass for the tensors whose gradients FSDP has to wait for."""

    def __init__(self, config: ModelConfig, number: int):
        super().__init__()
        d = config.attention.d_model
        self.input_layernorm = RmsNorm(d, config.rms_eps)
        self.self_attn = GatedSparseAttention(config.attention_of(number), config.rms_eps)
        self.post_attention_layernorm = RmsNorm(d, config.rms_eps)
        self.mlp = SwiGlu(config)
        if config.scale_residual_init:
            nn.init.normal_(self.self_attn.o_proj.weight, 0.0, config.residual_std())

    def forward(
        self, x: Tensor, given: Uncast[BlockInputs], attend_cached: AttendCached | None = None, followers: int = 0
    ) -> tuple[Tensor, Tensor | None, Uncast[BlockOutputs]]:
        """out and the indexer's loss, and the rest; attend_cached and followers: GatedSparseAttention's."""
        inputs = given.value
        result = self.self_attn(self.input_layernorm(x), plan=inputs.plan, mean_variance=inputs.mean_variance,
                                attend_cached=attend_cached, selection=inputs.selection, followers=followers)  # fmt: skip
        middle = self.post_attention_layernorm.take_in(x, result.out)
        out = middle.sum + self.mlp(middle.y)
        return out, result.kl, Uncast(BlockOutputs(result.kept, result.k_t, result.variance_totals, result.selection))


def followers_of(layers: Sequence[Block]) -> list[int]:
    """Of each layer, how many share its selection."""
    counts, leader = [0] * len(layers), 0
    for number, layer in enumerate(layers):
        if layer.self_attn.config.shares_selection:
            counts[leader] += 1
        else:
            leader = number
    return counts


class BlockRunner:
    """The blocks of a model, one call after another: hands a selection to the layers that share it, and moves the
    running mean of each indexer's variance once, however often a block is computed.

    run: calls a function with arguments, and maybe again in the backward pass; None: simply calls it.
    moves: False leaves the running means alone in training mode, too.
    """

    def __init__(
        self, layers: Sequence[Block], plan: SequencePlan, run: Callable[..., tuple] | None = None, moves: bool = True
    ):
        self.plan, self.run, self.moves = plan, run, moves
        self.followers = followers_of(layers)
        self.selection: SharedSelection | None = None
        self.losses: list[Tensor] = []  # of each indexer
        self.sharers = 1  # layers that go by the selection at hand

    def __call__(self, number: int, block: Block, x: Tensor) -> AttentionResult:
        """Layer `number` over x."""
        plan, follows = self.plan, block.self_attn.config.shares_selection
        if plan.kl_sample is not None:
            plan = replace(plan, kl_sample=plan.kl_sample.derive(0, number))
        if not follows:
            self.selection, self.sharers = None, 1 + self.followers[number]
        result = self._run(block, x, plan, self.selection, self.followers[number])
        if not follows:
            self.selection = result.selection
        if result.kl is not None:
            # An indexer's loss: the mean over the layers that go by its selection.
            kl = result.kl if self.sharers == 1 else result.kl / self.sharers
            if follows:
                self.losses[-1] = self.losses[-1] + kl
            else:
                self.losses.append(kl)
        return result

    def kl(self) -> Tensor | None:
        """The indexers' losses, ModelResult's."""
        return torch.stack(self.losses) if self.losses else None

    def _run(
        self, block: Block, x: Tensor, plan: SequencePlan, selection: SharedSelection | None, followers: int
    ) -> AttentionResult:
        config = block.self_attn.config
        indexer = block.self_attn.indexer if plan.phase == "sparse" else None
        before = None if indexer is None else indexer.mean_variance.clone()

        def tensors(
            x: Tensor, plan: SequencePlan, mean_variance: Tensor | None, *shared: Tensor | None
        ) -> tuple[Tensor | None, ...]:
            # Both ways as arguments and results, the only tensors that a checkpoint tells autograd of.
            selection = SharedSelection.of(shared, config) if shared else None
            out, kl, rest = block(x, Uncast(BlockInputs(plan, mean_variance, selection)), followers=followers)
            more = rest.value
            found = () if more.selection is None else more.selection.tensors()
            return out, kl, more.kept, more.k_t, more.variance_totals, *found

        arguments = (x, plan, before, *(() if selection is None else selection.tensors()))
        results = tensors(*arguments) if self.run is None else self.run(tensors, *arguments)
        result = AttentionResult(*results[:5], SharedSelection.of(results[5:], config) if results[5:] else None)
        if indexer is not None and block.training and self.moves:
            indexer.update_mean_variance(result.variance_totals.clone())
        return result


def check_tokens(where: str, argument: str, tokens: Tensor, vocab_size: int) -> None:
    # On a GPU a look at the values would be a wait; torch's own kernel stops there on an index out of range.
    if tokens.device.type != "cpu" or tokens.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = (int(x) for x in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        bad_argument(where, argument, f"numbers in 0 .. {vocab_size - 1}", low if low < 0 else high)


class GatedSparseModel(nn.Module):
    """Embedding, blocks and the last norm: what Hugging Face names "model"."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        config.validate()
        self.config = config = deepcopy(config)
        d = config.attention.d_model
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        nn.init.normal_(self.embed_tokens.weight, 0.0, config.attention.init_std)
        self.layers = nn.ModuleList(Block(config, number) for number in range(config.layers))
        self.norm = RmsNorm(d, config.rms_eps)

    def forward(
        self, tokens: Tensor, *, checkpoint_activations: bool = False, **options: Unpack[ForwardOptions]
    ) -> ModelResult:
        """options: ForwardOptions. checkpoint_activations: keep only the input of each block and compute the block
        again in the backward pass; results, gradients and the running mean of the variance are the same."""
        x = self._embed(tokens, options.get("cu_seqlens") is not None)
        plan = self.layers[0].self_attn.plan(tokens.shape, x.dtype, x.device, **options)
        run = partial(checkpoint, use_reentrant=False) if checkpoint_activations and torch.is_grad_enabled() else None
        runner, kept = BlockRunner(self.layers, plan, run), []
        for number, block in enumerate(self.layers):
            result = runner(number, block, x)
            x = result.out
            kept.append(result.kept)
        return ModelResult(self.norm(x), runner.kl(), None if kept[0] is None else torch.stack(kept))

    def _embed(self, tokens: Tensor, packed: bool) -> Tensor:
        weight = self.embed_tokens.weight
        if tokens.dim() != (1 if packed else 2) or tokens.dtype != torch.int64:
            bad_argument(_WHERE, "tokens", f"int64 {'[T] with' if packed else '[B, L] without'} cu_seqlens", shown(tokens))
        if tokens.device != weight.device:
            bad_argument(_WHERE, "tokens", f"a tensor on {weight.device}, where the weights are", tokens.device)
        check_tokens(_WHERE, "tokens", tokens, self.config.vocab_size)
        return self.embed_tokens(tokens)


def kind_of_parameter(name: str) -> str:
    """base, indexer or gate."""
    if ".indexer." in name:
        return "indexer"
    return "gate" if ".value_gate." in name or ".output_gate." in name else "base"


class GatedSparseForCausalLM(nn.Module):
    """The model with its output projection; lm_head is None where embeddings are tied."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.model = GatedSparseModel(config)
        self.config = config = self.model.config
        self.lm_head = None
        if not config.tie_embeddings:
            self.lm_head = make_linear(config.attention.d_model, config.vocab_size, config.attention.init_std)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *more) -> None:
        # A tied model of transformers names its embedding twice.
        names = prefix + "lm_head.weight", prefix + "model.embed_tokens.weight"
        head, embedding = map(state_dict.get, names)
        if self.lm_head is None and head is not None and embedding is not None and torch.equal(head, embedding):
            del state_dict[names[0]]  # of a copy
        super()._load_from_state_dict(state_dict, prefix, *more)

    def output_weight(self) -> Tensor:
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def forward(
        self, tokens: Tensor, *, checkpoint_activations: bool = False, **options: Unpack[ForwardOptions]
    ) -> Tensor:
        """Logits, [..., vocab_size]. For the indexer's loss: loss(), or model.model(...) and logits()."""
        if options.get("want_kl"):
            bad_argument("GatedSparseForCausalLM", "want_kl", "False, as only logits come back (loss() has it)", "True")
        return self.logits(self.model(tokens, checkpoint_activations=checkpoint_activations, **options).hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, self.output_weight())

    def parameter_groups(self) -> list[dict]:
        """Groups for an optimiser, by kind (base, indexer, gate) and by whether they decay, which matrices do: dicts
        of params, names, kind and decay, without the empty ones."""
        groups = []
        for kind in ("base", "indexer", "gate"):
            for decay in (True, False):
                found = {name: parameter for name, parameter in self.named_parameters()
                         if kind_of_parameter(name) == kind and (parameter.dim() >= 2) == decay}  # fmt: skip
                if found:
                    groups.append({"params": list(found.values()), "names": list(found), "kind": kind, "decay": decay})
        return groups

    def set_learning(self, kind: str, learns: bool) -> None:
        """requires_grad of every parameter of this kind, as the warm-up freezes all but the indexer."""
        require_one_of("GatedSparseForCausalLM", "kind", kind, ("base", "indexer", "gate"))
        for name, parameter in self.named_parameters():
            if kind_of_parameter(name) == kind:
                parameter.requires_grad_(learns)

    def loss(
        self, tokens: Tensor, targets: Tensor, *, checkpoint_activations: bool = False,
        **options: Unpack[ForwardOptions],
    ) -> ModelLoss:  # fmt: skip
        """Cross-entropy of predicting targets (as tokens; -100: none); logits exist for a chunk of tokens at a time."""
        if targets.shape != tokens.shape or targets.dtype != torch.int64:
            bad_argument("GatedSparseForCausalLM", "targets", f"int64 {list(tokens.shape)}, as tokens", shown(targets))
        result = self.model(tokens, checkpoint_activations=checkpoint_activations, **options)
        flat = targets.reshape(-1)
        total = cross_entropy_sum(result.hidden.reshape(flat.size(0), -1), self.output_weight(), flat)
        return ModelLoss(total, (flat != IGNORED).sum(), result.kl, result.kept)
