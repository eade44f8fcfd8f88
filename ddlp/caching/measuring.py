"""For ``cache="auto"``: a few samples made with and without kept pixels, which tells whether keeping them pays."""

from __future__ import annotations

import time

import numpy as np

from csd_engine.errors import SampleError
from csd_engine.machine.computer import memory
from csd_engine.prepare.cached_batch import RowReader
from csd_engine.prepare.sample import prepare_any_size, prepare_sample
from csd_engine.transforms.prefix import CachePoint
from ddlp.planning.cache_point import ASSUMED_EPOCHS, SampleCost, kept_samples, pays
from ddlp.translate.portable import Portable

__all__ = ["pixels_pay"]

_SAMPLES = 24
_ENOUGH_S = 1.0
_WRITES_PER_S = 1e9  # bytes, into the page cache
_READS_PER_S = (4e9, 0.5e9)  # bytes: of files that fit into memory, and of others, from a disk that is no fast one


def pixels_pay(portable: Portable, point: CachePoint, quota_bytes: int) -> tuple[bool, str]:
    """Return whether keeping results of any size pays in `ASSUMED_EPOCHS` epochs, and if not, why not in words.

    It makes up to 24 samples several times, for a second at most.
    """
    found = _measured(portable, point)
    if found is None:
        return False, "no sample could be made to measure what it would save"
    plain_s, made_s, behind_s, sample_bytes = found
    samples = portable.dataset.starts[-1]
    kept = kept_samples(samples, sample_bytes, quota_bytes)
    fits = kept * sample_bytes < memory().available / 2
    written_s, read_s = sample_bytes / _WRITES_PER_S, sample_bytes / _READS_PER_S[not fits]
    cost = SampleCost(plain_s, made_s + behind_s + written_s, behind_s + read_s)
    if pays(cost, samples, kept):
        return True, ""
    return False, (
        f"{point} would not save time in {ASSUMED_EPOCHS} epochs: a sample takes {1000 * plain_s:.2f} ms from its file, "
        f"{1000 * cost.cached_s:.2f} ms from its pixels and {1000 * cost.fill_s:.2f} ms when they are kept"
    )


def _measured(portable: Portable, point: CachePoint) -> tuple[float, float, float, float] | None:
    """Return a sample's seconds made as a whole, up to the cut and behind it, and the bytes at the cut; None: none was made."""
    reader, pipeline, count = portable.dataset.reader(), portable.pipeline, portable.dataset.starts[-1]
    out = np.empty(portable.shape, np.uint8)
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    times, sizes = [], []
    began = time.monotonic()
    for index in sorted({count * step // _SAMPLES for step in range(_SAMPLES)}):
        item = (index, 0)
        try:
            prepare_sample(reader, pipeline, item, 0, 0, out, boxes)  # brings the file into memory
            at = [time.perf_counter()]
            prepare_sample(reader, pipeline, item, 0, 0, out, boxes)
            at.append(time.perf_counter())
            pixels = prepare_any_size(reader, point.before, index)
            at.append(time.perf_counter())
            row = pixels if point.shape[2] > 1 else pixels[:, :, 0]
            prepare_sample(RowReader(reader, row), point.behind, item, 0, 0, out, boxes)
            at.append(time.perf_counter())
        except SampleError:
            continue
        times.append(np.diff(at))
        sizes.append(pixels.nbytes)
        if time.monotonic() - began > _ENOUGH_S:
            break
    if not times:
        return None
    plain_s, made_s, behind_s = np.mean(times, axis=0).tolist()
    return plain_s, made_s, behind_s, float(np.mean(sizes))
