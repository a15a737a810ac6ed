"""The tensors of a model folder: one model.safetensors, or shards that model.safetensors.index.json names; read as
strictly as the program reads them (src/model/weight_files.cc)."""

import re
from pathlib import Path

from torch import Tensor

from ._errors import bad_file
from .json_file import cannot_open, read_json, shown_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def _read_file(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError  # only folders need it
    from safetensors.torch import load_file

    try:
        file.open("rb").close()  # which says why it cannot
        return load_file(file)
    except OSError as error:
        cannot_open(file, error)
    except SafetensorError as error:
        bad_file(file, "a safetensors file", str(error))


def read_index(file: Path) -> dict[str, set[str]]:
    """Which tensors each file holds. Files must be plain names, so that an index cannot reach out of its folder."""
    index = read_json(file)
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        bad_file(file, "an object with an object 'weight_map'", shown_json(index))
    for key in index.keys() - {"weight_map", "metadata"}:
        bad_file(file, "the keys weight_map and metadata", shown_json(key))
    names_of_file: dict[str, set[str]] = {}
    for name, place in index["weight_map"].items():
        if not isinstance(place, str) or place in ("", ".", "..") or re.search(r"[/\\\0]", place):
            bad_file(file, f"a plain file name for {shown_json(name)}", shown_json(place))
        names_of_file.setdefault(place, set()).add(name)
    return names_of_file


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Of whichever of the two is there; both or neither is an error. The shards must hold exactly what the index places
    in them."""
    single, sharded = (folder / WEIGHTS).exists(), (folder / INDEX).exists()
    if single == sharded:
        words = ("one of", "and", "both") if single else ("", "or", "neither")
        bad_file(folder, f"{words[0]} {WEIGHTS} {words[1]} {INDEX}".lstrip(), words[2])
    if single:
        return _read_file(folder / WEIGHTS)
    state: dict[str, Tensor] = {}
    for place, names in sorted(read_index(folder / INDEX).items()):
        shard = _read_file(folder / place)
        for name in sorted(shard.keys() - names):
            bad_file(folder / place, f"the tensors that {INDEX} places there", f"also {shown_json(name)}")
        for name in sorted(names - shard.keys()):
            bad_file(folder / place, f"tensor {shown_json(name)}, by {INDEX}", "none")
        state |= shard
    return state
