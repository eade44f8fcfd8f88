"""The script that torchrun runs in the tests: a tiny model with DistributedDataParallel, one DDLPLoader per rank.

train.py IMAGES OUT BACKEND DEVICE PHASE... ; each rank writes OUT/PHASE.RANK.json after each phase: labels and digests in the
order delivered.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchvision import transforms as T

from ddlp import DDLPLoader, ImageFiles
from ddlp.epoch.devices import Devices
from ddlp.epoch.executor import EpochExecutor
from ddlp.schedule.strategies.base import Strategy
from tests.engine_process import until

SEED, BATCH = 3, 4
DEVICE = "embedded engine"


def dataset(images: Path) -> ImageFiles:
    """Random draws, so that wrong keys are noticed. Each target is its image's number."""
    paths = sorted(map(str, images.glob("*.jpg")))
    transform = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])
    return ImageFiles(paths, list(range(len(paths))), transform)


def digest(image: torch.Tensor) -> str:
    return hashlib.blake2b(image.contiguous().cpu().numpy().tobytes(), digest_size=8).hexdigest()


def engine_of(loader: DDLPLoader) -> int | None:
    return next((place.engine.pid for place in loader._parts.offload.connections._places.values() if place.engine), None)


told: list[tuple[int, float]] = []  # measurements of batches that the engine has made for the other rank


def listen() -> None:
    """Record what this rank is told about the other rank."""
    measured = Devices.measured

    def listening(self: Devices, name: str, batches: Any) -> None:
        told.extend(batches)
        measured(self, name, batches)

    Devices.measured = listening  # type: ignore[method-assign]


def offered(run: EpochExecutor, known: bool) -> bool:
    """Whether the engine takes part: its speed is known, or one of its batches is ready."""
    return run.monitor.rates.device(DEVICE).known() if known else bool(run.ledger.ready_csd)


def main() -> None:
    images, out, backend, device, phases = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:]
    torch.set_num_threads(1)
    listen()
    # A host may make these few small batches before the engine's first one is ready. It would then rightly lease none.
    Strategy.worth_leasing = lambda self, device: True  # type: ignore[method-assign]
    if device == "cuda":  # gloo's ranks may share a GPU
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.distributed.init_process_group(backend)
    rank = torch.distributed.get_rank()
    data = dataset(images)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32 * 3, 1)).to(device))
    for epoch, phase in enumerate(phases):
        sampler = DistributedSampler(data, seed=7)
        strategy = phase.partition("-")[0]
        where = None if device == "cpu" else device
        options = {"record": out / f"recorded.{rank}"} if phase == "csd" else {}
        loader = DDLPLoader(data, BATCH, sampler=sampler, num_workers=1, strategy=strategy, seed=SEED, device=where, **options)
        loader.set_epoch(epoch)
        told.clear()
        labels, digests, pid = [], [], None
        for step, (x, y) in enumerate(loader):
            run = loader._last.executor
            if step == 0:
                until(partial(engine_of, loader), 120)
                pid = engine_of(loader)
            if phase in ("wrr", "mte") and step == 2:
                until(partial(offered, run, phase == "mte"), 120)
            if phase.endswith("-engine") and step == 2:
                torch.distributed.barrier()
                if rank == 0:
                    os.kill(pid, 9)
            assert x.device.type == y.device.type == device
            model(x).sum().backward()
            labels += y.tolist()
            digests += map(digest, x)
        report = loader.report()
        rate = run.monitor.rates.device(DEVICE)
        said = {
            "labels": labels, "digests": digests, "steps": step + 1, "engine": pid, "csd": report.batches_csd,
            "measured": rate.count, "ranks": rate.ranks, "told": len(told),
        }  # fmt: skip
        (out / f"{phase}.{rank}.json").write_text(json.dumps(said))
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
