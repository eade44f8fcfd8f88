"""Makes one sample. Host and engine both get its pixels in this way.

If there is a kernel that takes the file, it makes the sample in one call. Pillow makes a sample that the kernel refuses, from
the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np
from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.base import Reader
from csd_engine.data.image_files import (
    MAX_FILE_BYTES,
    SampleStream,
    content,
    is_above_limit,
    not_read,
    open_image,
    turned_upright,
)
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import EngineError, ImageRefused, OperatorFailed, SampleError
from csd_engine.kernels import kernel
from csd_engine.kernels.library import Context, Job
from csd_engine.kernels.steps import PackedSteps
from csd_engine.prepare.decode_time import in_small_steps, stream_of
from csd_engine.prepare.file_info import FileInfo, Header
from csd_engine.prepare.read_time import READING
from csd_engine.transforms.compiled import Compiled, compile_plan
from csd_engine.transforms.pipeline import Pipeline, SamplePlan, row_shape
from csd_engine.transforms.primitives import CHANNELS, Crop, UserCall, array_of, is_torchs, kernel_steps

__all__ = ["ABOVE_LIMIT", "is_bad_image", "prepare_any_size", "prepare_by_pillow", "prepare_sample", "sample_digest"]

_ONE_BYTE = ("1", "L", "P")  # modes in which Pillow keeps a pixel in one byte; in the others it takes four
_SEVERAL_IMAGES = ("ICNS", "ICO")  # formats whose header may give another size than that of the image which is decoded
_MOST_PIXELS = 1 << 28  # of an image whose size is not known; Pillow's own limit is lower
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_COEFFICIENT_BYTES = 6  # of a pixel's three, kept until the last scan is read; with one scan the kernel keeps a band of rows


class _AboveLimit(threading.local):
    """How many images of this thread Pillow has warned of by their size."""

    count = 0


ABOVE_LIMIT = _AboveLimit()


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
    """Read one sample and run the pipeline on it. Host and engine both call this function.

    Args:
        reader: of the data set.
        pipeline: what to run.
        item: (source index, occurrence).
        seed, epoch: with the item, the key of all random draws.
        out: uint8 (height, width, channels), filled; there are no gaps within a row.
        boxes: int32 (boxes, 4), filled, or None for a pipeline without masks.
        before_decoding: called with the bytes of memory that decoding will take, computed from the image's header, if that
            memory grows with the image.

    Raises:
        SampleError: the sample cannot be read, decoded or transformed.
    """
    _prepared(reader, pipeline, item, seed, epoch, out, boxes, before_decoding)


def prepare_any_size(
    reader: Reader, pipeline: Pipeline, index: int, before_decoding: Optional[Callable[[int], None]] = None
) -> np.ndarray:
    """Return one sample, uint8 (height, width, channels), by a pipeline that draws nothing. Its result may have any size.

    Arguments and errors as of `prepare_sample`.
    """
    return _prepared(reader, pipeline, (index, 0), 0, 0, None, None, before_decoding)


def _prepared(
    reader: Reader,
    pipeline: Pipeline,
    item: Tuple[int, int],
    seed: int,
    epoch: int,
    out: Optional[np.ndarray],
    boxes: Optional[np.ndarray],
    before_decoding: Optional[Callable[[int], None]],
) -> np.ndarray:
    """Do as `prepare_sample`, and return the sample. ``out`` None: it goes to new memory."""
    index, occurrence = item
    with _sample_errors(reader, index):
        began = time.monotonic()
        try:
            source = reader.open(index)
        finally:
            READING.seconds += time.monotonic() - began
        if not isinstance(source, OpenFile):
            sample = _pixels_by_kernel(source, pipeline, Keyed(seed, epoch, index, occurrence), out, boxes)
            if sample is not None:
                return sample
            image = Image.fromarray(np.array(source))  # a copy, which a user's function may change
            return _by_pillow(image, pipeline, item, seed, epoch, out, boxes, before_decoding)
        if source.size > MAX_FILE_BYTES:  # only on a host; Pillow reads the bytes that it needs
            with io.BufferedReader(SampleStream(source)) as stream:
                image = _opened(source.path, stream)
                return _by_pillow(image, pipeline, item, seed, epoch, out, boxes, before_decoding, source.upright)
        fast = kernel()
        if fast is None:
            began = time.monotonic()
            data = content(source)
            READING.seconds += time.monotonic() - began
        else:
            context = fast.context()
            keyed = Keyed(seed, epoch, index, occurrence)
            sample = _by_kernel(context, source, pipeline, keyed, out, boxes, before_decoding)
            if sample is not None:
                return sample
            data = context.content()
        image = _opened(source.path, data)
        return _by_pillow(image, pipeline, item, seed, epoch, out, boxes, before_decoding, source.upright)


def is_bad_image(error: SampleError) -> bool:
    """Whether the image is at fault: it is missing, damaged, or does not suit the pipeline.

    False for an error of a user's operator, and where this computer is short of memory or descriptors, may not read it, or
    can't reach the storage.
    """
    cause = error.__cause__
    short = isinstance(cause, (MemoryError, ConnectionError)) or (isinstance(cause, OSError) and cause.errno in _SHORT)
    return not (error.by_operator or short or (isinstance(cause, EngineError) and not isinstance(cause, ImageRefused)))


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
    upright: bool = False,
) -> None:
    """Do as `prepare_sample` for a file that the kernel refused, and whose bytes, ``data``, have been read already."""
    with _sample_errors(reader, item[0]):
        image = _opened(reader.where(item[0]), data)
        _by_pillow(image, pipeline, item, seed, epoch, out, boxes, before_decoding, upright)


@contextlib.contextmanager
def _sample_errors(reader: Reader, index: int) -> Iterator[None]:
    """Turn any error of a sample into a SampleError that names it."""
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
    return in_small_steps(open_image(path, stream_of(data) if isinstance(data, bytes) else data))


def _by_pillow(
    image: Image.Image,
    pipeline: Pipeline,
    item: Tuple[int, int],
    seed: int,
    epoch: int,
    out: Optional[np.ndarray],
    boxes: Optional[np.ndarray],
    before_decoding: Optional[Callable[[int], None]],
    upright: bool = False,
) -> np.ndarray:
    with image:
        ABOVE_LIMIT.count += is_above_limit(image.width * image.height)
        if before_decoding is not None:
            before_decoding(_memory(image, pipeline.mode))
        if upright:
            image = turned_upright(image)
        plans = pipeline.draw_image(image, Keyed(seed, epoch, *item))
        out = _row(plans) if out is None else out
        if not _decoded_by_kernel(image, pipeline, plans, out, boxes):
            pipeline.apply_row(image, plans, out, boxes)
        return out


def _decoded_by_kernel(
    image: Image.Image, pipeline: Pipeline, plans: List[SamplePlan], out: np.ndarray, boxes: Optional[np.ndarray]
) -> bool:
    """Make a sample of a file that Pillow decodes, if the pipeline has torch's pixels. False: by Pillow, or numpy, then.

    An image that Pillow decodes at a part of its size is left to it. Raises Pillow's own errors of decoding.
    """
    fast = kernel()
    if fast is None or not any(is_torchs(step) for plan in plans for step in plan.primitives):
        return False
    compiled = None if any(plan.reduce > 1 for plan in plans) else _compiled(plans, image.size, pipeline)
    if compiled is None:
        return False
    pixels = array_of(image.convert(pipeline.mode))
    return _row_of_pixels(fast.context(), pixels, lambda: image.info, pipeline, compiled, pipeline.places(plans, out, boxes))


def _row(plans: List[SamplePlan]) -> np.ndarray:
    """Return new memory for a sample's row."""
    return np.empty(row_shape(plans), np.uint8)


def _memory(image: Image.Image, mode: str) -> int:
    """Return the bytes that Pillow takes to decode an image and to convert it to this mode."""
    modes = {image.mode, mode}
    pixels = _MOST_PIXELS if image.format in _SEVERAL_IMAGES else image.width * image.height
    return pixels * sum(1 if pillow_mode in _ONE_BYTE else 4 for pillow_mode in modes)


def _by_kernel(
    context: Context,
    source: OpenFile,
    pipeline: Pipeline,
    keyed: Keyed,
    out: Optional[np.ndarray],
    boxes: Optional[np.ndarray],
    before_decoding: Optional[Callable[[int], None]],
) -> Optional[np.ndarray]:
    """Read and close the file, and make the sample; None if Pillow must make it, from the bytes in `context.content()`."""
    began = time.monotonic()
    try:
        size = _read(context, source)
    finally:
        READING.seconds += time.monotonic() - began
    if size is None or is_above_limit(size[0] * size[1]):
        return None
    if source.upright and context.turned:
        return None
    try:
        plans = pipeline.draw_row(size, keyed, jpeg=True)
    except Exception:  # Pillow decodes it before it is refused
        return None
    compiled = _compiled(plans, size, pipeline)
    if compiled is None:
        return None
    out = _row(plans) if out is None else out
    places = pipeline.places(plans, out, boxes)
    window = _window([part.job for part in compiled]) if len(compiled) > 1 else None
    if before_decoding is not None and (window is not None or context.several_scans):
        coefficients = _COEFFICIENT_BYTES * size[0] * size[1] if context.several_scans else 0
        before_decoding(coefficients + (0 if window is None else window.width * window.height * window.channels))
    decode = context.sample
    if window is not None:
        pixels = np.empty((window.height, window.width, window.channels), dtype=np.uint8)
        if not context.sample(window, pixels):
            return None
        decode = functools.partial(_resample, context, pixels, window.left, window.top)
    info = lambda: _opened(source.path, context.content()).info  # noqa: E731
    complete = all(_view_by_kernel(context, info, pipeline, part, place, decode) for part, place in zip(compiled, places))
    return out if complete else None


def _compiled(plans: List[SamplePlan], size: Tuple[int, int], pipeline: Pipeline) -> Optional[List[Compiled]]:
    """Return the kernel's part of each image of a sample's row; None if Pillow must make one of them."""
    crops = (step for plan in plans for step in plan.primitives if isinstance(step, Crop))
    if any(is_above_limit(crop.width * crop.height) for crop in crops):
        return None
    parts = [compile_plan(plan, size, view) for view, plan in zip(pipeline.each, plans)]
    compiled = [part for part in parts if part is not None]
    return compiled if len(compiled) == len(plans) else None


def _window(jobs: List[Job]) -> Job:
    """The job that decodes all that these jobs need, once, at its full size."""
    left, top = min(job.left for job in jobs), min(job.top for job in jobs)
    width, height = max(job.left + job.width for job in jobs) - left, max(job.top + job.height for job in jobs) - top
    return Job(
        left=left, top=top, width=width, height=height, full_width=width, full_height=height, out_width=width,
        out_height=height, reduce=1, channels=jobs[0].channels,
    )  # fmt: skip


def _resample(context: Context, pixels: np.ndarray, left: int, top: int, job: Job, out: np.ndarray) -> bool:
    """Do a job as `Context.sample`, on an image's part that begins at (left, top)."""
    job.left -= left
    job.top -= top
    return context.resample(pixels, job, out)


def _view_by_kernel(
    context: Context,
    info: Callable[[], Dict[Any, Any]],
    pipeline: Pipeline,
    compiled: Compiled,
    out: np.ndarray,
    decode: Callable[[Job, np.ndarray], bool],
) -> bool:
    """Make one image of a sample's row. False if Pillow must make the sample.

    ``decode`` does its job, ``info`` reads what Pillow keeps in its image's `info`.
    """
    job, rest = compiled
    if not rest:
        return decode(job, out)
    shape = (job.out_height, job.out_width, job.channels)
    free = out.shape == shape and out.flags.c_contiguous  # if so, it is used as memory until the last step
    pixels = out if free else np.empty(shape, dtype=np.uint8)
    if not decode(job, pixels):
        return False
    steps = kernel_steps(rest, pipeline.order)
    if steps is not None:
        return context.steps(pixels, PackedSteps(steps), out)
    image = Image.fromarray(pixels if job.channels > 1 else pixels[:, :, 0])
    if not any(isinstance(step, UserCall) for step in rest):
        pipeline.finish(image, rest, out)
        return True
    if job.channels == 1:
        image = image.copy()  # else it would use numpy's memory, and Pillow would not let the function draw on it
    header = Header(info)
    image.info = FileInfo(header)
    try:
        pipeline.finish(image, rest, out)
    finally:
        header.close()
    return True


def _pixels_by_kernel(
    source: np.ndarray, pipeline: Pipeline, keyed: Keyed, out: Optional[np.ndarray], boxes: Optional[np.ndarray]
) -> Optional[np.ndarray]:
    """Make the sample of an array's row, (height, width) or (height, width, channels); None if Pillow must make it."""
    fast, (height, width) = kernel(), source.shape[:2]
    pixels = np.ascontiguousarray(source).reshape(height, width, -1)
    if fast is None or pixels.shape[2] != CHANNELS[pipeline.mode]:
        return None
    plans = pipeline.draw_row((width, height), keyed)
    compiled = _compiled(plans, (width, height), pipeline)
    if compiled is None:
        return None
    out = _row(plans) if out is None else out
    complete = _row_of_pixels(fast.context(), pixels, dict, pipeline, compiled, pipeline.places(plans, out, boxes))
    return out if complete else None


def _row_of_pixels(
    context: Context,
    pixels: np.ndarray,
    info: Callable[[], Dict[Any, Any]],
    pipeline: Pipeline,
    compiled: List[Compiled],
    places: List[np.ndarray],
) -> bool:
    """Make a sample's row of a whole image in memory, uint8 (height, width, channels). False if Pillow must make it."""
    decode = functools.partial(_resample, context, pixels, 0, 0)
    return all(_view_by_kernel(context, info, pipeline, part, place, decode) for part, place in zip(compiled, places))


def _read(context: Context, source: OpenFile) -> Optional[Tuple[int, int]]:
    """Read and close the file; return (width, height), or None if the image is left to Pillow."""
    try:
        return context.read(source.descriptor, source.size, source.offset)
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
