"""A sample of queries for the indexer's loss, the same draws as the C++ side makes (src/model/indexer_kl_sample.h)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._errors import bad_argument

QUERY_TILE = 64  # positions
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class KlSample:
    """The loss of a share 1/n of the queries: tiles of 64 positions, drawn by a stratified sample."""

    share: float = 1.0
    seed: int = 0

    def parts(self) -> int:
        """n, where share is 1/n."""
        parts = round(1 / self.share) if self.share > 0 else 0
        if not 1 <= parts <= 1 << 20 or abs(self.share * parts - 1) > 1e-5:
            bad_argument("GatedSparseAttention", "kl_sample.share", "1/n with a whole n (1, 0.5, 0.25, ...)", self.share)
        return parts

    def derive(self, stream: int, step: int) -> "KlSample":
        """The same share with a seed of its own."""
        return KlSample(self.share, philox_bits(self.seed, stream, step))

    def tiles(self, lengths: list[int]) -> Tensor:
        """int64, ascending: of every `parts` consecutive tiles of these sequences one is drawn."""
        parts, total = self.parts(), sum(-(-length // QUERY_TILE) for length in lengths)
        drawn = []
        for stratum, first in enumerate(range(0, total, parts)):
            tile = first + int((philox_bits(self.seed, 0, stratum) >> 11) * 2.0**-53 * parts)
            if tile < total:
                drawn.append(tile)
        return torch.tensor(drawn, dtype=torch.int64)


def philox_bits(key: int, stream: int, step: int) -> int:
    """64 bits of Philox 4x32-10 under `key`, at the counter (stream, step)."""
    counter = [step & _WORD, step >> 32 & _WORD, stream & _WORD, stream >> 32 & _WORD]
    low, high = key & _WORD, key >> 32 & _WORD
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ low, b & _WORD, a >> 32 ^ counter[3] ^ high, a & _WORD]
        low, high = low + 0x9E3779B9 & _WORD, high + 0xBB67AE85 & _WORD
    return counter[0] << 32 | counter[1]
