"""One rank of a training with strategy="auto", whose host, step and device sleep as long as they are told.

auto_rank.py OUT ADDRESS KEYS PHASE... ; torch.distributed's environment says which rank it is. A phase is JSON:

    name        of the phase; each rank writes OUT/NAME.RANK.json after it
    host_s      seconds a batch of each rank's host; the engine's are in its own file
    step_s      of each rank's training step
    sync        whether a step ends with an all_reduce, as DistributedDataParallel's
    until       a file; epochs go on until it is there. Without it, until all ranks have decided
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler
from torchvision import transforms

from ddlp import DDLPLoader, Device, Goal, ImageArrays, load_operators
from tests.sleeping_engine import OPERATOR

BATCHES = 150  # of an epoch of each rank
EPOCHS = 8  # at most


@dataclass(frozen=True)
class Phase:
    """See above."""

    name: str
    host_s: list[float]
    step_s: list[float]
    sync: bool = True
    until: str = ""


def all_decided(loader: DDLPLoader) -> bool:
    """Whether all ranks have made a decision."""
    found = torch.tensor(float(loader.decision is not None))
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return bool(found)


def over(phase: Phase, decided: bool) -> bool:
    """Whether a rank ends its phase in mid-epoch. Those in step go on to the epoch's end."""
    return Path(phase.until).exists() if phase.until else decided and not phase.sync


def train(loader: DDLPLoader, phase: Phase, rank: int, decided: Path) -> dict[str, Any]:
    """Train until the phase is over. Returns the decisions in turn, and what each was made from. Writes ``decided`` before."""
    history: list[str] = []
    measured: list[Any] = []
    csd = 0
    for epoch in range(EPOCHS if not phase.until else 10**6):
        loader.set_epoch(epoch)
        for _ in loader:
            time.sleep(phase.step_s[rank])
            if phase.sync:
                dist.all_reduce(torch.zeros(1))
            decision = loader.decision
            if decision is not None and decision.why not in history[-1:]:
                assert loader.measured is not None
                history.append(decision.why)
                measured.append(asdict(loader.measured))
                decided.write_text(decision.why)
            if over(phase, decision is not None):
                break
        csd += loader.report().batches_csd
        if over(phase, False) if phase.until else all_decided(loader):
            break
    return {
        "history": history, "measured": measured, "csd": csd, "notes": loader.report().notes,
        "threads": [one.name for one in threading.enumerate() if one.name == "ddlp-ranks"],
    }  # fmt: skip


def main() -> None:
    """Train the phases."""
    out, address, keys = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    speed = out / f"{rank}.sleep"
    os.environ["DDLP_SLEEP"] = str(speed)  # of the operator, in this process
    told: list[str] = []
    tell = out / f"{rank}.told"

    def showwarning(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))
        tell.write_text("\n".join(told))

    warnings.simplefilter("always")
    warnings.showwarning = showwarning
    handler = logging.Handler()
    handler.emit = lambda record: showwarning(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ddlp").addHandler(handler)
    count = BATCHES * ranks
    images = np.zeros((count, 1, 1, 3), np.uint8)
    prepare = load_operators(OPERATOR).prepare(host_s=0.0)
    data = ImageArrays(images, range(count), transforms.Compose([prepare, transforms.PILToTensor()]))
    for phase in (Phase(**json.loads(one)) for one in sys.argv[4:]):
        speed.write_text(repr(phase.host_s[rank]))
        sampler = DistributedSampler(data, seed=7)
        loader = DDLPLoader(
            data, 1, sampler=sampler, strategy="auto", csd=Device(address, keys, name="board"), seed=1,
            goal=Goal(remember=False),
        )  # fmt: skip
        result = train(loader, phase, rank, out / f"{phase.name}.{rank}.decided")
        (out / f"{phase.name}.{rank}.json").write_text(json.dumps({**result, "told": told}))


if __name__ == "__main__":
    main()
