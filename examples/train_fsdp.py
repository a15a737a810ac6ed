#!/usr/bin/env python3
"""Trains a gated sparse model on several GPUs by torch's own engine: FSDP2, AdamW, torch.distributed.checkpoint.

    gsa tokenize book.txt --split blank-lines --output data/book
    torchrun --nproc-per-node 8 examples/train_fsdp.py --data data/book --output runs/fsdp --preset small \\
        --dense 2000 --warmup 200 --sparse 1000
    torchrun ... the same again               goes on from the newest checkpoint, on any number of ranks
    gsa generate runs/fsdp/model --prompt "The keeper"

Weights, moments and sums of gradients are fp32; the model computes in --precision. docs/distributed.md explains it.
"""

import argparse
import json
import math
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

import gated_sparse_attention as gsa
from gated_sparse_attention.config_json import config_to_dict
from gated_sparse_attention.token_rows import TokenRows


def prepare(options, config: gsa.ModelConfig, device: torch.device, mesh) -> gsa.GatedSparseForCausalLM:
    """The model, every block sharded by itself, the same on every rank whatever their number."""
    torch.manual_seed(options.seed)
    model = gsa.GatedSparseForCausalLM(config).to(device).train()
    low = torch.bfloat16 if options.precision == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
        if block.self_attn.indexer is not None:  # V-bar follows the whole batch
            block.self_attn.indexer.reduce_totals = dist.all_reduce
    fully_shard(model, mesh=mesh, mp_policy=policy)
    register_fsdp_forward_method(model, "loss")
    return model


def make_optimizer(model: gsa.GatedSparseForCausalLM, options) -> torch.optim.AdamW:
    groups = [{"params": group["params"], "rate": options.indexer_lr if group["kind"] == "indexer" else 1.0,
               "kind": group["kind"], "weight_decay": 0.1 if group["decay"] else 0.0}
              for group in model.parameter_groups()]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95))
    # State of what is still frozen, too: a checkpoint has the same tensors in every phase, and resumes into any.
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter),
                                      "exp_avg_sq": torch.zeros_like(parameter)}  # fmt: skip
    return optimizer


def phase_of(step: int, options) -> str:
    return "dense" if step < options.dense else "warmup" if step < options.dense + options.warmup else "sparse"


def train_step(model, optimizer, data: TokenRows, step: int, options, device: torch.device) -> dict:
    rank, ranks, phase = dist.get_rank(), dist.get_world_size(), phase_of(step, options)
    batch = data.batch(step, options.rows, rank, ranks)
    for kind in ("base", "gate", "indexer"):
        model.set_learning(kind, (kind == "indexer") if phase == "warmup" else (kind != "indexer" or phase == "sparse"))
    kl = {}
    if phase != "dense":
        sample = gsa.KlSample(options.kl_share, step * ranks + rank)
        kl = dict(want_kl=True, kl_support="all", kl_sample=sample)
    loss = model.loss(batch.tokens.to(device), batch.targets.to(device), cu_seqlens=batch.cu_seqlens, phase=phase,
                      deterministic=False, checkpoint_activations=options.checkpoint_activations, **kl)  # fmt: skip
    zero = torch.zeros((), device=device)
    parts = torch.stack([loss.sum.detach(), loss.count, zero if loss.kl is None else loss.kl.detach().sum() / ranks])
    dist.all_reduce(parts)
    # FSDP takes the mean of the ranks' gradients. Of the KL that is right, as ranks have equally many tokens.
    objective = zero if phase == "warmup" else loss.sum * (ranks / parts[1])
    (objective if loss.kl is None else objective + loss.kl.sum()).backward()

    total = options.dense + options.warmup + options.sparse
    rise = min((step + 1) / max(total // 50, 1), 1)
    lr = options.lr * rise * (0.55 + 0.45 * math.cos(math.pi * step / total))
    for group in optimizer.param_groups:
        group["lr"] = lr * group["rate"]
    for of_indexer in (False, True):  # two losses, two norms: one must not shrink the other
        kinds = [group for group in optimizer.param_groups if (group["kind"] == "indexer") == of_indexer]
        torch.nn.utils.clip_grad_norm_([p for group in kinds for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return {"step": step, "phase": phase, "loss": (parts[0] / parts[1]).item(), "kl": parts[2].item()}


def state_of(model, optimizer) -> dict:
    """By reference: loading into it is loading into the model."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}


def require_same_model(folder: Path, config: gsa.ModelConfig) -> None:
    """Checkpoints fit one model; rows may be of another --length."""
    file = folder / "config.json"
    before, now = json.loads(file.read_text()) if file.is_file() else {}, config_to_dict(config)
    for key in sorted((before.keys() | now.keys()) - {"max_position_embeddings"}):
        if before.get(key) != now.get(key):
            raise SystemExit(f"--output {folder}: expected the model of its checkpoints ({key} {before.get(key)}), "
                             f"got {now.get(key)}; --system, --preset, --index-every and --data say which")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder that `gsa tokenize` made")
    parser.add_argument("--output", type=Path, required=True, help="checkpoints, losses.jsonl and the model")
    parser.add_argument("--preset", default="tiny", help="sizes; the vocabulary is the dataset's")
    parser.add_argument("--system", default="gsa", choices=("gsa", "sparse-only", "gated-only", "standard"))
    parser.add_argument("--index-every", type=int, default=1, help="n: every n-th layer has an indexer")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=16, help="of a step, over all ranks")
    for phase, steps in (("dense", 100), ("warmup", 20), ("sparse", 50)):
        parser.add_argument(f"--{phase}", type=int, default=steps, help="steps of this phase")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--indexer-lr", type=float, default=10.0, help="times --lr, for the indexer")
    parser.add_argument("--kl-share", type=float, default=0.25, help="of the queries that teach the indexer, 1/n")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--checkpoint-activations", action="store_true")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("expected to be started by torchrun, as torchrun --nproc-per-node 1 examples/train_fsdp.py ...")

    device_type = "cuda" if torch.cuda.is_available() and gsa.functional.built_with_cuda() else "cpu"
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    ranks, device = dist.get_world_size(), torch.device(device_type)
    if device_type == "cuda":
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
    if options.rows % ranks:
        raise SystemExit(f"--rows: expected a multiple of the ranks ({ranks}), got {options.rows}")
    try:
        data = TokenRows(options.data, options.length, options.seed)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--data, --length: {error}") from None
    config = gsa.ModelConfig.preset(options.preset).apply(options.system)
    config.index_layers = gsa.every_nth_layer(config.layers, options.index_every)
    config.vocab_size, config.max_positions = data.vocab_size, options.length
    config.bos_id, config.eos_ids = data.bos, [data.eos]
    steps = options.dense + options.warmup + options.sparse
    if not config.attention.sparse and steps > options.dense:
        raise SystemExit(f"--warmup, --sparse: expected 0 for --system {options.system}, which has no indexer")

    model = prepare(options, config, device, init_device_mesh(device_type, (ranks,)))
    optimizer = make_optimizer(model, options)
    done = sorted(options.output.glob("checkpoints/step-*/.metadata"))  # written last
    first = 0
    if not done and dist.get_rank() == 0:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "config.json").write_text(json.dumps(config_to_dict(config), indent=2) + "\n")
    if done:
        require_same_model(options.output, config)
        dcp.load(state_of(model, optimizer), checkpoint_id=done[-1].parent)
        first = int(done[-1].parent.name.removeprefix("step-"))
    for step in range(first, steps):
        report = train_step(model, optimizer, data, step, options, device)
        if dist.get_rank() == 0:
            print(json.dumps(report), flush=True)
            with open(options.output / "losses.jsonl", "a") as log:
                log.write(json.dumps(report) + "\n")
        if (step + 1) % options.save_every == 0 or step + 1 == steps:
            dcp.save(state_of(model, optimizer), checkpoint_id=options.output / f"checkpoints/step-{step + 1:08}")
    gsa.save_sharded_model(model, options.output / "model")
    if dist.get_rank() == 0:
        for file in options.data.glob("tokenizer*"):
            shutil.copy(file, options.output / "model")
    dist.destroy_process_group()
    if device_type == "cpu":
        # gloo's threads outlive it. One that lets go of a tensor while Python ends aborts the process (pytorch issue
        # 190489), which therefore ends without.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
