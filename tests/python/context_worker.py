"""One rank of tests/python/test_distributed.py: models' losses over sequences that are sharded over all ranks, their
gradients added up. Arguments: a file of cases, and the file that rank 0 writes their results to."""

import os
import sys

import torch
import torch.distributed as dist

from gated_sparse_attention.context_parallel import ContextShard


def run(made, x, targets, again, options):
    shard = ContextShard.of(x.size(1))
    result = made.train().model(shard.take(x), context=shard, checkpoint_activations=again, **options)
    hidden = shard.gather(result.hidden).detach()
    logits = made.logits(result.hidden)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), shard.take(targets).flatten(), reduction="sum")
    objective = loss / targets.numel()
    if result.kl is not None:  # a mean over the rank's queries
        objective = objective + result.kl.sum() / shard.ranks
    objective.backward()
    gradients = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    for total in (objective := objective.detach(), *gradients.values()):
        dist.all_reduce(total)
    for name, mean in made.named_buffers():
        first = mean.clone()
        dist.broadcast(first, 0)
        assert torch.equal(mean, first), f"{name}: ranks differ"
    return {"hidden": hidden, "objective": objective, "gradients": gradients, "buffers": dict(made.named_buffers())}


def main(source, target):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: run(**case) for name, case in torch.load(source, weights_only=False).items()}
    if dist.get_rank() == 0:
        torch.save(found, target)
    dist.destroy_process_group()
    os._exit(0)  # as examples/train_fsdp.py, which says why


main(*sys.argv[1:])
