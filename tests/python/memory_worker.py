"""Run by tests/python/test_memory.py with a folder and the name of a pass: the pass over 32K tokens, and by how many
MiB it raised the peak of memory. One pass a process, as a peak hides the lower ones after it."""

import re
import sys
from functools import partial
from pathlib import Path

import torch
from configs import model

import gated_sparse_attention as gsa

LENGTH = 32768


def peak():
    """Of this process alone: ru_maxrss would begin with what the tests' own process had when it started this one."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[1]) / 1024


def train(**options):
    made = gsa.GatedSparseForCausalLM(CONFIG).train()
    x = torch.randint(0, 131, (1, LENGTH))
    loss = made.loss(x, x, checkpoint_activations=True, **{"want_kl": True} | options)
    (loss.sum / loss.count + (0 if loss.kl is None else loss.kl.sum())).backward()
    return loss.sum.isfinite().item()


def kept():
    """Where gradients are wanted and it takes no more than four times q, a layer keeps its mask: here 128 MiB."""
    layer, answers = gsa.GatedSparseAttention, []
    rule = layer._keeps_mask
    layer._keeps_mask = staticmethod(lambda *args: answers.append(rule(*args)) or answers[-1])
    return train() and True in answers


def generate(**options):
    made = gsa.huggingface.GatedSparseAttentionForCausalLM.from_pretrained(sys.argv[1])
    x = torch.randint(0, 131, (1, LENGTH))
    mask = torch.ones_like(x)
    mask[:, :100] = 0  # left padding
    new = 1 if options else 3
    options |= dict(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
    return made.generate(x, attention_mask=mask, **options).size(1) == LENGTH + new


def pairs():
    """What the test is to catch, in its smallest form but bits."""
    return torch.ones(LENGTH, LENGTH, dtype=torch.uint8).any()


CHANGES = {
    "shared": dict(layers=2, index_layers=[0]),
    "kept": dict(head_size=128, value_gate="none", output_gate="headwise"),
    "dense": dict(heads=1),
    "warmup": dict(heads=1),
}
SIZES = dict(layers=1, d_model=32, heads=2, kv_heads=1, indexer__heads=1, budget__base=64, budget__max=64)
CONFIG = model(**SIZES | CHANGES.get(sys.argv[2], {}))
CONFIG.max_positions = 2 * LENGTH
gsa.huggingface  # which takes memory of its own, once
gsa.save_model(gsa.GatedSparseForCausalLM(CONFIG), sys.argv[1])
PASSES = {
    "selected": train,
    "shared": train,
    "kept": kept,
    "all": partial(train, kl_support="all", kl_sample=gsa.KlSample(1 / 64, 0)),
    "dense": partial(train, phase="dense", want_kl=False),
    "warmup": partial(train, phase="warmup", kl_sample=gsa.KlSample(1 / 64, 0)),
    "generate": generate,
    "no-cache": partial(generate, use_cache=False),
    "pairs": pairs,
}
before = peak()
assert PASSES[sys.argv[2]]()
print(peak() - before)
