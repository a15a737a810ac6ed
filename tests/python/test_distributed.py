"""Several processes (gloo, on the CPU) give what one gives: context parallelism, and examples/train_fsdp.py."""

import copy
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from configs import CASES, model
from conftest import ROOT

import gated_sparse_attention as gsa
from gated_sparse_attention import _transformers
from gated_sparse_attention.context_parallel import ContextShard

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")


def launch(ranks, *arguments):
    """torchrun of a Python file; what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *map(str, arguments)],
        text=True, capture_output=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- Context parallelism


SHARDED = {  # case of configs.py, type, whether activations are computed again, options
    "gsa": ("gsa", torch.float64, False, dict(want_kl=True)),
    "gsa-float32": ("gsa", torch.float32, False, dict(want_kl=True)),
    "all-keys-checkpointed": ("gsa-tied-yarn", torch.float64, True, dict(want_kl=True, kl_support="all")),
    "dense-below": ("dense-below", torch.float64, False, dict(want_kl=True)),
    "all-dense": ("dense-below-all", torch.float64, False, dict(want_kl=True)),
    "warmup": ("gsa", torch.float64, False, dict(phase="warmup", want_kl=True)),
    "gated-only": ("gated-only", torch.float64, False, dict()),
    "shared": ("shared", torch.float64, True, dict(want_kl=True)),
    "shared-all-keys": ("shared-relu-learned", torch.float64, False, dict(want_kl=True, kl_support="all")),
    "shared-dense-below": ("shared-dense-below", torch.float64, False, dict(want_kl=True)),
}


def unsharded(made, x, targets, again, options):
    made = copy.deepcopy(made).train()
    result = made.model(x, checkpoint_activations=again, **options)
    objective = torch.nn.functional.cross_entropy(made.logits(result.hidden).flatten(0, 1), targets.flatten())
    if result.kl is not None:
        objective = objective + result.kl.sum()
    objective.backward()
    gradients = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    return {"hidden": result.hidden.detach(), "objective": objective.detach(), "gradients": gradients,
            "buffers": dict(made.named_buffers())}  # fmt: skip


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """All of them by one start of two processes: the cases, and what came."""
    folder, cases = tmp_path_factory.mktemp("sharded"), {}
    torch.manual_seed(3)
    for name, (case, dtype, again, options) in SHARDED.items():
        made = gsa.GatedSparseForCausalLM(model(**CASES[case])).to(dtype)
        for buffer in made.buffers():
            buffer.fill_(0.02)
        x, targets = (torch.randint(0, 131, (2, 96)) for _ in range(2))
        cases[name] = dict(made=made, x=x, targets=targets, again=again, options=options)
    torch.save(cases, folder / "cases")
    launch(2, ROOT / "tests/python/context_worker.py", folder / "cases", folder / "found")
    return cases, torch.load(folder / "found")


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_sequences_are_the_whole(name, sharded):
    case, ours = sharded[0][name], sharded[1][name]
    theirs = unsharded(**case)
    exact = unsharded(**case | {"made": copy.deepcopy(case["made"]).double()})
    flat = lambda x: {key: value for key, value in x.items() if torch.is_tensor(value)} | x["gradients"] | x["buffers"]
    ours, theirs, exact = flat(ours), flat(theirs), flat(exact)
    assert ours.keys() == theirs.keys()
    for key, true in exact.items():
        if theirs["hidden"].dtype == torch.float64:
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-9, atol=1e-12, msg=lambda m: f"{key}: {m}")
        else:  # twice the error of the whole, beside some roundings where that happens to have none
            error = lambda y: (y - true).norm().item()
            assert error(ours[key]) <= 2 * error(theirs[key]) + 1e-6 * true.norm().item(), key


def test_shards():
    shards = [ContextShard(24, rank, 3) for rank in range(3)]
    x = torch.arange(48).view(2, 24)
    assert torch.equal(torch.cat([shard.take(x) for shard in shards], 1).sort(1).values, x)
    visible = [(shard.positions() + 1).sum() for shard in shards]
    assert len(set(map(int, visible))) == 1  # as many pairs of query and key on every rank
    with pytest.raises(ValueError, match=r"argument 'length': expected a multiple of 2 ranks \(6\), got 20"):
        ContextShard(20, 0, 3)
    for rank, ranks in ((3, 3), (-1, 3), (-1, -1)):
        with pytest.raises(ValueError, match=rf"argument 'rank': expected one of the group's {max(ranks, 0)} ranks, .*, got {rank}"):
            ContextShard(24, rank, ranks)
    with pytest.raises(ValueError, match="argument 'x'"):
        shards[0].take(x[:, 1:])
    layer = gsa.GatedSparseAttention(model().attention)
    with pytest.raises(ValueError, match="argument 'context': expected a shard of 9 tokens"):
        layer(torch.zeros(1, 9, 48), context=shards[0])
    with pytest.raises(ValueError, match="argument 'cu_seqlens': expected none beside a context"):
        layer(torch.zeros(8, 48), context=shards[0], cu_seqlens=torch.tensor([0, 8]))
    with pytest.raises(ValueError, match="argument 'kl_sample': expected none beside a context"):
        layer(torch.zeros(1, 8, 48), context=shards[0], want_kl=True, kl_support="all", kl_sample=gsa.KlSample(0.5))


# ---- examples/train_fsdp.py

STEPS = ["--dense", 2, "--warmup", 2, "--sparse", 4, "--save-every", 4, "--kl-share", 1, "--length", 128, "--rows", 4]


@pytest.fixture(scope="module")
def data(tmp_path_factory, program):
    folder = tmp_path_factory.mktemp("fsdp")
    lines = [f"the keeper of lamp {n * n % 97} walks to the harbour\n" + "\n" * (n % 7 == 0) for n in range(120)]
    (folder / "text.txt").write_text("".join(lines), encoding="utf-8")
    program("tokenize", "text.txt", "--split", "blank-lines", "--output", "data", cwd=folder)
    return folder / "data"


@pytest.fixture(scope="module")
def train(data):
    """train(ranks, folder, *options): the reports of all steps in the folder so far."""

    def run(ranks, folder, *options):
        launch(ranks, ROOT / "examples/train_fsdp.py", "--data", data, "--output", folder, *STEPS, *options)
        return [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]

    return run


@pytest.fixture(scope="module")
def by_two(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("by_two")
    return folder, train(2, folder, "--precision", "fp32")


def test_two_ranks_give_the_losses_of_one(train, by_two, tmp_path):
    one, two = train(1, tmp_path, "--precision", "fp32"), by_two[1]
    assert [report["phase"] for report in one] == ["dense"] * 2 + ["warmup"] * 2 + ["sparse"] * 4
    assert one[-1]["loss"] < one[0]["loss"] - 1 and 0 < one[-1]["kl"] < one[2]["kl"]
    for ours, theirs in zip(two, one, strict=True):
        assert ours["phase"] == theirs["phase"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["kl"] == pytest.approx(theirs["kl"], rel=1e-4)


def test_a_resumed_run_has_the_same_losses(train, by_two, tmp_path):
    """To the bit, as two ranks were at work before and after."""
    folder, reports = by_two
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints/step-00000008")
    again = train(2, tmp_path, "--precision", "fp32")
    assert again == reports + reports[4:]
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (folder / "model" / name).read_bytes()


def test_a_run_goes_on_with_another_number_of_ranks(train, by_two, tmp_path):
    folder, reports = by_two
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints/step-00000008")
    resumed = train(1, tmp_path, "--precision", "fp32")[len(reports) :]
    assert [report["step"] for report in resumed] == [4, 5, 6, 7]
    for ours, theirs in zip(resumed, reports[4:], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["kl"] == pytest.approx(theirs["kl"], rel=1e-4)
    ours, theirs = (gsa.load_model(path / "model").state_dict() for path in (tmp_path, folder))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")


def test_a_share_of_the_queries_teaches_the_indexer(train, by_two, tmp_path):
    """A quarter, the default. Ranks draw for themselves; until the sparse phase draws move no loss but the
    indexer's."""
    found = train(2, tmp_path, "--precision", "fp32", "--kl-share", 0.25)
    for ours, theirs in zip(found, by_two[1], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-2 if ours["phase"] == "sparse" else 1e-5)
    first, whole = found[2]["kl"], by_two[1][2]["kl"]  # the same weights: an estimate of the same mean
    assert first == pytest.approx(whole, rel=0.2) and first != whole and 0 < found[-1]["kl"] < first


def test_threads_of_gloo_that_are_late_do_no_harm(data, tmp_path):
    """They outlive the process group, and let go of tensors while Python ends; here for certain."""
    late = tmp_path / "late.py"
    late.write_text("""import runpy, sys, torch
def leave_work():
    for _ in range(5000):
        x = torch.zeros(4096)
        torch.distributed.all_reduce(x, async_op=True)
torch.distributed.destroy_process_group = leave_work
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
""")
    launch(2, late, ROOT / "examples/train_fsdp.py", "--data", data, "--output", tmp_path / "run", "--dense", 1, "--warmup",
           0, "--sparse", 0, "--length", 128, "--rows", 2)  # fmt: skip
    assert gsa.load_model(tmp_path / "run/model").config.vocab_size == 258


POLICIES = {  # of FSDP2's mixed precision: torch casts what goes into a block, and accelerate what comes out, too
    "own": dict(cast_forward_inputs=False),
    "default": dict(),
    "everything": dict(output_dtype=torch.bfloat16),
}
SHARDED_MODELS = {  # case of configs.py, fsdp_worker.run()'s options
    "gsa": ("gsa", dict()),
    "shared": ("shared", dict()),
    "shared-without-masks": ("shared", dict(masks=False)),
    "shared-older-torch": ("shared", dict(old_torch=True)),
    **({"transformers": ("shared", dict(make="of_transformers"))} if _transformers.usable() else {}),
}


@pytest.fixture(scope="module")
def by_policies(tmp_path_factory):
    """What came of steps under each policy, on one rank and on two."""
    folder, found = tmp_path_factory.mktemp("policies"), []
    torch.save({f"{name}-{policy}": (model(**CASES[case]), POLICIES[policy], options)
                for name, (case, options) in SHARDED_MODELS.items() for policy in POLICIES}, folder / "cases")  # fmt: skip
    for ranks in (1, 2):
        launch(ranks, ROOT / "tests/python/fsdp_worker.py", folder / "cases", folder / "found")
        found.append(torch.load(folder / "found"))
    return found


@pytest.mark.parametrize("name", SHARDED_MODELS)
def test_no_policy_of_mixed_precision_casts_a_table(name, by_policies):
    """On two ranks, which have the same rows, all of it is what it is on one."""
    for found in by_policies:
        (losses, means), (default, moved), (cast, after) = (found[f"{name}-{policy}"] for policy in POLICIES)
        assert default == losses and losses[-1][0] < losses[0][0]
        for buffer, mean in means.items():
            assert mean.dtype == torch.float64 and mean != -1 and torch.equal(mean, moved[buffer]), buffer
            torch.testing.assert_close(after[buffer], mean, rtol=0.05, atol=0)
        for ours, theirs in zip(cast, losses, strict=True):
            assert ours == pytest.approx(theirs, rel=0.05)
    one, two = by_policies
    for policy in POLICIES:
        for ours, theirs in zip(two[f"{name}-{policy}"][0], one[f"{name}-{policy}"][0], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)


def test_an_older_torch_finds_the_same_gradients(by_policies):
    for found in by_policies:
        for policy in POLICIES:
            (losses, means), (older, same) = found[f"shared-{policy}"], found[f"shared-older-torch-{policy}"]
            assert older == losses and all(torch.equal(same[name], mean) for name, mean in means.items())


def fails(*command, **environment):
    """What a command says that must fail, in one line and without a traceback."""
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, check=False, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **environment})  # fmt: skip
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()[-1]


def test_mistakes_of_the_example_are_explained(by_two, data, tmp_path):
    script, folder = ROOT / "examples/train_fsdp.py", by_two[0]
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    assert fails(sys.executable, script, "--data", data, "--output", tmp_path).startswith("expected to be started by torchrun")
    said = fails(sys.executable, script, "--data", tmp_path / "nowhere", "--output", tmp_path, **alone)
    assert said.startswith("--data, --length: ") and said.endswith("make one with: gsa tokenize), got none")
    exported = (folder / "model/config.json").read_bytes()
    for options, changed in (
        (("--system", "sparse-only"), r"\(index_budget inverse\), got fixed; --system, "),
        (("--system", "standard", "--warmup", 0, "--sparse", 0), r"\(architectures \['GatedSparseAttentionForCausalLM'\]\), got "),
        (("--index-every", 2), r"\(index_layers None\), got \[0, 2\]; --system, "),
    ):
        said = fails(sys.executable, script, "--data", data, "--output", folder, *STEPS, *options, **alone)
        assert re.search(r"^--output .*: expected the model of its checkpoints " + changed, said), said
    assert (folder / "model/config.json").read_bytes() == exported


def test_the_exported_folder_is_a_model(by_two, data, program):
    folder = by_two[0] / "model"
    made = gsa.load_model(folder)
    assert made.config.bos_id == 256 and made.config.eos_ids == [257] and made.output_weight().dtype == torch.float32
    assert all(buffer > 0 for buffer in made.buffers())
    assert "perplexity" in program("eval", folder, "--data", data, "--measure", "perplexity")
    assert program("generate", folder, "-n", 4, "--prompt", "the keeper")


def test_bf16_with_fp32_masters(train, by_two, tmp_path):
    reports = train(2, tmp_path, "--precision", "bf16", "--checkpoint-activations")
    for ours, theirs in zip(reports, by_two[1], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02) and ours["loss"] != theirs["loss"]
    assert gsa.load_model(tmp_path / "model").output_weight().dtype == torch.float32


def test_blocks_that_share_a_selection_are_sharded_like_others(train, tmp_path):
    runs = []
    for ranks in (1, 2):
        options = ("--precision", "fp32", "--index-every", 2, *(("--checkpoint-activations",) if ranks == 2 else ()))
        runs.append(train(ranks, tmp_path / str(ranks), *options))
    one, two = runs
    assert one[-1]["loss"] < one[0]["loss"] - 1 and 0 < one[-1]["kl"] < one[2]["kl"]
    for ours, theirs in zip(two, one, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["kl"] == pytest.approx(theirs["kl"], rel=1e-4)
    assert gsa.load_model(tmp_path / "2/model").config.index_layers == [0, 2]


def test_second_derivatives_through_a_gather_are_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = torch.randn(1, 4, 3, requires_grad=True)
        gathered = ContextShard.of(4).gather(x)
        (gradient,) = torch.autograd.grad(gathered.pow(3).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
