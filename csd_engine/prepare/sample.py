"""Making one sample: the one way by which host and engine come to its pixels.

A kernel does it in one call where there is one that takes the file; what it refuses goes through Pillow, from the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
import warnings
from typing import BinaryIO, Callable, Iterator, Optional, Tuple, Union

import numpy as np
from PIL import Image

from csd_engine.data.base import Reader
from csd_engine.data.image_files import MAX_FILE_BYTES, SampleStream, content, not_read, open_image
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import OperatorFailed, SampleError
from csd_engine.kernels import kernel
from csd_engine.kernels.library import Context
from csd_engine.keyed import Keyed
from csd_engine.prepare.read_time import READING
from csd_engine.transforms import Pipeline
from csd_engine.transforms.compiled import compile_plan

__all__ = ["prepare_by_pillow", "prepare_sample", "sample_digest"]

_PILLOW_MODULES = r"PIL\."  # as a warning filter's module
_PILLOW_BYTES = 4  # a pixel, decoded
_COEFFICIENT_BYTES = 6  # a pixel's three, until the last scan has been read; else the kernel has a band of rows in memory


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
    before_decoding: Optional[Callable[[int], None]] = None,
) -> None:
    """Read one sample and run the pipeline on it. Host and engine both call this, and nothing else.

    Args:
        reader: of the data set.
        pipeline: what to run.
        item: (source index, occurrence).
        seed, epoch: with the item, the key of all random draws.
        out: uint8 (height, width, channels), filled; a pixel's channels and a row's pixels lie side by side.
        boxes: int32 (boxes, 4), filled, or None for a pipeline without masks.
        before_decoding: called with the bytes of memory that decoding will take, known from the image's header, where that
            grows with the image.

    Raises:
        SampleError: the sample cannot be read, decoded or transformed.
    """
    index, occurrence = item
    with _told(reader, index):
        began = time.monotonic()
        try:
            source = reader.open(index)
        finally:
            READING.seconds += time.monotonic() - began
        if not isinstance(source, OpenFile):
            _by_pillow(Image.fromarray(source), pipeline, item, seed, epoch, out, boxes, before_decoding)
            return
        if source.size > MAX_FILE_BYTES:  # a host's: Pillow reads what it wants of it
            with io.BufferedReader(SampleStream(source)) as stream:
                _by_pillow(_opened(source.path, stream), pipeline, item, seed, epoch, out, boxes, before_decoding)
            return
        fast = kernel()
        if fast is None:
            began = time.monotonic()
            data = content(source)
            READING.seconds += time.monotonic() - began
        else:
            context = fast.context()
            keyed = Keyed(seed, epoch, index, occurrence)
            if _by_kernel(context, source, pipeline, keyed, out, boxes, before_decoding):
                return
            data = context.content()
        _by_pillow(_opened(source.path, data), pipeline, item, seed, epoch, out, boxes, before_decoding)


def prepare_by_pillow(
    reader: Reader,
    pipeline: Pipeline,
    item: Tuple[int, int],
    seed: int,
    epoch: int,
    data: bytes,
    out: np.ndarray,
    boxes: Optional[np.ndarray] = None,
    before_decoding: Optional[Callable[[int], None]] = None,
) -> None:
    """`prepare_sample` for a file that has been read already, its bytes being ``data``, and that the kernel refused."""
    with _told(reader, item[0]):
        image = _opened(reader.where(item[0]), data)
        _by_pillow(image, pipeline, item, seed, epoch, out, boxes, before_decoding)


@contextlib.contextmanager
def _told(reader: Reader, index: int) -> Iterator[None]:
    """Whatever goes wrong with a sample is a SampleError that names it."""
    try:
        yield
    except SampleError:
        raise
    except OperatorFailed as error:
        raise SampleError(reader.where(index), str(error), by_operator=True) from (error.__cause__ or error)
    except Exception as error:  # decoders raise nearly anything on a damaged file
        raise SampleError(
            reader.where(index) if 0 <= index < len(reader) else f"{index} of {len(reader)}",
            f"{type(error).__name__}: {error}",
        ) from error


def _opened(path: str, data: Union[bytes, BinaryIO]) -> Image.Image:
    _silence_pillow()
    return open_image(path, data)


def _by_pillow(
    image: Image.Image,
    pipeline: Pipeline,
    item: Tuple[int, int],
    seed: int,
    epoch: int,
    out: np.ndarray,
    boxes: Optional[np.ndarray],
    before_decoding: Optional[Callable[[int], None]],
) -> None:
    with image:
        if before_decoding is not None:
            before_decoding(_PILLOW_BYTES * image.width * image.height)
        pipeline.run(image, Keyed(seed, epoch, *item), out, boxes)


def _by_kernel(
    context: Context,
    source: OpenFile,
    pipeline: Pipeline,
    keyed: Keyed,
    out: np.ndarray,
    boxes: Optional[np.ndarray],
    before_decoding: Optional[Callable[[int], None]],
) -> bool:
    """Read and close the file, and make the sample; False where that is Pillow's, and `context.content()` has the file."""
    began = time.monotonic()
    try:
        size = _read(context, source)
    finally:
        READING.seconds += time.monotonic() - began
    # Pillow warns of images above this, or refuses them; the user may have set it.
    if size is None or (Image.MAX_IMAGE_PIXELS is not None and size[0] * size[1] > Image.MAX_IMAGE_PIXELS):
        return False
    plan = pipeline.draw(size, keyed, jpeg=True)
    compiled = compile_plan(plan, size, pipeline)
    if compiled is None:
        return False
    job, rest = compiled
    pipeline.check_output(plan, out)
    pipeline.place_boxes(plan, boxes)
    if before_decoding is not None and context.several_scans:
        before_decoding(_COEFFICIENT_BYTES * size[0] * size[1])
    if not rest:
        return context.sample(job, out)
    pixels = np.empty((job.out_height, job.out_width, job.channels), dtype=np.uint8)
    if not context.sample(job, pixels):
        return False
    pipeline.finish(Image.fromarray(pixels if job.channels > 1 else pixels[:, :, 0]), rest, out)
    return True


def _read(context: Context, source: OpenFile) -> Optional[Tuple[int, int]]:
    """Read and close the file; return (width, height), or None where the image is Pillow's."""
    if source.offset:  # the kernel reads a file from its beginning
        return context.take(content(source))
    try:
        return context.read(source.descriptor, source.size)
    except OSError as error:
        raise not_read(source.path, error) from error
    finally:
        os.close(source.descriptor)


def sample_digest(image: np.ndarray, boxes: Optional[np.ndarray]) -> str:
    """Return 32 hex digits over a prepared sample's pixels and boxes, for the parity probe."""
    digest = hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16)
    if boxes is not None:
        digest.update(boxes.astype("<i4").tobytes())
    return digest.hexdigest()
