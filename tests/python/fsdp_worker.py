"""One rank of tests/python/test_distributed.py: steps of models under policies of FSDP2's mixed precision. Arguments:
cases by name, (configuration, how many steps, the policy's arguments), and the file for what came."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

import gated_sparse_attention as gsa


def run(config, steps, policy):
    torch.manual_seed(5)
    model = gsa.GatedSparseForCausalLM(config).train()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, **policy)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    register_fsdp_forward_method(model, "loss")
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    tokens = torch.randint(0, config.vocab_size, (2, 97))
    for _ in range(steps):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:], want_kl=True, checkpoint_activations=True)
        (loss.sum / loss.count + loss.kl.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.sum.item(), *loss.kl.tolist()))
    return losses, {name: mean.clone() for name, mean in model.named_buffers()}


def main(source, target):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: run(*case) for name, case in torch.load(source, weights_only=False).items()}
    if dist.get_rank() == 0:
        torch.save(found, target)
    dist.destroy_process_group()
    os._exit(0)  # as examples/train_fsdp.py, which says why


main(*sys.argv[1:])
