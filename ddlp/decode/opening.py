"""Makes `Image.open` give postponed images: Pillow's plugin for JPEGs is registered with another factory.

Where that holds: in the whole process (`install`), in one thread for a time (`Here`), or in the worker processes that this one
forks (`in_forks`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from PIL import Image, JpegImagePlugin

from csd_engine import kernels
from csd_engine.errors import PipelineError
from csd_engine.transforms.resample import native_order
from ddlp.decode.image import PostponedFile

__all__ = ["Here", "in_forks", "install", "installed", "not_here", "uninstall", "why_not"]

_FORMAT = "JPEG"
_lock = threading.RLock()  # around what follows
_pillows: Any = None  # the plugin's own entry, while ddlp's entry replaces it
_installed = False
_threads = 0  # `Here` objects that want them
_decide: Callable[[], bool] | None = None  # tells at the first JPEG whether this process, a fork, postpones


class _Thread(threading.local):
    wants: bool | None = None  # whatever the process has; None: as the process


_thread = _Thread()


def why_not() -> str:
    """Return in one line why this process can't have postponed images; "" if it can."""
    if not isinstance(vars(Image.Image).get("im"), property):
        return f"Pillow {Image.__version__} keeps an image's pixels where nothing can be put before them; 11.0 and newer don't"
    try:
        native_order()
    except PipelineError as error:
        return str(error)
    return kernels.why_not()


def install() -> bool:
    """Have `PIL.Image.open` give postponed JPEGs in this process. False if it can't; `why_not` tells the reason.

    Pixels, sizes, metadata, errors and warnings stay the same as Pillow's. Only an error in mid-file may come later than
    ``load()``, with the first use of pixels.
    """
    global _installed, _decide
    with _lock:
        _decide = None  # first: loading the kernel opens JPEGs
        _installed = _can()
        (_register if _installed else _unregister)()
    return _installed


def installed() -> bool:
    """Whether `install` is in effect."""
    return _installed


def uninstall() -> None:
    """Have `PIL.Image.open` give Pillow's own images again. Images that were opened meanwhile stay as they are."""
    global _installed, _decide
    with _lock:
        _installed, _decide = False, None
        _unregister()


def not_here(worker: int) -> None:
    """A ``worker_init_fn`` of DataLoader: this worker gets Pillow's own images, whatever its parent has. For comparisons."""
    uninstall()


class Here:
    """Has `PIL.Image.open` give postponed JPEGs to the thread that is in its block; Pillow's own if not ``wants``.

    Other threads get what they got before. The block may be entered again and again. `close`, or the end of this object, puts
    Pillow's own entry back. Whether this process can have postponed images is found out at the first JPEG.
    """

    def __init__(self, wants: bool = True) -> None:
        global _threads
        self._wants, self._open = wants, wants
        self._before: bool | None = None
        with _lock:
            _threads += wants
            if wants:
                _register()

    def __enter__(self) -> None:
        self._before, _thread.wants = _thread.wants, self._wants

    def __exit__(self, *error: object) -> None:
        _thread.wants = self._before

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Put Pillow's own entry back, if nobody else wants ddlp's. May be called twice, and by any thread."""
        global _threads
        with _lock:
            if self._open:
                _threads = max(0, _threads - self._wants)  # a forked child does not know how many
            self._open = False
            _unregister()


def in_forks(wanted: Callable[[], bool]) -> None:
    """Have `PIL.Image.open` give postponed JPEGs in processes that this one forks.

    Args:
        wanted: tells in the child whether it should. It is called at the child's first JPEG: before, a worker does not know yet
            what it is.
    """

    def in_child() -> None:
        global _decide
        if not _installed:
            _decide = wanted
            _register()

    if hasattr(os, "register_at_fork"):  # Windows has no fork
        Image.preinit()  # in a child it would register Pillow's entry again
        os.register_at_fork(after_in_child=in_child)


def _register() -> None:
    global _pillows
    if _pillows is None:
        Image.preinit()
        entry = Image.OPEN[_FORMAT]
        _pillows = getattr(entry[0], "pillows", entry)  # `ddlp run` has put a factory there that waits for the first JPEG
        Image.OPEN[_FORMAT] = (_open, _pillows[1])


def _unregister() -> None:
    global _pillows
    if _pillows is not None and not (_installed or _threads or _decide):
        Image.OPEN[_FORMAT], _pillows = _pillows, None


def _open(*arguments: Any) -> Any:
    global _decide
    if _decide is not None:
        with _lock:
            wanted, _decide = _decide, None
            if wanted is not None and wanted():
                install()
            _unregister()
    # If the `Here` of another thread has ended since Pillow looked `_open` up, the plugin's own factory is back in its place.
    image = (_pillows or Image.OPEN[_FORMAT])[0](*arguments)
    wants = _thread.wants
    if type(image) is JpegImagePlugin.JpegImageFile and (_installed if wants is None else wants and _can()):
        image.__class__ = PostponedFile
    return image


def _can() -> bool:
    """Whether this process can have postponed images. Loading the kernel opens JPEGs too: these are Pillow's."""
    wants, _thread.wants = _thread.wants, False
    try:
        return not why_not()
    finally:
        _thread.wants = wants


def _in_child() -> None:
    """Forget the parent's other threads: they may have held the lock."""
    global _lock, _threads
    _lock, _threads = threading.RLock(), int(_thread.wants or False)
    _unregister()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
