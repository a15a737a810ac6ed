"""The model for transformers: the same blocks as gated_sparse_attention.model, with padding, a cache and generate()."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from .._errors import bad_argument, shown
from ..attention import GatedSparseAttention
from ..functional import BudgetOptions, IndexerInputs, Layout, SelectedPositions, attend, decode, sparse_attention
from ..indexer import Indexer
from ..loss import IGNORED
from ..model import Block, BlockInputs, BlockRunner, Uncast, check_tokens, followers_of
from ..plan import SequencePlan
from ..rms_norm import RmsNorm
from ..selection import mask_is_affordable
from .cache import GatedSparseCache
from .configuration import GatedSparseAttentionConfig

_WHERE = "GatedSparseAttentionModel"
_logger = logging.get_logger(__name__)
_FEW_QUERIES = 16  # what gsa::decode takes on a GPU


@dataclass
class GatedSparseOutput(BaseModelOutputWithPast):
    """indexer_loss: 0-dim, the indexers' losses added up, where wanted."""

    indexer_loss: Tensor | None = None


@dataclass
class GatedSparseCausalLMOutput(CausalLMOutputWithPast):
    """loss: cross-entropy of the labels, plus indexer_loss where there is one, or the share of both in a step's."""

    indexer_loss: Tensor | None = None


def _name_of_device(device: int | str | torch.device) -> str:
    """0, "cuda:0" and torch's own are one; accelerate knows "disk" beside them."""
    if isinstance(device, int):
        return f"{torch.accelerator.current_accelerator() or 'cuda'}:{device}"
    return device if device == "disk" else str(torch.device(device))


def _joined(places: list[Tensor]) -> Tensor:
    """int64, of a batch of no rows too, of which torch.cat makes nothing."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *places])


@dataclass
class _Sequences:
    """Sequences of a cached pass that run alike, sparse or dense."""

    sparse: bool
    rows: Tensor | None  # of the pass's new tokens; None: all
    sequences: Tensor  # int64, which of the batch
    new: list[int]
    lengths: list[int]  # of all their keys
    table: Tensor  # of their pages
    lengths_on_device: Tensor  # int32
    # Of the last layer with an indexer, where others share its selection: what decode() gave out, or else the arguments
    # of sparse_attention() and the mask, None where that would take more memory than it is worth.
    selected: SelectedPositions | None = None
    selector: tuple[IndexerInputs, BudgetOptions] | None = None
    mask: Tensor | None = None

    def __post_init__(self):
        self.alike = len(set(self.new)) == 1 and 1 <= self.new[0] <= _FEW_QUERIES


class _CachedPass:
    """New tokens of a batch, one sequence after another, whose keys go into a cache. Gradients reach the new tokens;
    what the cache held before is a constant."""

    def __init__(self, layers: nn.ModuleList, cache: GatedSparseCache, new: list[int], valid: Tensor,
                 positions: Tensor | None, dtype: torch.dtype, device: torch.device, phase: str | None):  # fmt: skip
        attention = layers[0].self_attn
        self.followers = followers_of(layers)
        past = cache.lengths or [0] * len(new)
        cache.advance(new, valid)
        self.cache = cache
        starts = torch.tensor([0, *accumulate(new)])
        index = _joined([torch.arange(p, p + n) for p, n in zip(past, new)]).to(device)
        self.plan: SequencePlan = attention.plan(
            (sum(new),), dtype, device, cu_seqlens=starts, positions=index if positions is None else positions,
            phase=phase)  # fmt: skip
        self.slots = self._slots(list(range(len(new))), past, cache.lengths, device)
        runs_sparse = [self.plan.phase == "sparse" and n >= attention.config.dense_below for n in cache.lengths]
        self.kinds = []
        for sparse in (True, False):
            chosen = [n for n, kind in enumerate(runs_sparse) if kind == sparse]
            if not chosen:
                continue
            rows = None
            if len(chosen) < len(new):
                rows = torch.cat([torch.arange(starts[n], starts[n + 1]) for n in chosen]).to(device)
            sequences, lengths = torch.tensor(chosen, device=device), [cache.lengths[n] for n in chosen]
            self.kinds.append(_Sequences(sparse, rows, sequences, [new[n] for n in chosen], lengths,
                                         cache.table(sequences),
                                         torch.tensor(lengths, dtype=torch.int32, device=device)))  # fmt: skip

    def _slots(self, sequences: list[int], begin: list[int], end: list[int], device: torch.device) -> Tensor:
        places = [torch.arange(n * self.cache.capacity + a, n * self.cache.capacity + b)
                  for n, a, b in zip(sequences, begin, end)]  # fmt: skip
        return _joined(places).to(device)

    def run(self, number: int, block: Block, x: Tensor) -> Tensor:
        """One block over the new tokens x [T, d_model]."""
        return block(x, Uncast(BlockInputs(self.plan)), partial(self._attend_cached, number))[0]

    def _attend_cached(self, number: int, attention: GatedSparseAttention, q: Tensor, k: Tensor, v: Tensor,
                       indexer: IndexerInputs | None) -> Tensor:  # fmt: skip
        self.cache.write(number, self.slots, k, v, None if indexer is None else indexer.k)
        parts = [self._attend(number, attention, kind, q, k, v, indexer) for kind in self.kinds]
        attended = parts[0] if parts else q  # a batch of no rows
        if len(parts) > 1:
            order = torch.cat([kind.rows for kind in self.kinds]).argsort()
            attended = torch.cat(parts).index_select(0, order)
        return attended

    def _attend(self, number: int, attention: GatedSparseAttention, kind: _Sequences, q: Tensor, k: Tensor, v: Tensor,
                indexer: IndexerInputs | None) -> Tensor:  # fmt: skip
        def take(y: Tensor) -> Tensor:
            return y if kind.rows is None else y.index_select(0, kind.rows)

        q, device = take(q), q.device
        selects = kind.sparse and not attention.config.shares_selection
        budget = attention.indexer.budget(attention.indexer.mean_variance) if selects else None
        if kind.alike and not torch.is_grad_enabled():
            pages = self.cache.paged(number, kind.table, kind.lengths_on_device, max(kind.lengths), selects)
            shape = (len(kind.new), kind.new[0])
            q = q.unflatten(0, shape)
            if not selects:
                return decode(q, pages, selected=kind.selected if kind.sparse else None).out.flatten(0, 1)
            found = decode(q, pages, take(indexer.q).unflatten(0, shape), take(indexer.w).unflatten(0, shape),
                           indexer.bias, index_scale=indexer.scale, form=indexer.form, budget=budget,
                           return_selected=self.followers[number] > 0)  # fmt: skip
            kind.selected = found.selected
            return found.out.flatten(0, 1)
        slots = self._slots(kind.sequences.tolist(), [0] * len(kind.lengths), kind.lengths, device)
        rows = self.cache.rows(number, slots)
        if torch.is_grad_enabled():
            ends = accumulate(kind.lengths)
            places = torch.cat([torch.arange(end - n, end) for end, n in zip(ends, kind.new)]).to(device)
            rows.k, rows.v = (old.index_copy(0, places, take(new)) for old, new in ((rows.k, k), (rows.v, v)))
        layout = Layout(torch.tensor([0, *accumulate(kind.new)]), torch.tensor([0, *accumulate(kind.lengths)]))
        if not kind.sparse or (kind.mask is not None and not selects):
            return attend(q, rows.k, rows.v, kind.mask if kind.sparse else None, layout=layout).out
        followers = self.followers[number]
        if selects:
            inputs = replace(indexer, q=take(indexer.q), k=rows.index_k, w=take(indexer.w))
            kind.selector = inputs.detach(), budget
        keeps = followers > 0 and mask_is_affordable(max(kind.lengths), q, 1 + followers)
        found = sparse_attention(q, rows.k, rows.v, *kind.selector, layout=layout, return_mask=keeps)
        kind.mask = found.mask
        return found.out


class GatedSparseAttentionPreTrainedModel(PreTrainedModel):
    config_class = GatedSparseAttentionConfig
    config: GatedSparseAttentionConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _skip_keys_device_placement = ["past_key_values"]

    def _require_one_device(self) -> None:
        """hf_device_map: accelerate's, where it has spread the model."""
        devices = {_name_of_device(device) for device in getattr(self, "hf_device_map", {}).values()}
        if len(devices) > 1:
            bad_argument(_WHERE, "device_map", "one device for all layers", ", ".join(sorted(devices)))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, mean=0.0, std=getattr(module, "init_std", self.config.initializer_range))
            if getattr(module, "bias", None) is not None:
                init.constant_(module.bias, getattr(module, "init_bias", 0.0))
        elif isinstance(module, RmsNorm):
            init.ones_(module.weight)
        elif isinstance(module, Indexer):
            init.constant_(module.mean_variance, -1.0)
            if module.config.form == "sigmoid":
                init.zeros_(module.bias)
            if module.config.temperature.learned:
                init.constant_(module.log_temperature, torch.tensor(module.config.temperature.value).log().item())


class GatedSparseAttentionModel(GatedSparseAttentionPreTrainedModel):
    """Embedding, blocks and the last norm."""

    def __init__(self, config: GatedSparseAttentionConfig):
        super().__init__(config)
        sizes = config.model_config()
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.attention.d_model)
        self.layers = nn.ModuleList(Block(sizes, number) for number in range(sizes.layers))
        self.norm = RmsNorm(sizes.attention.d_model, sizes.rms_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, past_key_values: GatedSparseCache | None = None,
        inputs_embeds: Tensor | None = None, use_cache: bool | None = None, output_hidden_states: bool | None = None,
        output_attentions: bool | None = None, cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None, max_length_q: int | None = None, max_length_k: int | None = None,
        phase: str | None = None, want_kl: bool = False,
    ) -> GatedSparseOutput:  # fmt: skip
        """attention_mask: [B, L], with a cache of S tokens [B, S + L] too; 0 for padding, on either side, and for
        cached tokens at a sequence's end that are padding after all, as behind a text that has ended. position_ids:
        [B, L], for RoPE; None: counted over the tokens that are no padding. Without a mask, a row whose
        positions do not grow from one token to the next holds several sequences, packed, which do not see each other
        and have no cache; cu_seq_lens_q, cumulative lengths from 0 on, says the same of one row by itself, and what
        DataCollatorWithFlattening gives beside it must agree.
        A pass without gradients leaves the running means of the variance alone, in training mode too.
        phase and want_kl: as of GatedSparseAttention."""
        self._require_one_device()
        if output_attentions:
            bad_argument(_WHERE, "output_attentions", "False, as there are no attention matrices", True)
        if (input_ids is None) == (inputs_embeds is None):
            bad_argument(_WHERE, "input_ids", "either it or inputs_embeds", "both" if input_ids is not None else "neither")
        if inputs_embeds is None:
            check_tokens(_WHERE, "input_ids", input_ids, self.config.vocab_size)
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if x.dim() != 3:
            name, given, shape = ("input_ids", input_ids, "B, L") if inputs_embeds is None else ("inputs_embeds", x, "B, L, d")
            bad_argument(_WHERE, name, f"[{shape}]", shown(given))
        batch, columns = x.shape[:2]
        if position_ids is not None:
            position_ids = position_ids.expand(batch, columns)
        parted_by, packed, parts = "position_ids", None, None
        given = {"cu_seq_lens_k": cu_seq_lens_k, "max_length_q": max_length_q, "max_length_k": max_length_k}
        if cu_seq_lens_q is not None:
            parted_by, parts = "cu_seq_lens_q", self._parts(cu_seq_lens_q, given, attention_mask, x.shape)
            packed = torch.arange(columns, device=x.device)
        elif any(value is not None for value in given.values()):
            bad_argument(_WHERE, "cu_seq_lens_q", "the lengths that cu_seq_lens_k or a max_length is said beside", "None")
        elif attention_mask is None and position_ids is not None:
            packed, parts = self._packed(position_ids)
        again = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if again and use_cache and past_key_values is None:  # as transformers' own models do
            _logger.warning_once("`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.")
            use_cache = False
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and not want_kl and packed is None
        if past_key_values is None and use_cache:
            past_key_values = GatedSparseCache()
        if past_key_values is not None and not isinstance(past_key_values, GatedSparseCache):
            bad_argument(_WHERE, "past_key_values", "a GatedSparseCache", type(past_key_values).__name__)
        if past_key_values is not None and again:
            bad_argument(_WHERE, "past_key_values", "None where activations are checkpointed, with gradients", "a cache")
        if past_key_values is not None and want_kl:
            bad_argument(_WHERE, "use_cache", "False where want_kl is True", "a cache")
        if past_key_values is not None and packed is not None:
            bad_argument(_WHERE, parted_by, "growing ones in every row where there is a cache (use_cache=False for "
                         "several sequences in a row)", "some that begin anew")  # fmt: skip
        valid = self._valid(attention_mask, x, past_key_values)
        rows, new = self._rows(valid)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        collected = [] if output_hidden_states else None
        with nullcontext() if past_key_values is None else past_key_values.unchanged_by_failure():
            if past_key_values is not None:
                positions = None if position_ids is None else position_ids.reshape(-1)
                if rows is not None and positions is not None:
                    positions = positions.index_select(0, rows)
                if valid is None:
                    valid = torch.ones(batch, columns, dtype=torch.bool, device=x.device)
                passed = _CachedPass(self.layers, past_key_values, new or [columns] * batch, valid, positions,
                                     x.dtype, x.device, phase)  # fmt: skip
                y = x.flatten(0, 1) if rows is None else x.flatten(0, 1).index_select(0, rows)
                runner = None
            else:
                if packed is not None:
                    rows, new = packed, parts
                y, plan = self._plan(x, rows, new, position_ids, phase, want_kl)
                runner = BlockRunner(self.layers, plan, self._gradient_checkpointing_func if again else None,
                                     moves=torch.is_grad_enabled())  # fmt: skip
            for number, block in enumerate(self.layers):
                if collected is not None:
                    collected.append(self._padded(y, rows, x.shape))
                y = passed.run(number, block, y) if runner is None else runner(number, block, y).out
        hidden = self._padded(self.norm(y), rows, x.shape)
        if collected is not None:
            collected.append(hidden)
        return GatedSparseOutput(
            last_hidden_state=hidden, past_key_values=past_key_values,
            hidden_states=None if collected is None else tuple(collected),
            indexer_loss=runner.kl().sum() if want_kl else None,
        )  # fmt: skip

    @staticmethod
    def _valid(mask: Tensor | None, x: Tensor, cache: GatedSparseCache | None) -> Tensor | None:
        """Which of the new tokens are no padding, bool [B, L]; None: all. Of cached ones the cache is told."""
        batch, columns = x.shape[:2]
        seen = 0 if cache is None else cache.seen
        if cache is not None:
            cache.require_batch(batch)
        if mask is None:
            return None
        if mask.dim() != 2 or mask.size(0) != batch or mask.size(1) not in (columns, seen + columns):
            bad_argument(_WHERE, "attention_mask", f"[{batch}, {seen + columns}], 0 for padding", shown(mask))
        mask = mask.to(x.device, torch.bool)
        if seen > 0 and mask.size(1) > columns:
            cache.retain(mask[:, :seen])
        return mask[:, mask.size(1) - columns :]

    @staticmethod
    def _rows(valid: Tensor | None) -> tuple[Tensor | None, list[int] | None]:
        """Of the new tokens that are no padding their rows, and how many each sequence has; None: all."""
        if valid is None:
            return None, None
        new = valid.sum(1).tolist()
        if min(new, default=valid.size(1)) == valid.size(1):
            return None, None
        return valid.reshape(-1).nonzero().squeeze(1), new

    @staticmethod
    def _parts(cu_seq_lens: Tensor, beside: dict[str, Any], mask: Tensor | None, shape: torch.Size) -> list[int]:
        """Lengths of the sequences in the one row of input; beside: what says the same once more."""
        starts = cu_seq_lens.tolist()
        lengths = [b - a for a, b in zip(starts, starts[1:])]
        if shape[0] != 1 or starts[:1] != [0] or starts[-1] != shape[1] or min(lengths, default=0) < 0:
            bad_argument(_WHERE, "cu_seq_lens_q", f"numbers from 0 to {shape[1]} that never fall, for one row of input",
                         f"{starts} for {shape[0]} rows" if shape[0] != 1 else starts)  # fmt: skip
        if mask is not None:
            bad_argument(_WHERE, "attention_mask", "None beside cu_seq_lens_q", shown(mask))
        for name, value in beside.items():
            if name == "cu_seq_lens_k" and value is not None and value.tolist() != starts:
                bad_argument(_WHERE, name, f"cu_seq_lens_q, {starts}", value.tolist())
            elif name != "cu_seq_lens_k" and value is not None and value < max(lengths, default=0):
                bad_argument(_WHERE, name, f"at least the longest sequence ({max(lengths)})", int(value))
        return lengths

    @staticmethod
    def _packed(positions: Tensor) -> tuple[Tensor | None, list[int] | None]:
        """Rows and lengths, as of _rows, of the sequences in positions [B, L]."""
        if positions.size(1) <= 1:  # of generate(): no wait for a GPU
            return None, None
        begins = torch.ones_like(positions, dtype=torch.bool)
        begins[:, 1:] = positions[:, 1:] <= positions[:, :-1]
        starts = begins.reshape(-1).nonzero().squeeze(1).tolist()
        if len(starts) == positions.size(0):
            return None, None
        ends = [*starts[1:], positions.numel()]
        return torch.arange(positions.numel(), device=positions.device), [b - a for a, b in zip(starts, ends)]

    def _plan(self, x: Tensor, rows: Tensor | None, new: list[int] | None, positions: Tensor | None, phase: str | None,
              want_kl: bool) -> tuple[Tensor, SequencePlan]:  # fmt: skip
        attention = self.layers[0].self_attn
        if rows is None:
            return x, attention.plan(x.shape[:2], x.dtype, x.device, positions=positions, phase=phase, want_kl=want_kl)
        packed = x.flatten(0, 1).index_select(0, rows)
        if positions is not None:
            positions = positions.reshape(-1).index_select(0, rows)
        starts = torch.tensor([0, *accumulate(new)])
        return packed, attention.plan(packed.shape[:1], x.dtype, x.device, cu_seqlens=starts, positions=positions,
                                      phase=phase, want_kl=want_kl)  # fmt: skip

    @staticmethod
    def _padded(y: Tensor, rows: Tensor | None, shape: torch.Size) -> Tensor:
        """[B, L, d_model] again, zeros for padding."""
        if rows is None:
            return y.view(shape)
        return y.new_zeros(shape[0] * shape[1], shape[2]).index_copy(0, rows, y).view(shape)


class GatedSparseAttentionForCausalLM(GatedSparseAttentionPreTrainedModel, GenerationMixin):
    accepts_loss_kwargs = True  # what Trainer asks for before it gives num_items_in_batch
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: GatedSparseAttentionConfig):
        super().__init__(config)
        self.model = GatedSparseAttentionModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *more) -> None:
        # The package's own model, where it is tied, has one name for both.
        embedding = state_dict.get(prefix + "model.embed_tokens.weight")
        if self.config.tie_word_embeddings and embedding is not None:
            state_dict.setdefault(prefix + "lm_head.weight", embedding)  # in a copy
        super()._load_from_state_dict(state_dict, prefix, *more)

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, past_key_values: GatedSparseCache | None = None,
        inputs_embeds: Tensor | None = None, labels: Tensor | None = None, use_cache: bool | None = None,
        output_hidden_states: bool | None = None, output_attentions: bool | None = None,
        cu_seq_lens_q: Tensor | None = None, cu_seq_lens_k: Tensor | None = None, max_length_q: int | None = None,
        max_length_k: int | None = None, logits_to_keep: int | Tensor = 0, phase: str | None = None,
        want_kl: bool | None = None, num_items_in_batch: int | Tensor | None = None,
    ) -> GatedSparseCausalLMOutput:  # fmt: skip
        """want_kl None: in training mode with labels, where an indexer is at work; its loss is then part of `loss`,
        and reaches the indexer alone. num_items_in_batch: how many labels all micro-batches of a step have; `loss` is
        then this one's share, so that the shares add up to the step's mean: of the indexer's loss too, each
        micro-batch weighed by its labels."""
        if num_items_in_batch is not None and labels is None:
            bad_argument(_WHERE, "num_items_in_batch", "None without labels", num_items_in_batch)
        self._require_one_device()
        if want_kl is None:
            at_work = self.config.sparse_attention and phase != "dense"
            want_kl = self.training and labels is not None and at_work
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache,
            output_hidden_states=output_hidden_states, output_attentions=output_attentions,
            cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k, max_length_q=max_length_q,
            max_length_k=max_length_k, phase=phase, want_kl=want_kl,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size,
                                      num_items_in_batch=num_items_in_batch)  # fmt: skip
            if outputs.indexer_loss is not None:
                share = 1 if num_items_in_batch is None else (labels[..., 1:] != IGNORED).sum() / num_items_in_batch
                loss = loss + outputs.indexer_loss * share
        return GatedSparseCausalLMOutput(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states,
            indexer_loss=outputs.indexer_loss,
        )  # fmt: skip

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs) -> None:
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            bad_argument("generate", "cache_implementation", "None, as the model has a cache of its own", repr(kind))
        for name in ("cache_config", "max_cache_len"):
            if (value := getattr(generation_config, name, None)) is not None:
                bad_argument("generate", name, "None, as the model has a cache of its own, which grows", repr(value))
        if generation_config.use_cache is None:  # with which transformers makes a cache and forgets that it has one
            generation_config.use_cache = model_kwargs["use_cache"] = True
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = GatedSparseCache()
        # Over a cache of all of the text transformers would read it from the middle, or once more. A mask of ones alone
        # is no longer there, but its length.
        mask, cache = model_kwargs.get("attention_mask"), model_kwargs.get("past_key_values")
        whole = getattr(generation_config, "_mask_length", None) if mask is None else mask.size(1)
        if isinstance(cache, GatedSparseCache) and whole is not None and 0 < cache.seen >= whole:
            bad_argument("generate", "past_key_values", f"a cache of fewer tokens than the whole text ({whole}, by the "
                         "mask), of which at least one is new; crop(-n) forgets n", f"one of {cache.seen}")  # fmt: skip
