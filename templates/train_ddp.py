r"""Train on several accelerators with DistributedDataParallel: NCCL on GPUs, gloo on CPUs; else as train_imagenet.py.

    torchrun --nproc-per-node 2 templates/train_ddp.py --small
    torchrun --nproc-per-node 8 templates/train_ddp.py --data /imagenet --model resnet152 --strategy wrr --workers 8 \
        --amp bf16 --epochs 90 --csd csd0 --checkpoint resnet152.pt

Each rank has a loader over its DistributedSampler's part; all ranks of a machine share one engine (docs/ranks.md). --batch-size
and --workers are of one rank; the learning rate grows with the number of ranks.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, Subset

from common import Epoch, Run, finish, flags, parse, turns
from csd_engine.errors import EngineError
from ddlp import DDLPError
from train_imagenet import BATCH_SIZES, MODELS, add_flags, make_task
from training import Task, evaluate, train, val_loader


def over_ranks(run: Run) -> Run:
    """Return one run for all ranks: the sums of samples, batches by side and processor time, and the slowest rank's seconds."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, run.epochs)
    run.epochs = [_together(of_one_epoch) for of_one_epoch in zip(*every, strict=True)]
    return run


def _together(epochs: Sequence[Epoch]) -> Epoch:
    def total(what: str) -> Any:
        known = [getattr(epoch, what) for epoch in epochs if getattr(epoch, what) is not None]
        return sum(known) if known else None

    first, ranks = epochs[0], len(epochs)
    added = {name: total(name) for name in ("samples", "batches_cpu", "batches_csd", "host_cpu_s", "rate_cpu", "rate_csd")}
    rates = (added["rate_cpu"] or 0) + (added["rate_csd"] or 0)
    return dataclasses.replace(
        first,
        **added,
        seconds=max(epoch.seconds for epoch in epochs),
        waiting_s=total("waiting_s") / ranks,
        loss=total("loss") / ranks,
        bound_s=added["samples"] / rates if rates else None,
    )


def accuracy(plain: nn.Module, task: Task, options: Any) -> float:
    """Return the top-1 accuracy on the val set. Each rank has a part of its own, so every image counts once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for buffer in plain.buffers():  # BatchNorm's means differ between ranks since the last step
        dist.broadcast(buffer, 0)
    part = Subset(task.val, range(rank, len(task.val), ranks))
    counts = torch.tensor(evaluate(plain, task, val_loader(part, options), options), device=options.device)
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    return float(right / seen)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train on all ranks; the first one prints and reports."""
    parser = flags(__doc__, list(MODELS))
    add_flags(parser)
    options = parse(parser, BATCH_SIZES, arguments)
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 templates/train_ddp.py ...")
    on_gpu = torch.device(options.device).type == "cuda"
    if on_gpu:
        options.device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(options.device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        make_task("train_ddp", options)  # one rank makes the sample data
    dist.barrier()
    task = make_task("train_ddp", options)
    task = dataclasses.replace(task, lr=task.lr * ranks, sampler=lambda data, seed: DistributedSampler(data, seed=seed))
    wrap = partial(DistributedDataParallel, device_ids=[options.device] if on_gpu else None)
    runs: list[Run] = []
    failed = False
    try:
        for strategy, seed in turns(options):
            run, training = train(task, options, strategy, seed, rank=rank, ranks=ranks, wrap=wrap)
            run.accuracy = accuracy(training.plain, task, options)
            runs.append(over_ranks(run))
    except (DDLPError, EngineError) as error:  # a device that no rank can reach: the runs before it count
        sys.stderr.write(f"train_ddp, rank {rank}: {error}\n")  # at once: with PYTHONUNBUFFERED print mixes the ranks' lines
        failed = True
    if failed and rank > 0:
        time.sleep(5)  # with the first rank that fails torchrun ends all of them, and rank 0 has the report to write
    status = finish("train_ddp", options, runs) if rank == 0 and runs else int(failed)
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
