"""One rank of tests/python/test_distributed.py: steps of models under policies of FSDP2's mixed precision, the same
rows on every rank. Arguments: cases by name, run()'s, and the file for what came."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_state as fsdp_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.utils._pytree import tree_leaves

import gated_sparse_attention as gsa
from gated_sparse_attention import attention
from gated_sparse_attention.config_json import config_to_dict

mask_is_affordable = attention.mask_is_affordable
collect_grad_tensors = getattr(fsdp_state, "collect_grad_tensors", None)


def by_tree_flatten(output):
    """As torch before pytorch's PR 174692 finds the tensors of a result: it looks into no dataclass."""
    return [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]


def packages_own(config):
    made = gsa.GatedSparseForCausalLM(config).train()

    def step(model, tokens):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:], want_kl=True, checkpoint_activations=True)
        (loss.sum / loss.count + loss.kl.sum()).backward()
        return loss.sum.item(), *loss.kl.tolist()

    return made, step


def of_transformers(config):
    made = gsa.huggingface.GatedSparseAttentionForCausalLM(
        gsa.huggingface.GatedSparseAttentionConfig.from_dict(config_to_dict(config))
    ).train()
    made.gradient_checkpointing_enable()

    def step(model, tokens):
        out = model(tokens, labels=tokens)
        out.loss.backward()
        return out.loss.item(), out.indexer_loss.item()

    return made, step


def run(config, policy, *, make="packages_own", steps=3, masks=True, old_torch=False):
    """masks False: none is kept, as in long sequences, so layers that share a selection select once more."""
    attention.mask_is_affordable = mask_is_affordable if masks else lambda *sizes: False
    if collect_grad_tensors is not None:
        fsdp_state.collect_grad_tensors = by_tree_flatten if old_torch else collect_grad_tensors
    torch.manual_seed(5)
    model, step = globals()[make](config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, **policy)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if hasattr(model, "loss"):
        register_fsdp_forward_method(model, "loss")
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    tokens = torch.randint(0, config.vocab_size, (2, 97))
    for _ in range(steps):
        losses.append(step(model, tokens))
        without = [name for name, p in model.named_parameters() if p.grad is None]
        assert not without, without
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: mean.clone() for name, mean in model.named_buffers()}


def main(source, target):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = torch.load(source, weights_only=False)
    found = {name: run(config, policy, **options) for name, (config, policy, options) in cases.items()}
    if dist.get_rank() == 0:
        torch.save(found, target)
    dist.destroy_process_group()
    os._exit(0)  # as examples/train_fsdp.py, which says why


main(*sys.argv[1:])
