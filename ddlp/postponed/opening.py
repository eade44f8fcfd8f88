"""Makes `Image.open` give postponed images: Pillow's plugin for JPEGs is registered with another factory."""

from __future__ import annotations

from typing import Any

from PIL import Image, JpegImagePlugin

from csd_engine import kernels
from csd_engine.errors import PipelineError
from csd_engine.transforms.resample import native_order
from ddlp.postponed.image import PostponedFile

__all__ = ["install", "installed", "uninstall", "why_not"]

_FORMAT = "JPEG"
_pillows: Any = None  # the plugin's own entry, while ddlp's entry replaces it


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
    global _pillows
    if _pillows is not None:
        return True
    if why_not():
        return False
    Image.preinit()
    _pillows = Image.OPEN[_FORMAT]
    Image.OPEN[_FORMAT] = (_open, _pillows[1])
    return True


def installed() -> bool:
    """Whether `install` is in effect."""
    return _pillows is not None


def uninstall() -> None:
    """Have `PIL.Image.open` give Pillow's own images again. Images that were opened meanwhile stay as they are."""
    global _pillows
    if _pillows is not None:
        Image.OPEN[_FORMAT], _pillows = _pillows, None


def _open(*arguments: Any) -> Any:
    image = _pillows[0](*arguments)
    if type(image) is JpegImagePlugin.JpegImageFile:
        image.__class__ = PostponedFile
    return image
