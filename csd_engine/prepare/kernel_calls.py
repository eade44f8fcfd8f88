"""The kernel's calls for a batch, if it can make its samples: files, or images that lie in memory as pixels."""

from __future__ import annotations

import os
from typing import Optional

from csd_engine.data.base import Reader
from csd_engine.data.image_files import MAX_FILE_BYTES, is_above_limit, most_pixels
from csd_engine.data.readahead import AHEAD
from csd_engine.kernels.files import FilePlan, Files
from csd_engine.kernels.pixels import PixelSamples
from csd_engine.prepare.started_batch import BatchRequest

__all__ = ["file_calls", "pixel_calls"]


def pixel_calls(reader: Reader, plan: Optional[FilePlan], request: BatchRequest) -> Optional[PixelSamples]:
    """Return the calls for images in memory; None if there is no plan, or a sample is no array in memory.

    Args:
        reader: of these samples.
        plan: the kernel's plan for the pipeline, from `file_plan`.
        request: the samples.
    """
    if plan is None or is_above_limit(plan.most_cropped):
        return None
    try:
        pixels = reader.pixels(request.sources)
    except Exception:  # the sample that fails reports it at its turn
        return None
    if pixels is None:
        return None
    return PixelSamples(plan, pixels, request.seed, request.epoch, request.sources, request.occurrences)


def file_calls(reader: Reader, plan: Optional[FilePlan], request: BatchRequest) -> Optional[Files]:
    """Return the calls for files; None if there is no plan, or a sample is not a file. Arguments as for `pixel_calls`.

    They refuse an image that takes at least ``request.large_bytes`` to decode, so that it waits for ``before_decoding``.
    """
    if plan is None or is_above_limit(plan.most_cropped):
        return None
    try:
        places = reader.places(request.sources.tolist())
        if places is None:
            return None
        paths = os.fsencode("\0".join(places.paths)).split(b"\0")
    except Exception:  # the sample that fails reports it at its turn
        return None
    if len(paths) != len(places.paths):  # a path contains a 0: C would read no further
        return None
    return Files(
        plan, paths, places.parts, request.seed, request.epoch, request.sources, request.occurrences, AHEAD, MAX_FILE_BYTES,
        most_pixels(), request.large_bytes, reader.beneath,
    )  # fmt: skip
