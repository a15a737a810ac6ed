"""The package on a GPU: models beside themselves on the CPU, generate() beside the program, a step of training."""

import copy
import json

import pytest
import torch
from configs import CASES, model

import gated_sparse_attention as gsa
from gated_sparse_attention import functional as F

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not F.built_with_cuda(), reason="no GPU, or a library without the CUDA operators"
)

SYSTEMS = ["sparse-only", "gated-only", "gsa", "gsa-tied-yarn", "relu", "headwise", "dense-below", "biases-and-norms",
           "shared"]  # fmt: skip


def make(case):
    made = gsa.GatedSparseForCausalLM(model(**CASES[case]))
    for buffer in made.buffers():
        buffer.fill_(0.02)
    return made.eval()


def random_tokens(batch=2, length=96, vocabulary=131):
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def error(found, exact):
    return ((found.double().cpu() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("case", SYSTEMS)
def test_logits_and_gradients_are_as_near_as_on_the_cpu(case):
    """To those in float64. A selection that rounding changes counts on both sides."""
    exact, x = make(case).double(), random_tokens()

    def run(device, dtype):
        other = copy.deepcopy(exact).to(device, dtype)
        y = other(x.to(device))
        y.float().square().mean().backward()
        return y.detach(), {name: p.grad for name, p in other.named_parameters() if p.grad is not None}

    logits, gradients = run("cpu", torch.float64)
    ours, ours_of = run(DEVICE, torch.bfloat16)
    plain, plain_of = run("cpu", torch.bfloat16)
    assert ours.device.type == DEVICE and ours.dtype == torch.bfloat16
    assert error(ours, logits) < 2 * error(plain, logits) + 1e-3
    assert ours_of.keys() == gradients.keys()
    for name, gradient in gradients.items():
        if gradient.norm() > 0:
            assert error(ours_of[name], gradient) < 3 * error(plain_of[name], gradient) + 1e-2, name


def test_a_step_teaches_model_and_indexer():
    made, x = make("gsa").to(DEVICE, torch.bfloat16).train(), random_tokens().to(DEVICE)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        loss = made.loss(x[:, :-1].contiguous(), x[:, 1:].contiguous(), want_kl=True)
        total = loss.sum / loss.count + loss.kl.sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    assert losses[-1] < losses[0] - 0.1, losses
    taught = {name: p.grad.norm().item() for name, p in made.named_parameters() if ".indexer." in name}
    assert len(taught) >= 4 and max(taught.values()) > 0, taught


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="torch was built without NCCL")
def test_packed_sequences_under_fsdp(alone):
    """Whose hook moves cu_seqlens to the GPU before the pass sees it."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    made, x, gradients = make("gsa").to(DEVICE), random_tokens().to(DEVICE).flatten(), []
    starts, targets = torch.tensor([0, 50, 150, 192]), x.roll(-1)
    sharded, made = copy.deepcopy(made), made.to(torch.bfloat16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in sharded.model.layers:
        fully_shard(block, mesh=alone, mp_policy=policy)
    fully_shard(sharded, mesh=alone, mp_policy=policy)
    register_fsdp_forward_method(sharded, "loss")
    for each in (made, sharded):
        loss = each.loss(x, targets, cu_seqlens=starts, want_kl=True)
        (loss.sum / loss.count + loss.kl.sum()).backward()
        gradients.append({name: p.grad for name, p in each.named_parameters()})
    for name, gradient in gradients[1].items():
        plain = gradients[0][name].double().cpu()
        if plain.norm() > 0:
            assert error(gradient.full_tensor(), plain) < 1e-2, name


def test_packed_sequences_whose_starts_lie_on_the_gpu():
    made, x = make("gsa").to(DEVICE, torch.bfloat16), random_tokens().to(DEVICE).flatten()
    starts = torch.tensor([0, 50, 150, 192])
    with torch.no_grad():
        expected = made(x, cu_seqlens=starts)
        assert torch.equal(made(x, cu_seqlens=starts.to(DEVICE)), expected)
        torch._dynamo.reset()
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x, cu_seqlens=starts.to(DEVICE), max_length=100), expected)


def test_one_graph():
    made, x = make("gsa").to(DEVICE, torch.bfloat16), random_tokens().to(DEVICE)
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), made(x))


def test_generate_writes_what_the_program_writes(trained, program):
    transformers = pytest.importorskip("transformers", minversion="5.11", reason="transformers 5.11 or newer is needed")
    # Every key is selected: rounding would change a selection of few, and with it the text of so small a model.
    path, prompt = trained("gsa", k_base=128, k_min=128, k_max=128), "the keeper of the lamp walks to the har"
    printed = program("generate", path, "-n", 40, "--temperature", 0, "--ignore-eos", "--json", "--device", DEVICE,
                      "--prompt", prompt)  # fmt: skip
    lines = map(json.loads, filter(None, printed.splitlines()))
    expected = next(line["tokens"] for line in lines if "tokens" in line)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(DEVICE)
    ids = torch.tensor([[256, *prompt.encode()]], device=DEVICE)

    def short_of_best(text):
        """By how much the tokens of a text fall short of the best one, where all before them are the text's."""
        with torch.no_grad():
            logits = loaded(torch.cat([ids, text[None]], 1), use_cache=False).logits[0, ids.size(1) - 1 : -1].float()
        return (logits.max(1).values - logits.gather(1, text[:, None])[:, 0]).max().item()

    # Products are joined in another way there, so tokens as good as each other may change places.
    assert short_of_best(torch.tensor(expected, device=DEVICE)) < 0.1
    for use_cache in (True, False):
        found = loaded.generate(ids, max_new_tokens=40, min_new_tokens=40, do_sample=False, eos_token_id=-1,
                                use_cache=use_cache)[0, ids.size(1) :]  # fmt: skip
        assert short_of_best(found) < 0.1
