"""Pillow's images whose pixels are not made yet.

Such an object has one of the classes below as long as nobody has asked for pixels. All code that needs pixels, in Python or in
C, takes them from ``im``. At that moment the object becomes an ordinary one of Pillow's class, for good. So operations that
this module does not know work as well.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from csd_engine.transforms.primitives import Crop, Flip, Resize
from csd_engine.transforms.resample import FILTERS
from ddlp.decode.source import Chain, read_source, to_image

__all__ = ["PostponedFile", "PostponedImage"]

_FILTERS = {number: name for name, number in FILTERS.items()}
_FLIPS = {  # Image.Transpose's numbers
    0: (Flip(horizontal=True),),
    1: (Flip(horizontal=False),),
    3: (Flip(horizontal=True), Flip(horizontal=False)),  # by 180 degrees
}
_MOST_RESIZED = 1 << 26  # pixels: a larger resize is done at once, so that an error for lack of memory comes at the call
_set_class = object.__dict__["__class__"].__set__


class PostponedAccess:
    """The result of ``load``: pixel access like Pillow's. It makes the pixels when it is used."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return self._image.im.pixel_access(self._image.readonly)[place]

    def __setitem__(self, place: Any, color: Any) -> None:
        self._image.im.pixel_access(self._image.readonly)[place] = color


class _Postponed(Image.Image):
    """The common base of both classes. It overrides methods of Pillow's class.

    The object's dict has ``_postponed``, the chain, as soon as Pillow would have decoded. It has ``_array``, the pixels, if an
    array was asked for.
    """

    _ordinary: Any

    @property
    def __class__(self) -> Any:
        return self._ordinary

    @__class__.setter
    def __class__(self, other: Any) -> None:
        self._im  # noqa: B018 - code that sets another class expects Pillow's state
        _set_class(self, other)

    # -- becoming ordinary -------------------------------------------------------------------------------------------

    @property
    def _im(self) -> Any:
        chain = vars(self).get("_postponed")
        if chain is not None:
            with chain.source.lock:
                if "_postponed" in vars(self):  # if not, another thread was first
                    self._im = to_image(pixels).im if isinstance(pixels := self._pixels(chain), np.ndarray) else pixels.im
        return vars(self)["_im"]

    @_im.setter
    def _im(self, core: Any) -> None:
        state = vars(self)
        state["_im"] = core
        state.pop("_postponed", None)
        state.pop("_array", None)
        _set_class(self, self._ordinary)

    def _pixels(self, chain: Chain) -> np.ndarray | Image.Image:
        pixels: np.ndarray | None = vars(self).get("_array")
        return chain.make() if pixels is None else pixels

    def __reduce_ex__(self, protocol: Any) -> Any:
        ordinary = self._ordinary  # pickle takes the class before it asks for the state
        self._im  # noqa: B018
        _set_class(self, ordinary)
        return self.__reduce_ex__(protocol)

    # -- postponed operations ----------------------------------------------------------------------------------------

    def load(self) -> Any:
        """Do what Pillow's method does, but decode nothing yet."""
        return PostponedAccess(self)

    def _chain(self) -> Chain | None:
        """Return the chain, at a point where Pillow would decode. None: the image is an ordinary one."""
        if "_postponed" not in vars(self):
            self.load()
        chain: Chain | None = vars(self).get("_postponed")
        return chain

    def _next(self, chain: Chain) -> Image.Image:
        """Return a new image, as Pillow's ``_new`` makes it."""
        new = Image.Image()
        new._mode, new._size, new.info = chain.mode, chain.size, self.info.copy()
        vars(new)["_postponed"] = chain
        _set_class(new, PostponedImage)
        return new

    def copy(self) -> Image.Image:
        """Do what Pillow's method does, postponed."""
        chain = self._chain()
        return Image.Image.copy(self) if chain is None else self._next(chain)

    __copy__ = copy

    def convert(self, mode: Any = None, *arguments: Any, **named: Any) -> Image.Image:
        """Do what Pillow's method does. A conversion to RGB is postponed, and one that changes nothing."""
        plain = not (arguments or named) and mode in (None, "RGB", self.mode)
        chain = self._chain() if plain and "transparency" not in self.info else None
        if chain is None:
            return Image.Image.convert(self, mode, *arguments, **named)
        return self._next(chain if mode is None else chain.converted(mode))

    def crop(self, box: Any = None) -> Image.Image:
        """Do what Pillow's method does. A crop inside the image is postponed."""
        size: tuple[int, int] = self._size
        step = _crop(size, box)
        chain = None if step is None else self._chain()
        if step is None or chain is None:
            return Image.Image.crop(self, box)
        return self._next(chain if (step.width, step.height) == size else chain.then(step))

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Image.Image:
        """Do what Pillow's method does. A resize without ``box`` and ``reducing_gap`` is postponed."""
        own: tuple[int, int] = self._size
        step = _resize(size, resample) if box is None and reducing_gap is None else None
        chain = None if step is None else self._chain()
        if step is None or chain is None:
            return Image.Image.resize(self, size, resample, box, reducing_gap)
        return self._next(chain if (step.width, step.height) == own else chain.then(step))

    def transpose(self, method: Any) -> Image.Image:
        """Do what Pillow's method does. Flips and a rotation by 180 degrees are postponed."""
        steps = _FLIPS.get(method) if isinstance(method, int) else None
        chain = None if steps is None else self._chain()
        if steps is None or chain is None:
            return Image.Image.transpose(self, method)
        return self._next(chain.then(*steps))

    @property
    def __array_interface__(self) -> Any:
        """numpy's interface over the kernel's own array. It is read-only, as Pillow's is."""
        chain = self._chain()
        pixels = None if chain is None else self._pixels(chain)
        if isinstance(pixels, np.ndarray):
            vars(self)["_array"] = pixels
            shape, kind = Image._conv_type_shape(self)
            return {"version": 3, "data": memoryview(pixels).toreadonly(), "shape": shape, "typestr": kind}
        if pixels is not None:
            self._im = pixels.im
        return self.__array_interface__  # Pillow's own, since the class is Pillow's now


class PostponedImage(_Postponed):
    """A result of an operation on a postponed image. It becomes an `Image.Image`."""

    _ordinary = Image.Image


class PostponedFile(_Postponed, JpegImageFile):
    """A JPEG that Pillow has opened. It becomes a `JpegImageFile`."""

    _ordinary = JpegImageFile

    def load(self) -> Any:
        """Do what Pillow's method does, but decode only if decoding can't be postponed.

        It reads the file, and closes the file if Pillow has opened it.
        """
        if "_postponed" in vars(self):
            return PostponedAccess(self)
        source = read_source(self)
        if source is None:
            _set_class(self, JpegImageFile)
            return self.load()
        stream: Any = self.fp
        if self._exclusive_fp and self._close_exclusive_fp_after_loading:
            stream.close()
        self.fp, self.tile, self.readonly, self.map = None, [], 0, None
        vars(self)["_postponed"] = Chain(source, self.mode, self.size)
        return PostponedAccess(self)


def _crop(size: tuple[int, int], box: Any) -> Crop | None:
    """Return the step, with Pillow's rounding. None for a box that reaches beyond the image, or that Pillow must judge."""
    if box is None:
        return Crop(0, 0, size[1], size[0])
    try:
        left, top, right, bottom = (int(round(edge)) for edge in box) if isinstance(box, (tuple, list)) else box
    except (TypeError, ValueError, OverflowError):
        return None
    if not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
        return None
    width, height = right - left, bottom - top
    most = Image.MAX_IMAGE_PIXELS
    return None if most is not None and width * height > most else Crop(top, left, height, width)


def _resize(size: Any, resample: Any) -> Resize | None:
    """Return the step. None for sizes and filters that are left to Pillow, which may raise an error for them."""
    name = "bicubic" if resample is None else _FILTERS.get(resample) if isinstance(resample, int) else None
    try:
        width, height = map(operator.index, size)
    except (TypeError, ValueError):
        return None
    return Resize(height, width, name) if name and width > 0 < height and width * height <= _MOST_RESIZED else None
