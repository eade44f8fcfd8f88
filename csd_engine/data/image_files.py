"""Opens image files, reads them whole, and lets Pillow read their headers."""

from __future__ import annotations

import errno
import functools
import io
import os
from typing import Any, BinaryIO, List, Optional, Sequence, Union

from PIL import Image, ImageOps, UnidentifiedImageError

from csd_engine.data.safe_open import OpenFile, open_file
from csd_engine.errors import SampleError

__all__ = [
    "FileBytes", "MAX_FILE_BYTES", "SampleStream", "SizedStream", "content", "is_above_limit", "most_pixels", "not_read",
    "open_image", "open_sample", "part_of", "pillow_open", "turned_upright",
]  # fmt: skip

_ORIENTATION = 0x0112  # Exif's tag
# Pillow's formats but EPS, for which it runs the gs of the PATH, and IPTC, whose pixels may be an EPS file. A file's name does
# not tell its format.
_FORMATS = frozenset({
    "AVIF", "BLP", "BMP", "BUFR", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FPX", "FTEX", "GBR", "GIF", "GRIB", "HDF5",
    "ICNS", "ICO", "IM", "IMT", "JPEG", "JPEG2000", "MCIDAS", "MIC", "MPEG", "MPO", "MSP", "PCD", "PCX", "PIXAR", "PNG", "PPM",
    "PSD", "QOI", "SGI", "SPIDER", "SUN", "TGA", "TIFF", "WEBP", "WMF", "XBM", "XPM", "XVTHUMB",
})  # fmt: skip
MAX_FILE_BYTES = 256 << 20  # of a file that is read whole; a larger one would not fit into a small board's memory


def open_sample(
    path: str,
    beneath: Optional[Sequence[str]] = None,
    most_bytes: Optional[int] = None,
    offset: int = 0,
    size: Optional[int] = None,
) -> OpenFile:
    """Open an image file, or an image file that is a part of a larger file.

    Args:
        path: of the file.
        beneath: real directories; None: any.
        most_bytes: of the image file; None: any number.
        offset, size: the part, bytes; size None: up to the file's end.

    Raises:
        SampleError: the file is missing, not a regular file, larger than `most_bytes`, really outside `beneath`, or it ends
            before the part does.
    """
    try:
        opened = open_file(path, beneath)
    except Exception as error:
        raise not_read(path, error) from error
    try:
        return part_of(opened, most_bytes, offset, size)
    except SampleError:
        os.close(opened.descriptor)
        raise


def part_of(opened: OpenFile, most_bytes: Optional[int], offset: int, size: Optional[int]) -> OpenFile:
    """Return an image file that is a part of an opened one; arguments and errors are those of `open_sample`."""
    part = opened._replace(offset=offset, size=opened.size - offset if size is None else size)
    if offset < 0 or part.size < 0 or offset + part.size > opened.size:
        why = f"its bytes {offset} to {offset + part.size} are not in the file of {opened.size} bytes"
        raise SampleError(opened.path, why)
    if most_bytes is not None and part.size > most_bytes:
        raise SampleError(opened.path, f"the file is larger than {most_bytes >> 20} MiB")
    return part


def content(opened: OpenFile) -> bytes:
    """Read the sample's bytes by one system call, not one for each 64 KiB, and close the file. Raises SampleError."""
    descriptor, size, offset = opened.descriptor, opened.size, opened.offset
    try:
        data = os.pread(descriptor, size, offset)
        while len(data) < size:  # interrupted, or on a network file system
            more = os.pread(descriptor, size - len(data), offset + len(data))
            if not more:
                break  # the file became shorter meanwhile; the decoder will report it
            data += more
        return data
    except OSError as error:
        raise not_read(opened.path, error) from error
    finally:
        os.close(opened.descriptor)


class SizedStream(io.RawIOBase):
    """A seekable file of ``size`` bytes. A subclass has `readinto`, which reads at ``_position`` and moves it."""

    def __init__(self, size: int) -> None:
        self._size, self._position = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, as in any file; return the new one."""
        from_ = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, from_ + offset)
        return self._position


class SampleStream(SizedStream):
    """The sample's bytes as a seekable file, read on demand. Closing it closes the descriptor."""

    def __init__(self, opened: OpenFile) -> None:
        super().__init__(opened.size)
        self._opened = opened

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer or its beginning; return the number of bytes."""
        opened = self._opened
        room = memoryview(buffer)[: max(0, opened.size - self._position)]
        got = os.preadv(opened.descriptor, [room], opened.offset + self._position)
        self._position += got
        return got

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        if not self.closed:
            os.close(self._opened.descriptor)
        super().close()


class FileBytes(io.BytesIO):
    """A file's bytes in memory. A broken file that has Pillow seek before the beginning gives the error of a file on disk."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().seek(offset, whence)


@functools.lru_cache(maxsize=1)
def _formats(known: int) -> List[str]:
    """Return the formats to try of those that Pillow knows now: its own, and those that other code has registered."""
    modules = {name: getattr(Image.OPEN[name][0], "__module__", None) or "" for name in Image.ID}
    return [name for name, module in modules.items() if name in _FORMATS or not module.startswith("PIL.")]


def pillow_open(source: Union[str, "os.PathLike[str]", BinaryIO]) -> Image.Image:
    """Do as `PIL.Image.open`, but for formats whose decoder would run another program: it does not know these.

    Raises:
        PIL.UnidentifiedImageError: the file has none of the formats. Other errors are Pillow's, too.
    """
    Image.preinit()
    tried = _formats(len(Image.ID))
    try:
        return Image.open(source, formats=tried)
    except UnidentifiedImageError:
        Image.init()  # loads all plugins; older versions of Pillow have done so in `open`
        formats = _formats(len(Image.ID))
        if formats == tried:
            raise
        return Image.open(source, formats=formats)


def open_image(path: str, data: Union[bytes, BinaryIO]) -> Image.Image:
    """Return the image in a file's bytes with its header read and its pixels not yet decoded; `path` is for messages.

    From an open file Pillow reads only the bytes that it needs. The file must stay open until the pixels are decoded.

    Raises:
        SampleError: the bytes are not an image.
    """
    try:
        return pillow_open(FileBytes(data) if isinstance(data, bytes) else data)
    except Exception as error:
        raise not_read(path, error) from error


def is_above_limit(pixels: int) -> bool:
    """Whether Pillow warns of an image or crop of so many pixels, or refuses it. The user may have set its limit."""
    return Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS


def most_pixels() -> Optional[int]:
    """Return Pillow's limit as a number of 63 bits. Users set it to any number, also 1e10 or inf. None: there is no limit."""
    limit = Image.MAX_IMAGE_PIXELS
    return None if limit is None or limit >= 1 << 63 else max(0, int(limit))


def turned_upright(image: Image.Image) -> Image.Image:
    """Return the image decoded, and turned by its file's orientation (Exif, XMP); the same object if there is none."""
    image.load()
    if image.getexif().get(_ORIENTATION, 1) == 1:
        return image
    turned = ImageOps.exif_transpose(image)
    assert turned is not None
    return turned


def not_read(path: str, error: Exception) -> SampleError:
    """Return the error for a file that can't be opened, read or recognised."""
    if isinstance(error, UnidentifiedImageError):
        why = f"cannot identify image file {path!r}"  # as Pillow's own text, which names the bytes in memory instead
    else:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SampleError(path, f"{type(error).__name__}: {why}")
