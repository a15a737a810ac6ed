"""A model as a folder in the shape of Hugging Face, the one that the program reads and writes: config.json and
model.safetensors (or, for reading, the shards that model.safetensors.index.json names)."""

import json
import os
from pathlib import Path

import torch
from torch import Tensor

from ._errors import bad_argument, bad_file
from .config_json import config_to_dict, read_config
from .model import GatedSparseForCausalLM
from .weight_files import INDEX, WEIGHTS, read_weights

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _replace(folder: Path, name: str, write) -> None:
    """In one step: written beside its place and renamed."""
    temporary = folder / f".{name}.{os.getpid()}"
    try:
        write(temporary)
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def _check_dtype(where: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in _TYPES:
        bad_argument(where, "dtype", f"{', '.join(map(str, _TYPES))} or None", repr(dtype))


def _whole_state(model: GatedSparseForCausalLM) -> dict[str, Tensor]:
    """The tensors by a folder's names: torch.compile adds to them, of the model and of parts of it. What load_model
    would refuse, or what is but a part of a tensor, is refused here, before a folder is written."""
    found = {name.replace("_orig_mod.", ""): tensor for name, tensor in model.state_dict().items()}
    with torch.device("meta"):
        wanted = GatedSparseForCausalLM(model.config).state_dict()
    for name in sorted(wanted.keys() ^ found.keys()):
        expected = f"{'a' if name in wanted else 'no'} parameter '{name}', by its configuration"
        bad_argument("save_model", "model", expected, "none" if name in wanted else "one (adapters are merged before)")
    for name, tensor in found.items():
        if type(tensor) is not Tensor or tensor.is_meta or tensor.shape != wanted[name].shape:
            kind = type(tensor).__name__ if type(tensor) is not Tensor else "meta" if tensor.is_meta else "tensor"
            bad_argument("save_model", "model", f"a plain, whole tensor '{name}' of shape {list(wanted[name].shape)} "
                         "(save_sharded_model gathers shards)", f"a {kind} of {list(tensor.shape)}")  # fmt: skip
    return found


def save_model(model: GatedSparseForCausalLM, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Makes the folder where it is not there. dtype None: the weights' own; the running mean is always float64."""
    from safetensors.torch import save_file  # only folders need it

    model = getattr(model, "_orig_mod", model)  # torch.compile's
    if not isinstance(model, GatedSparseForCausalLM):
        bad_argument("save_model", "model", "a GatedSparseForCausalLM", type(model).__name__)
    _check_dtype("save_model", dtype)
    folder, found = Path(folder), _whole_state(model)
    if (folder / INDEX).exists():
        bad_file(folder, f"a folder without {INDEX}, whose shards this file would contradict", "one with it")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = dtype or model.output_weight().dtype
    state = {
        name: tensor.to("cpu", torch.float64 if _is_mean(name) else dtype).contiguous() for name, tensor in found.items()
    }
    values = config_to_dict(model.config, str(dtype).removeprefix("torch."))
    _replace(folder, WEIGHTS, lambda file: save_file(state, file, metadata={"format": "pt"}))
    _replace(folder, "config.json", lambda file: file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8"))


def save_sharded_model(model: GatedSparseForCausalLM, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """save_model of a model whose parameters FSDP2 has sharded: every rank calls it, one tensor after another is
    gathered, and rank 0, whose memory must hold all of them, writes the folder before any rank goes on."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    state, first = {}, dist.get_rank() == 0
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if first:
            state[name.replace("_orig_mod.", "")] = whole.cpu()
    if first:
        with torch.device("meta"):
            gathered = GatedSparseForCausalLM(model.config)
        gathered.load_state_dict(state, assign=True)
        save_model(gathered, folder, dtype)
    dist.barrier()


def _is_mean(name: str) -> bool:
    return name.endswith(".indexer.mean_variance")


def load_model(
    folder: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> GatedSparseForCausalLM:
    """The model in evaluation mode, as a pass in training mode moves the running means; model.train() for training.
    dtype None: as stored. Every tensor of the file must be the model's, and every one of the model's there."""
    _check_dtype("load_model", dtype)
    folder = Path(folder)
    config, state = read_config(folder), read_weights(folder)
    state = {name: tensor for name, tensor in state.items() if not name.endswith(".rotary_emb.inv_freq")}
    types = {tensor.dtype for name, tensor in state.items() if not _is_mean(name)}
    if len(types) != 1 or not types <= set(_TYPES):
        bad_file(folder, "weights of one floating-point type", ", ".join(sorted(map(str, types))) or "none")
    if config.tie_embeddings and "lm_head.weight" in state:
        head = state.pop("lm_head.weight")
        if not torch.equal(head, state.get("model.embed_tokens.weight", head)):
            bad_file(folder, "'lm_head.weight' to be the embedding's, as embeddings are tied", "another")
    with torch.device("meta"):
        model = GatedSparseForCausalLM(config)
    wanted = model.state_dict()
    for name in sorted(wanted.keys() ^ state.keys()):
        came = "none" if name in wanted else "one more"
        bad_file(folder, f"a tensor for each parameter of the model, '{name}' {'too' if name in wanted else 'not'}", came)
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            bad_file(folder, f"'{name}' of shape {list(wanted[name].shape)}", list(tensor.shape))
        if _is_mean(name) and tensor.dtype != torch.float64:
            bad_file(folder, f"'{name}' in float64", tensor.dtype)
    dtype = dtype or types.pop()
    state = {name: t.to(device, t.dtype if _is_mean(name) else dtype) for name, t in state.items()}
    model.load_state_dict(state, assign=True)
    return model.eval()
