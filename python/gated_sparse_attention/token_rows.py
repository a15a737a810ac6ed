"""Rows of tokens out of a `gsa tokenize` folder, packed and cut at the ends of documents, for a training loop of one's
own; several ranks take shares of a step's rows.

    rows = TokenRows("data/book", length=1024)
    batch = rows.batch(step, count=16, rank=rank, ranks=ranks)
    loss = model.loss(batch.tokens, batch.targets, cu_seqlens=batch.cu_seqlens)
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ._errors import bad_argument, bad_file
from .json_file import cannot_open, read_json
from .loss import IGNORED

_WHERE = "TokenRows"


@dataclass(frozen=True)
class PackedRows:
    """tokens and targets int64 [T], targets -100 where a document ends; cu_seqlens int64 [sequences + 1]."""

    tokens: Tensor
    targets: Tensor
    cu_seqlens: Tensor


@lru_cache(maxsize=2)  # a step may lie across two epochs
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


def _mapped(folder: Path, name: str, kind: str, count: int) -> np.ndarray:
    file = folder / name
    try:
        size = file.stat().st_size
        if size != count * np.dtype(kind).itemsize:
            bad_file(file, f"{count * np.dtype(kind).itemsize} bytes, as dataset.json says", size)
        return np.memmap(file, kind, "r")
    except OSError as error:
        cannot_open(file, error)


class TokenRows:
    """Rows of `length` tokens and the one after each, in an order that follows from (seed, epoch): not that of
    `gsa train`. Shards are mapped, not read; their checksums are for `gsa eval` and `gsa train` to check.

    vocab_size; bos and eos, the marks that documents stand between; len(): how many rows an epoch has."""

    def __init__(self, folder: str | Path, length: int, seed: int = 0):
        self.length, self.seed = length, seed
        if length < 1:
            bad_argument(_WHERE, "length", "at least 1", length)
        folder = Path(folder)
        if not (folder / "dataset.json").is_file():
            bad_file(folder, "a dataset (a folder with dataset.json; make one with: gsa tokenize)", "none")
        about = read_json(folder / "dataset.json")
        if not isinstance(about, dict) or (about.get("format"), about.get("version")) != ("gsa-dataset", 1):
            bad_file(folder / "dataset.json", "a gsa-dataset of version 1", "another")
        self.vocab_size, self.shards, self.rows = about["vocab_size"], [], []
        for n, shard in enumerate(about["shards"]):
            tokens = _mapped(folder, shard["tokens_file"], f"<u{about['token_bytes']}", shard["tokens"])
            self.shards.append((tokens, _mapped(folder, shard["documents_file"], "<i8", shard["documents"])))
            self.rows += [(n, start) for start in range(0, len(tokens) - length, length)]
        if not self.rows:
            bad_argument(_WHERE, "length", f"fewer than a shard of {folder} has tokens ({about['tokens']} in all)", length)
        tokens, ends = self.shards[0]
        self.bos, self.eos = int(tokens[0]), int(tokens[ends[0] - 1])

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, step: int, count: int, rank: int = 0, ranks: int = 1) -> PackedRows:
        """This rank's share of a step's `count` rows, one epoch after another."""
        if count < 1 or count % ranks:
            bad_argument(_WHERE, "count", f"a positive multiple of the ranks ({ranks})", count)
        tokens, targets, starts = [], [], [0]
        for number in range(step * count + rank, (step + 1) * count, ranks):
            epoch, place = divmod(number, len(self))
            shard, start = self.rows[_order(self.seed, epoch, len(self))[place]]
            ids, ends = self.shards[shard]
            row = torch.from_numpy(ids[start : start + self.length + 1].astype(np.int64))
            inner = slice(*np.searchsorted(ends, (start, start + self.length), "right"))
            cuts = torch.from_numpy(ends[inner] - start)
            tokens.append(row[:-1])
            targets.append(row[1:].index_fill(0, cuts - 1, IGNORED))  # a document's last token predicts nothing
            starts += [(len(tokens) - 1) * self.length + end for end in (*cuts.tolist(), self.length)]
        return PackedRows(torch.cat(tokens), torch.cat(targets), torch.tensor(starts).unique())
