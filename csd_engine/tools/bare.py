"""A bare Pillow loop: open, crop, resize, into a batch. An engine on this computer is measured against it.

`python -m csd_engine.tools.bare` reads one JSON object from standard input and prints one. The crops are the engine's own,
drawn before the clock starts. The loop itself uses nothing of csd_engine.

    {"paths": [...], "pipeline": {...}, "seed": 0, "epoch": 0, "items": [index, ...], "batch": 64, "processes": 1, "cpus": null}
    -> {"images": 640, "seconds": 2.5, "cpu_seconds": 2.4, "processes": 1, "pillow": "9.4.0"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import PIL

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.image_files import pillow_open
from csd_engine.errors import EngineError
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import Crop, Resize
from csd_engine.transforms.resample import FILTERS

__all__ = ["fill", "main", "measure"]

Box = Tuple[int, int, int, int]  # left, top, right, bottom
Task = Tuple[str, Box]


def fill(batch: np.ndarray, tasks: Sequence[Task], filter_number: int) -> None:
    """Fill the rows of `batch`, uint8 (n, height, width, 3), by the usual calls of Pillow."""
    size = (batch.shape[2], batch.shape[1])
    for row, (path, box) in enumerate(tasks):
        with pillow_open(path) as image:
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            batch[row] = np.asarray(rgb.crop(box).resize(size, filter_number))


def _task(path: str, index: int, pipeline: Pipeline, seed: int, epoch: int) -> Tuple[Task, Resize]:
    """Return what the pipeline draws for a sample. EngineError unless it is a crop and a resize, or one of the two."""
    with open(path, "rb") as stream:  # into the page cache, so that the disk is not timed
        stream.read()
    with pillow_open(path) as image:
        width, height = image.size
    box, resize = (0, 0, width, height), Resize(height, width, "bilinear")
    for step in pipeline.draw((width, height), Keyed(seed, epoch, index, 0)).primitives:
        if isinstance(step, Crop):
            box = step.box
        elif isinstance(step, Resize):
            resize = step
        else:
            raise EngineError(f"the bare loop crops and resizes only, the pipeline wants {step!r}. Leave that out.")
    return (path, box), resize


def measure(
    paths: Sequence[str],
    pipeline: Pipeline,
    seed: int,
    epoch: int,
    items: Sequence[int],
    batch: int,
    processes: int,
    cpus: Optional[Sequence[int]] = None,
) -> float:
    """Return the seconds that ``processes`` processes, each on a CPU of its own, take for all items together.

    Args:
        paths: of the image files.
        pipeline: a crop and a resize.
        seed, epoch: with an item's index, the key of its crop.
        items: indices into `paths`, in order.
        batch: images a batch.
        processes: how many; the batches are dealt out among them.
        cpus: to run on, in turn; None: those that this process may use.

    Raises:
        EngineError: the pipeline does more, or a process failed.
    """
    known: Dict[int, Task] = {}
    resize = None
    for index in dict.fromkeys(items):
        known[index], resize = _task(paths[index], index, pipeline, seed, epoch)
    if resize is None:
        raise EngineError("the bare loop was given no items.")
    tasks = [known[index] for index in items]
    batches = [tasks[start : start + batch] for start in range(0, len(tasks), batch)]
    rows, number = np.empty((batch, resize.height, resize.width, 3), np.uint8), FILTERS[resize.interpolation]
    fill(rows, batches[0][:1], number)  # to load the decoders
    places = list(cpus) if cpus else sorted(os.sched_getaffinity(0))
    waits, go = os.pipe()
    children = []
    for nth in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(go)
                os.sched_setaffinity(0, {places[nth % len(places)]})
                os.read(waits, 1)
                for own_batch in batches[nth::processes]:
                    fill(rows, own_batch, number)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    began = time.monotonic()
    os.close(go)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    seconds = time.monotonic() - began
    os.close(waits)
    if any(statuses):
        raise EngineError(f"a process of the bare loop ended with status {statuses}.")
    return seconds


def _run(work: Dict[str, Any]) -> Dict[str, Any]:
    items: List[int] = work["items"]
    seconds = measure(
        work["paths"], Pipeline.parse(work["pipeline"]), work["seed"], work["epoch"], items, work["batch"],
        work["processes"], work["cpus"],
    )  # fmt: skip
    spent = os.times()
    return {
        "images": len(items), "seconds": seconds, "cpu_seconds": spent.children_user + spent.children_system,
        "processes": work["processes"], "pillow": PIL.__version__,
    }  # fmt: skip


def main() -> None:
    """Run the request on standard input."""
    print(json.dumps(_run(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
