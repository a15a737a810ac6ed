"""Inputs of the GPU benchmark: a layer's tensors, and selections of which one knows how much neighbours share."""

import dataclasses

import torch

TILE = 16  # queries over which union/k is counted

device = "cuda"  # of every tensor that is made here; bench/gpu.py --device cpu changes it
gsa = torch.ops.gsa


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=device, dtype=dtype)


def attention(tokens, heads=32, kv_heads=8, size=128, rows=1):
    """q, k, v of sequences of one length, [rows, tokens, heads, size]."""
    return tuple(normal(rows, tokens, n, size) for n in (heads, kv_heads, kv_heads))


def walk(tokens, heads, size, spacing, rows=1):
    """Vectors that turn slowly: random ones every `spacing` tokens, and on the way from one to the next between
    them. Neighbours then ask for much the same keys, as in trained models. 0: all independent."""
    if spacing == 0:
        return normal(rows, tokens, heads, size)
    out = torch.empty(rows, tokens, heads, size, device=device, dtype=torch.bfloat16)
    for row in out:
        anchors = torch.randn(tokens // spacing + 2, heads, size, device=device)
        for begin in range(0, tokens, 65536):
            t = torch.arange(begin, min(begin + 65536, tokens), device=device)
            n, part = t // spacing, ((t % spacing) / spacing * (torch.pi / 2)).view(-1, 1, 1)
            row[begin : begin + len(t)] = anchors[n] * part.cos() + anchors[n + 1] * part.sin()
    return out


def indexer(tokens, spacing, heads=4, size=64, rows=1):
    """index_q, index_k, index_w, index_bias."""
    q = walk(tokens, heads, size, spacing, rows)
    return q, normal(rows, tokens, size), normal(rows, tokens, heads).sigmoid(), torch.zeros_like(q[0, 0, :, 0])


# ---- distributions that random inputs do not have and trained ones do, or may have. Each takes the tensors of
# indexer() with index_scale = size ** -0.5, so that logits have mean 0 and deviation 1, and gives others.


def crowded(q, k, w, bias):
    """Logits of deviation 0.3 around a large bias: scores in a narrow band, which has few fp32 numbers."""
    return 0.3 * q, k, w, torch.full_like(bias, 6)


def saturated(q, k, w, bias):
    """Logits of deviation 16: nearly every sigmoid is 0 or 1, and a score is a sum of some of the weights."""
    return 16 * q, k, w, bias


def ties(q, k, w, bias):
    """64 different keys, each many times: as many exact ties as a text of few words has."""
    few = normal(64, k.size(-1))
    return q, few[torch.randint(64, k.shape[:2], device=device)], w, bias


def dominant(q, k, w, bias):
    """One head with all the weight: the others only break its ties."""
    w = torch.full_like(w, 2.0**-12)
    w[..., 0] = 1
    return q, k, w, bias


def constant(q, k, w, bias):
    """Logits of deviation 2**-18: the scores of a row differ in their last bits, if at all."""
    return 2.0**-18 * q, k, w, bias


KINDS = {kind.__name__: kind for kind in (crowded, saturated, ties, dominant, constant)}


def union_over_k(bits):
    """Keys that a tile of queries selects together over what one selects; bits bool [queries, keys]."""
    tiles = bits.view(-1, TILE, bits.size(-1))
    return (tiles.any(1).sum() / (tiles.sum() / TILE)).item()


def unpack(words):
    """int32 [queries, words] as bool [queries, positions]."""
    return ((words.unsqueeze(-1) >> torch.arange(32, device=words.device, dtype=torch.int32)) & 1).bool().flatten(1)


def pack(bits):
    """bool [queries, positions] as int32 words; positions a multiple of 32."""
    words = torch.zeros(bits.size(0), bits.size(1) // 32, device=device, dtype=torch.int32)
    for i in range(32):
        words |= bits[:, i::32].to(torch.int32) << i
    return words


def selected_overlap(index, budget, tokens, **options):
    """union/k of what select() chooses, from 1,024 queries in the middle of the first sequence. options: scale and
    form of the scores."""
    q, k, w, bias = index
    first, count = tokens // 2, min(1024, tokens // 2 // TILE * TILE)
    rows = slice(first, first + count)
    options = {"scale": q.size(-1) ** -0.5, **options}
    words = gsa.select(
        q[:1, rows], k[:1, : first + count], w[:1, rows], bias, q_position=torch.tensor([first]), **options, **budget
    )[0]
    return union_over_k(unpack(words[0]))


def overlapping_indexer(tokens, budget, wanted=3.0, **sizes):
    """The indexer whose selections come nearest to union/k = wanted, and the union/k that came out."""
    best = None
    for spacing in (16, 32, 64, 128, 256, 512, 1024) if wanted <= 3 else (1, 2, 4, 8, 16, 32, 64):
        index = indexer(tokens, spacing, **sizes)
        overlap = selected_overlap(index, budget, tokens)
        if best is None or abs(overlap - wanted) < abs(best[1] - wanted):
            best = (index, overlap)
        if overlap < wanted:
            break
    return best


def masks_with_union(tokens, k, ratio):
    """A mask [1, tokens, words] whose tiles of 16 queries have a union of about ratio * k keys at random
    positions, every query about k of them; and the union/k that came out (of the second half)."""
    # Each query draws each of pool * k candidates with probability 1 / pool: the union misses what nobody drew.
    low, high = 1.0, 4 * ratio
    for _ in range(50):
        pool = (low + high) / 2
        low, high = (pool, high) if pool * (1 - (1 - 1 / pool) ** TILE) < ratio else (low, pool)
    mask = torch.zeros(1, tokens, (tokens + 31) // 32, device=device, dtype=torch.int32)
    positions = torch.arange(mask.size(2) * 32, device=device)
    overlaps = []
    step = 1024
    for begin in range(0, tokens, step):
        t = torch.arange(begin, min(begin + step, tokens), device=device).unsqueeze(1)
        seen = positions <= t
        tile_first = t[::TILE]
        candidates = torch.rand(len(tile_first), len(positions), device=device) < pool * k / (tile_first + 1)
        candidates = candidates.repeat_interleave(TILE, 0)[: len(t)]
        share = torch.where(t < pool * k, k / (t + 1), 1 / pool)  # where all visible keys are candidates
        bits = candidates & seen & (torch.rand(len(t), len(positions), device=device) < share)
        bits |= positions == t
        mask[0, begin : begin + len(t)] = pack(bits)
        if begin >= tokens // 2:
            overlaps.append(union_over_k(bits))
    return mask, sum(overlaps) / len(overlaps)


def union_keys(mask):
    """Keys in the unions of all tiles of TILE queries of a mask [1, tokens, words], tokens a multiple of TILE."""
    words = mask[0].unflatten(0, (-1, TILE))
    union = words[:, 0].clone()
    for i in range(1, TILE):
        union |= words[:, i]
    return sum(int(unpack(part).sum()) for part in union.split(256))


# ---- all inputs of one layer


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    tokens: int
    heads: int
    kv_heads: int
    size: int
    index_heads: int
    index_size: int

    def __str__(self):
        return (f"{self.rows} x {self.tokens} tokens, {self.heads}/{self.kv_heads} heads of {self.size}, indexer "
                f"{self.index_heads} of {self.index_size}")  # fmt: skip


@dataclasses.dataclass
class Layer:
    """What the operators of one layer take. gate: of the last token, or None."""

    label: str
    attention: tuple  # q, k, v
    index: tuple  # index_q, index_k, index_w, index_bias or None
    index_scale: float
    form: str
    budget: dict
    gate: torch.Tensor | None = None
    facts: str = ""

    @property
    def shape(self):
        q, k, _ = self.attention
        return Shape(*q.shape[:3], k.size(2), q.size(3), *self.index[0].shape[2:])

    @property
    def scores(self):
        """As keyword arguments of operators that take attention's tensors too."""
        return dict(index_scale=self.index_scale, form=self.form)

    def select(self):
        return gsa.select(*self.index, scale=self.index_scale, form=self.form, **self.budget)

    def overlap(self):
        return selected_overlap(self.index, self.budget, self.shape.tokens, scale=self.index_scale, form=self.form)


def fixed(k):
    return dict(budget="fixed", k_base=k, k_min=1, k_max=k)


def random_layers(shape, k, wanted, kinds=()):
    """A layer of random tensors whose neighbours overlap ('random'), and the same with other scores by `kinds`."""
    budget, scale = fixed(k), shape.index_size**-0.5
    tensors = attention(shape.tokens, shape.heads, shape.kv_heads, shape.size, shape.rows)
    index, _ = overlapping_indexer(
        shape.tokens, budget, wanted, heads=shape.index_heads, size=shape.index_size, rows=shape.rows
    )
    layers = [Layer("random", tensors, index, scale, "sigmoid", budget)]
    layers += [Layer(kind, tensors, KINDS[kind](*index), scale, "sigmoid", budget) for kind in kinds]
    for layer in layers:
        layer.facts = f"k {k}, union/k {layer.overlap():.2f}"
    return layers
