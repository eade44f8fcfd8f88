"""Image files: opened, read whole, and their headers read by Pillow."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Optional, Sequence, Union

from PIL import Image

from csd_engine.errors import SampleError
from csd_engine.data.safe_open import OpenFile, open_file

__all__ = ["MAX_FILE_BYTES", "content", "not_read", "open_image", "open_sample"]

MAX_FILE_BYTES = 256 << 20  # of a file that is read whole; a larger one would not fit a small board's memory


def open_sample(path: str, beneath: Optional[Sequence[str]] = None, most_bytes: Optional[int] = None) -> OpenFile:
    """Open an image file.

    Raises:
        SampleError: missing, no regular file, larger than `most_bytes`, or really outside `beneath`.
    """
    try:
        opened = open_file(path, beneath)
    except Exception as error:
        raise not_read(path, error) from error
    if most_bytes is not None and opened.size > most_bytes:
        os.close(opened.descriptor)
        raise SampleError(path, f"the file is larger than {most_bytes >> 20} MiB")
    return opened


def content(opened: OpenFile) -> bytes:
    """Return the file's bytes, in one system call instead of one each 64 KiB, and close it. Raises SampleError."""
    try:
        data = os.read(opened.descriptor, opened.size)
        while len(data) < opened.size:  # interrupted, or on a network file system
            more = os.read(opened.descriptor, opened.size - len(data))
            if not more:
                break  # it became shorter meanwhile; the decoder will tell
            data += more
        return data
    except OSError as error:
        raise not_read(opened.path, error) from error
    finally:
        os.close(opened.descriptor)


def open_image(path: str, data: Union[bytes, BinaryIO]) -> Image.Image:
    """Return the image in a file's bytes with its header read and its pixels not yet decoded; `path` is for messages.

    Of an open file only what Pillow wants is read; it has to stay open until the pixels are decoded.

    Raises:
        SampleError: not an image.
    """
    try:
        return Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    except Exception as error:
        raise not_read(path, error) from error


def not_read(path: str, error: Exception) -> SampleError:
    """Return what to raise where a file cannot be opened, read or recognised."""
    why = str(error)
    if isinstance(error, OSError):  # UnidentifiedImageError is one
        why = error.strerror or "not an image that Pillow knows"
    return SampleError(path, f"{type(error).__name__}: {why}")
