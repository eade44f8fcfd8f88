"""What can be kept of a loader's samples, and which of it is kept."""

from __future__ import annotations

import math
from dataclasses import replace

from csd_engine.cache.files import FILES, REQUEST_S
from csd_engine.cache.shelf import ENTRY_BYTES
from csd_engine.data.base import Reader
from csd_engine.machine.computer import cpus, memory
from csd_engine.prepare.cached_batch import Kept
from csd_engine.transforms.prefix import CachePoint, cache_point
from ddlp.caching.cache_point import ASSUMED_EPOCHS, DECODED, OFF, PLAIN_BYTES_PER_S, SampleCost, best_point, known_cost
from ddlp.caching.measuring import FileSizes, brought, file_sizes, pixel_times
from ddlp.translate.portable import Portable

__all__ = ["Points", "choose", "no_versions", "points_of"]

_WRITES_PER_S = 1e9  # bytes, into the page cache
_READS_PER_S = (4e9, 0.5e9)  # bytes: of files that fit into memory, and of others, from a disk that is no fast one

Points = dict[str, Kept]
"""What can be kept, by its name: "prefix" (pixels of one size, or up to the user's own point), "pixels" (of any size), "files"
(of a slow storage)."""

_KEPT_BY = {"prefix": "pixels", "pixels": "pixels", "files": "files"}  # `ddlp.Cache.keeps`


def points_of(portable: Portable, keeps: str) -> tuple[Points, str]:
    """Return what can be kept, and if that is nothing, why. ``keeps``: as of `ddlp.Cache`."""
    sizes = {part.size for part in portable.dataset.parts}
    reader = portable.dataset.reader()
    if (unknown := no_versions(reader)) is not None:
        return {}, unknown
    if not reader.slow and reader.places([0] if len(reader) else []) is None:
        return {}, "the samples are no files, and arrays are in memory already"
    given = portable.point is not None
    point = cache_point(portable.pipeline, sizes.pop() if len(sizes) == 1 else None, portable.point)
    points: Points = {} if point is None else {"prefix" if point.fixed or given else "pixels": point}
    if not given and reader.slow:
        points["files"] = FILES
    chosen = {name: point for name, point in points.items() if given or keeps in ("auto", _KEPT_BY[name])}
    if chosen:
        return chosen, ""
    if keeps == "files":
        return {}, (
            "keeps='files' is for objects of a storage, and these are files already; where their disk is a slow one of the "
            "network, copy them to one of this computer"
        )
    if portable.pipeline.user_operators:
        return {}, "the pipeline has operators of your own, which may ask for the file's metadata"
    return {}, "decode='fast' decodes each image at a size that depends on the random crop"


def no_versions(reader: Reader) -> str | None:
    """Return why nothing can be kept of samples in object storage; None: they are no such samples, or have versions."""
    if not reader.slow or (len(reader) and reader.versions([0, len(reader) - 1]) is not None):
        return None
    return "the objects have no ETags (an index file has none), or others are mixed with them, so no change would be seen"


def choose(portable: Portable, points: Points, quota_bytes: int, epochs: int | None, workers: int = 1) -> tuple[str, str]:
    """Return the name of what to keep; `OFF` and why not in words, where that does not pay.

    Results of one size always pay, where files are on this computer, and of object storage pixels that all have room. The
    user's own point is obeyed. Else the predicted times of the epochs decide.

    Args:
        portable: the loader's samples.
        points: what can be kept, at least one.
        quota_bytes: that may be kept.
        epochs: to come. Measures up to 24 samples, for a second at most, and keeps nothing if that does not pay. None: the
            user wants something to be kept, and known ratios, `ASSUMED_EPOCHS` and `REQUEST_S` tell what, so that all runs
            choose the same.
        workers: threads that make samples.
    """
    auto, listed = epochs is not None, _listed(portable)
    first, point = next(iter(points)), points.get("pixels")
    pixels = point if isinstance(point, CachePoint) else None
    if portable.point is not None or (first == "prefix" and listed is None) or (len(points) == 1 and not auto):
        return first, ""
    if listed is not None and first != "files" and _all_fit(points[first], portable.dataset.starts[-1], listed, quota_bytes):
        return first, ""
    sizes, times, request_s = listed, None, REQUEST_S
    if listed is None or auto:
        with brought(portable) as (reader, request_s):
            sizes = file_sizes(portable, reader)
            times = pixel_times(portable, pixels, reader) if auto and pixels is not None else None
    request_s *= max(1, min(workers, cpus()))
    if sizes is None or (auto and pixels is not None and times is None):
        return OFF if auto else first, "no sample could be made to measure what it would save"
    samples, plain_s = portable.dataset.starts[-1], sizes.file_bytes / PLAIN_BYTES_PER_S if times is None else times.plain_s
    costs: dict[str, SampleCost] = {}
    if pixels is not None:
        pixel_bytes = sizes.decoded_bytes if times is None else times.pixel_bytes
        fits = min(samples * pixel_bytes, quota_bytes) < memory().total / 2
        read_s = pixel_bytes / _READS_PER_S[not fits]
        if times is None:  # its rate has the reading from memory
            cost = known_cost("pixels", plain_s, pixel_bytes)
            costs["pixels"] = cost if fits else replace(cost, cached_s=cost.cached_s + read_s)
        else:
            # Making and keeping is never quicker than making, whatever a few samples say.
            filled_s = max(times.plain_s, times.made_s + times.behind_s) + pixel_bytes / _WRITES_PER_S
            costs["pixels"] = SampleCost(filled_s, times.behind_s + read_s, pixel_bytes)
    if isinstance(prefix := points.get("prefix"), CachePoint):
        costs["prefix"] = known_cost("prefix", plain_s, float(math.prod(prefix.shape)))
    if "files" in points:
        fits = min(samples * sizes.file_bytes, quota_bytes) < memory().total / 2
        read_s = 0.0 if fits else sizes.file_bytes / _READS_PER_S[1]
        filled_s = plain_s + sizes.file_bytes / _WRITES_PER_S
        costs["files"] = SampleCost(filled_s, plain_s + read_s, sizes.file_bytes + ENTRY_BYTES)
    epochs = epochs or ASSUMED_EPOCHS
    best = best_point(plain_s, costs, samples, quota_bytes, epochs, request_s)
    if best == OFF and not auto:
        best = first
    return best, "" if best != OFF else _no_gain(plain_s, costs, epochs, request_s)


def _listed(portable: Portable) -> FileSizes | None:
    """Return what the listing of a slow storage tells of the files, without a request; None: they are on this computer."""
    reader, samples = portable.dataset.reader(), portable.dataset.starts[-1]
    versions = reader.versions(list(range(samples))) if reader.slow and samples else None
    file_bytes = 0.0 if versions is None else float(versions.sizes.mean())
    return None if versions is None else FileSizes(file_bytes, DECODED * file_bytes)


def _all_fit(point: Kept, samples: int, sizes: FileSizes, quota_bytes: int) -> bool:
    """Return whether the pixels of all samples have room."""
    each = math.prod(point.shape) if isinstance(point, CachePoint) and point.fixed else sizes.decoded_bytes
    return samples * (each + ENTRY_BYTES) <= quota_bytes


def _no_gain(plain_s: float, costs: dict[str, SampleCost], epochs: int, request_s: float) -> str:
    if "files" in costs:
        return (
            f"it would not save time in {epochs} epochs: the storage gives an object each {1000 * request_s:.2f} ms of all "
            f"workers, and one of them makes a sample of it in {1000 * plain_s:.2f} ms"
        )
    (cost,) = costs.values()
    return (
        f"pixels would not save time in {epochs} epochs: a sample takes {1000 * plain_s:.2f} ms from its file, "
        f"{1000 * cost.cached_s:.2f} ms from its pixels and {1000 * cost.fill_s:.2f} ms when they are kept"
    )
