"""Inputs of the GPU benchmark: a layer's tensors, and selections of which one knows how much neighbours share."""

import torch

TILE = 16  # queries over which union/k is counted

gsa = torch.ops.gsa


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def attention(tokens, heads=32, kv_heads=8, size=128):
    """q, k, v of one sequence, [1, tokens, heads, size]."""
    return normal(1, tokens, heads, size), normal(1, tokens, kv_heads, size), normal(1, tokens, kv_heads, size)


def walk(tokens, heads, size, spacing):
    """Vectors that turn slowly: random ones every `spacing` tokens, and on the way from one to the next between
    them. Neighbours then ask for much the same keys, as in trained models. 0: all independent."""
    if spacing == 0:
        return normal(1, tokens, heads, size)
    anchors = torch.randn(tokens // spacing + 2, heads, size, device="cuda")
    out = torch.empty(1, tokens, heads, size, device="cuda", dtype=torch.bfloat16)
    for begin in range(0, tokens, 65536):
        t = torch.arange(begin, min(begin + 65536, tokens), device="cuda")
        n, part = t // spacing, ((t % spacing) / spacing * (torch.pi / 2)).view(-1, 1, 1)
        out[0, begin : begin + len(t)] = anchors[n] * part.cos() + anchors[n + 1] * part.sin()
    return out


def indexer(tokens, spacing, heads=4, size=64):
    """index_q, index_k, index_w, index_bias of one sequence."""
    q = walk(tokens, heads, size, spacing)
    return q, normal(1, tokens, size), normal(1, tokens, heads).sigmoid(), torch.zeros_like(q[0, 0, :, 0])


def union_over_k(bits):
    """Keys that a tile of queries selects together over what one selects; bits bool [queries, keys]."""
    tiles = bits.view(-1, TILE, bits.size(-1))
    return (tiles.any(1).sum() / (tiles.sum() / TILE)).item()


def unpack(words):
    """int32 [queries, words] as bool [queries, positions]."""
    return ((words.unsqueeze(-1) >> torch.arange(32, device="cuda", dtype=torch.int32)) & 1).bool().flatten(1)


def pack(bits):
    """bool [queries, positions] as int32 words; positions a multiple of 32."""
    words = torch.zeros(bits.size(0), bits.size(1) // 32, device="cuda", dtype=torch.int32)
    for i in range(32):
        words |= bits[:, i::32].to(torch.int32) << i
    return words


def selected_overlap(index, budget, tokens):
    """union/k of what select() chooses, from 1,024 queries in the middle of the sequence."""
    q, k, w, bias = index
    first, count = tokens // 2, min(1024, tokens // 2)
    rows = slice(first, first + count)
    words = gsa.select(
        q[:, rows], k[:, : first + count], w[:, rows], bias, scale=q.size(-1) ** -0.5,
        q_position=torch.tensor([first]), **budget,
    )[0]  # fmt: skip
    return union_over_k(unpack(words[0]))


def overlapping_indexer(tokens, budget, wanted=3.0):
    """The indexer whose selections come nearest to union/k = wanted, and the union/k that came out."""
    best = None
    for spacing in (16, 32, 64, 128, 256, 512, 1024):
        index = indexer(tokens, spacing)
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
    mask = torch.zeros(1, tokens, (tokens + 31) // 32, device="cuda", dtype=torch.int32)
    positions = torch.arange(mask.size(2) * 32, device="cuda")
    overlaps = []
    step = 1024
    for begin in range(0, tokens, step):
        t = torch.arange(begin, min(begin + step, tokens), device="cuda").unsqueeze(1)
        seen = positions <= t
        tile_first = t[::TILE]
        candidates = torch.rand(len(tile_first), len(positions), device="cuda") < pool * k / (tile_first + 1)
        candidates = candidates.repeat_interleave(TILE, 0)[: len(t)]
        share = torch.where(t < pool * k, k / (t + 1), 1 / pool)  # where all visible keys are candidates
        bits = candidates & seen & (torch.rand(len(t), len(positions), device="cuda") < share)
        bits |= positions == t
        mask[0, begin : begin + len(t)] = pack(bits)
        if begin >= tokens // 2:
            overlaps.append(union_over_k(bits))
    return mask, sum(overlaps) / len(overlaps)
