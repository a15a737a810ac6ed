"""Reads the files that gsa_bench_tensors writes: what a trained layer's attention worked on."""

import pathlib

import torch
from gpu_inputs import Layer, Shape, fixed

FORMAT = "gsa-bench-tensors"
NEEDED = ("q", "k", "v", "index_q", "index_k", "index_w")


def files_of(paths):
    """Files, with folders replaced by the files of layers in them. A ValueError says which path holds none."""
    files = []
    for path in map(pathlib.Path, paths):
        found = sorted(path.glob("layer-*.safetensors")) if path.is_dir() else [path] if path.is_file() else []
        if not found:
            raise ValueError(f"expected files of gsa_bench_tensors or a folder of them, got {str(path)!r}")
        files += found
    return files


def open_file(path):
    """The safetensors file, checked to be one of gsa_bench_tensors with an indexer at work."""
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"expected a file of gsa_bench_tensors, got {str(path)!r}: {error}") from error
    if (file.metadata() or {}).get("format") != FORMAT:
        raise ValueError(f"expected a file of gsa_bench_tensors, got {str(path)!r}, which is another's")
    if missing := [name for name in NEEDED if name not in file.keys()]:
        raise ValueError(f"{path}: expected tensors of an indexer (--phase warmup or sparse), got no {missing[0]!r}")
    return file


def shape_of(path):
    """The Shape alone, without reading the tensors."""
    file = open_file(path)
    q, k, index_q = (file.get_slice(name).get_shape() for name in ("q", "k", "index_q"))
    return Shape(q[0], q[1], q[2], k[2], q[3], index_q[2], index_q[3])


def label_of(path, metadata):
    """The folder, which says model and length, and the layer."""
    return f"{pathlib.Path(path).resolve().parent.name}:{metadata['layer']}"


def budget_of(metadata, device):
    mean = torch.tensor([float(metadata["mean_variance"])], dtype=torch.float64, device=device)
    numbers = {name: int(metadata[name]) for name in ("k_base", "k_min", "k_max")}
    return dict(budget=metadata["budget"], mean_variance=mean, **numbers)


def read_layer(path, device, k=None):
    """A Layer in bfloat16 (float16 where the file is). k: a fixed budget of so many keys instead of the model's."""
    file = open_file(path)
    metadata = file.metadata()
    stored = file.get_slice("q").get_dtype()
    dtype = torch.float16 if stored == "F16" else torch.bfloat16

    def get(name):
        return file.get_tensor(name).to(device, dtype).contiguous() if name in file.keys() else None

    layer = Layer(
        label=label_of(path, metadata),
        attention=tuple(get(name) for name in ("q", "k", "v")),
        index=tuple(get(name) for name in ("index_q", "index_k", "index_w", "index_bias")),
        index_scale=float(metadata["index_scale"]),
        form=metadata["form"],
        budget=fixed(k) if k else budget_of(metadata, device),
        gate=get("gate"),
    )
    rounded = f", rounded from {stored}" if stored not in ("BF16", "F16") else ""
    layer.facts = (f"{metadata['model']}, layer {metadata['layer']} of {metadata['layers']}, phase "
                   f"{metadata['phase']}, trained at {metadata['trained_length']} tokens{rounded}")  # fmt: skip
    return layer
