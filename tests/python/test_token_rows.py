"""Rows of tokens out of folders that `gsa tokenize` makes."""

import itertools
import json
import shutil

import pytest
import torch
from configs import model

import gated_sparse_attention as gsa
from gated_sparse_attention.token_rows import TokenRows

LENGTH, BOS, EOS = 32, 256, 257


@pytest.fixture(scope="module")
def data(tmp_path_factory, program):
    folder = tmp_path_factory.mktemp("rows")
    lines = [f"lamp {n * n % 97}\n" + "\n" * (n % 3 == 0) for n in range(60)]
    (folder / "text.txt").write_text("".join(lines), encoding="utf-8")
    program("tokenize", "text.txt", "--split", "blank-lines", "--output", "data", cwd=folder)
    return folder / "data"


def all_tokens(data):
    return torch.frombuffer(bytearray((data / "tokens-00000.bin").read_bytes()), dtype=torch.uint16).long()


def test_an_epoch_has_every_row_once_and_documents_do_not_see_each_other(data):
    rows, ids = TokenRows(data, LENGTH), all_tokens(data)
    assert (rows.vocab_size, rows.bos, rows.eos) == (258, BOS, EOS) and len(rows) == (len(ids) - 1) // LENGTH
    batch = rows.batch(0, len(rows))
    seen = {tuple(row.tolist()) for row in batch.tokens.split(LENGTH)}
    assert seen == {tuple(ids[n * LENGTH : (n + 1) * LENGTH].tolist()) for n in range(len(rows))}
    starts = batch.cu_seqlens.tolist()
    assert starts[0] == 0 and starts[-1] == len(batch.tokens) and starts == sorted(set(starts))
    for a, b in itertools.pairwise(starts):
        tokens, targets = batch.tokens[a:b], batch.targets[a:b]
        assert BOS not in tokens[1:] and EOS not in tokens[:-1] and torch.equal(targets[:-1], tokens[1:])
        assert (targets[-1] == -100) == (tokens[-1] == EOS)


def test_epochs_differ_and_follow_from_the_seed(data):
    rows = TokenRows(data, LENGTH, seed=1)
    first, second = (rows.batch(n, len(rows)).tokens for n in range(2))
    assert not torch.equal(first, second) and torch.equal(first.sort().values, second.sort().values)
    assert torch.equal(TokenRows(data, LENGTH, seed=1).batch(1, len(rows)).tokens, second)
    assert not torch.equal(TokenRows(data, LENGTH, seed=2).batch(0, len(rows)).tokens, first)


def test_ranks_share_the_rows_of_a_step(data):
    rows = TokenRows(data, LENGTH)
    whole = rows.batch(3, 4).tokens.split(LENGTH)
    shares = [rows.batch(3, 4, rank, 2).tokens.split(LENGTH) for rank in range(2)]
    assert all(map(torch.equal, whole, [row for pair in zip(*shares) for row in pair]))


def test_a_model_takes_them(data):
    batch = TokenRows(data, LENGTH).batch(0, 4)
    config = model(layers=1)
    config.vocab_size = 258
    loss = gsa.GatedSparseForCausalLM(config).loss(batch.tokens, batch.targets, cu_seqlens=batch.cu_seqlens)
    assert loss.count == (batch.targets != -100).sum() < 4 * LENGTH and loss.sum.isfinite()


def test_mistakes_are_explained(data, tmp_path):
    with pytest.raises(ValueError, match=r"expected a dataset \(a folder with dataset.json; make one with: gsa tokenize\), got none"):
        TokenRows(tmp_path, LENGTH)
    with pytest.raises(ValueError, match="argument 'length': expected fewer than a shard of .* in all.*, got 100000"):
        TokenRows(data, 100000)
    with pytest.raises(ValueError, match="argument 'length': expected at least 1, got 0"):
        TokenRows(data, 0)
    with pytest.raises(ValueError, match=r"argument 'count': expected a positive multiple of the ranks \(2\), got 3"):
        TokenRows(data, LENGTH).batch(0, 3, 0, 2)
    folder = shutil.copytree(data, tmp_path / "data")
    with open(folder / "tokens-00000.bin", "ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match=r"tokens-00000.bin': expected \d+ bytes, as dataset.json says, got \d+"):
        TokenRows(folder, LENGTH)
    (folder / "tokens-00000.bin").unlink()
    with pytest.raises(FileNotFoundError, match="tokens-00000.bin': cannot open it"):
        TokenRows(folder, LENGTH)
    about = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(about | {"version": 2}))
    with pytest.raises(ValueError, match="dataset.json': expected a gsa-dataset of version 1, got another"):
        TokenRows(folder, LENGTH)
