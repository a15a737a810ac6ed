"""Run by tests/python/test_memory.py with a folder and the name of a pass: the pass over 32K tokens, and by how many MiB it
raised the peak of memory. One pass a process, as a peak hides the lower ones after it."""

import resource
import sys
from functools import partial

import torch
from configs import model

import gated_sparse_attention as gsa

LENGTH = 32768


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(**options):
    made = gsa.GatedSparseForCausalLM(CONFIG).train()
    x = torch.randint(0, 131, (1, LENGTH))
    loss = made.loss(x, x, checkpoint_activations=True, want_kl=True, **options)
    (loss.sum / loss.count + loss.kl.sum()).backward()
    return loss.sum.isfinite().item()


def generate():
    made = gsa.huggingface.GatedSparseAttentionForCausalLM.from_pretrained(sys.argv[1])
    x = torch.randint(0, 131, (1, LENGTH))
    mask = torch.ones_like(x)
    mask[:, :100] = 0  # left padding
    return made.generate(x, attention_mask=mask, max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0).size(1) == LENGTH + 3


SHARED = dict(layers=2, index_layers=[0]) if sys.argv[2] == "shared" else dict(layers=1)
CONFIG = model(**SHARED, d_model=32, heads=2, kv_heads=1, indexer__heads=1, budget__base=64, budget__max=64)
CONFIG.max_positions = 2 * LENGTH
gsa.huggingface  # which takes memory of its own, once
gsa.save_model(gsa.GatedSparseForCausalLM(CONFIG), sys.argv[1])
PASSES = {
    "selected": train,
    "shared": train,
    "all": partial(train, kl_support="all", kl_sample=gsa.KlSample(1 / 64, 0)),
    "generate": generate,
}
before = peak()
assert PASSES[sys.argv[2]]()
print(peak() - before)
