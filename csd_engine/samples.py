"""Making one sample: the one way by which host and engine come to its pixels."""

from __future__ import annotations

import hashlib
import warnings
from typing import Callable, Optional, Tuple

import numpy as np

from csd_engine.datasets import Reader
from csd_engine.errors import OperatorFailed, SampleError
from csd_engine.keyed import Keyed
from csd_engine.transforms import Pipeline

__all__ = ["prepare_sample", "sample_digest"]

_PILLOW_MODULES = r"PIL\."  # as a warning filter's module


def _silence_pillow() -> None:
    """Keep Pillow's warnings on odd files (EXIF, large images) off the user's terminal; errors stay errors.

    A filter, set again when somebody removed it: `warnings.catch_warnings` is not safe between threads.
    """
    if not any(getattr(entry[3], "pattern", None) == _PILLOW_MODULES for entry in warnings.filters):
        warnings.filterwarnings("ignore", module=_PILLOW_MODULES)


def prepare_sample(
    reader: Reader,
    pipeline: Pipeline,
    item: Tuple[int, int],
    seed: int,
    epoch: int,
    out: np.ndarray,
    boxes: Optional[np.ndarray] = None,
    before_decoding: Optional[Callable[[int, int], None]] = None,
) -> None:
    """Read one sample and run the pipeline on it. Host and engine both call this, and nothing else.

    Args:
        reader: of the data set.
        pipeline: what to run.
        item: (source index, occurrence).
        seed, epoch: with the item, the key of all random draws.
        out: uint8 (height, width, channels), filled.
        boxes: int32 (boxes, 4), filled, or None for a pipeline without masks.
        before_decoding: called with the image's width and height, known from its header.

    Raises:
        SampleError: the sample cannot be read, decoded or transformed.
    """
    index, occurrence = item
    _silence_pillow()
    try:
        image = reader.image(index)
        with image:
            if before_decoding is not None:
                before_decoding(*image.size)
            pipeline.run(image, Keyed(seed, epoch, index, occurrence), out, boxes)
    except SampleError:
        raise
    except OperatorFailed as error:
        raise SampleError(reader.where(index), str(error), by_operator=True) from (error.__cause__ or error)
    except Exception as error:  # decoders raise nearly anything on a damaged file
        raise SampleError(
            reader.where(index) if 0 <= index < len(reader) else f"{index} of {len(reader)}",
            f"{type(error).__name__}: {error}",
        ) from error


def sample_digest(image: np.ndarray, boxes: Optional[np.ndarray]) -> str:
    """Return 32 hex digits over a prepared sample's pixels and boxes, for the parity probe."""
    digest = hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16)
    if boxes is not None:
        digest.update(boxes.astype("<i4").tobytes())
    return digest.hexdigest()
