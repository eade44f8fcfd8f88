"""A bare Pillow loop: open, crop, resize, into a batch. An engine is measured against it.

It is sent to the computer that is measured, and runs there by ``python -c`` with numpy and Pillow alone, under Python 3.8 or
newer. A JSON object on standard input has the arguments of `measure`; the seconds come back on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
from PIL import Image


def fill(batch: np.ndarray, tasks: Sequence[tuple[str, Sequence[int]]], resample: int) -> None:
    """Fill the rows of `batch`, uint8 (n, height, width, 3), by the usual calls of Pillow. A task is a file and its crop."""
    size = (batch.shape[2], batch.shape[1])
    for row, (path, (left, top, right, bottom)) in enumerate(tasks):
        with Image.open(path) as image:
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            batch[row] = np.asarray(rgb.crop((left, top, right, bottom)).resize(size, resample))


def measure(
    paths: Sequence[str],
    crops: Sequence[Sequence[int]],
    items: Sequence[int],
    size: int,
    resample: int,
    batch: int,
    processes: int,
    cpus: Sequence[int] | None,
) -> float:
    """Return the seconds that ``processes`` processes, each on a CPU of its own, take for all items together.

    Args:
        paths: of the image files.
        crops: of each: left, top, right, bottom.
        items: indices into `paths`, in order.
        size: height and width of the results.
        resample: the number that Pillow has for the filter.
        batch: images a batch.
        processes: how many; the batches are dealt out among them.
        cpus: to run on, in turn; None: those that this process may use.

    Raises:
        RuntimeError: a process failed.
    """
    for path in paths:  # into the page cache, so that the disk is not timed
        with open(path, "rb") as stream:
            stream.read()
    tasks = [(paths[index], crops[index]) for index in items]
    batches = [tasks[start : start + batch] for start in range(0, len(tasks), batch)]
    rows = np.empty((batch, size, size, 3), np.uint8)
    fill(rows, batches[0][:1], resample)  # to load the decoders
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
                    fill(rows, own_batch, resample)
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
        raise RuntimeError(f"a process of the bare loop ended with status {statuses}.")
    return seconds


if __name__ == "__main__":
    print(measure(**json.load(sys.stdin)))
