"""Which steps of a portable pipeline DALI runs, and how far its pixels are from torchvision's. Nothing here needs DALI.

DALI gets the windows, sizes and flips that the keyed generator drew. Its own random operators are never used, so that the
host's samples are augmented in the same way as a device's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from csd_engine.transforms import operators
from csd_engine.transforms.containers import Container, group_out
from csd_engine.transforms.masks import Mask
from csd_engine.transforms.operators import Operator, Shape
from csd_engine.transforms.torch_resample import TORCH_FILTERS
from csd_engine.transforms.user import User
from ddlp.translate.portable import Portable

__all__ = ["DISTANCES", "Stages", "stages"]

LEAVE = "leave backend='dali' out: ddlp's own code prepares the host's batches then"


@dataclass(frozen=True)
class Distance:
    """Grey levels (0 to 255) between DALI's pixels and torchvision's, as docs/dali.md has them."""

    mean: float
    most: int


# Pillow rounds to bytes between the two passes of a resize. DALI rounds once at the end, and bicubic overshoots in between. If
# the filter reaches over the image's border, Pillow leaves that part out, and DALI repeats the border's pixels.
DISTANCES = {"bilinear": Distance(0.17, 19), "bicubic": Distance(0.19, 15)}


@dataclass(frozen=True)
class Stages:
    """The steps of a DALI pipeline, in this order. Each sample has its own numbers for them.

    A window of the file is decoded, and resampled by ``resample`` ("bilinear", "bicubic", None: not at all). A part of the
    result is kept (``part``). It is mirrored left-right (``mirrored``) and top-bottom (``upside_down``).
    """

    resample: str | None
    part: bool
    mirrored: bool
    upside_down: bool

    def distance(self, on_gpu: bool) -> str:
        """Say in words how far the pixels are from torchvision's; ``on_gpu``: DALI decodes on the GPU."""
        if on_gpu:
            return (
                "the host's pixels, decoded on the GPU, differ from torchvision's; by how much was not measured so far "
                "(docs/dali.md); a device's are torchvision's"
            )
        if self.resample is None:
            return "the host's pixels are torchvision's"
        known = DISTANCES[self.resample]
        return (
            f"the host's pixels differ from torchvision's by {known.mean} grey levels in the mean and {known.most} at most, as "
            f"measured for {self.resample} resizing (docs/dali.md); a device's are torchvision's"
        )


def stages(portable: Portable) -> Stages:
    """Return the steps of the DALI pipeline that prepares these samples.

    Raises a ValueError if DALI can't do something as torchvision does it. The error names it, and says what to do.
    """
    pipeline = portable.pipeline
    for part in portable.dataset.parts:
        if part.rows() is not None:
            _refuse(part.name, "its samples are rows of an array: nothing to decode, and ddlp's own code is faster", LEAVE)
    if pipeline.mode != "RGB":
        _refuse(f"mode {pipeline.mode!r}", "DALI takes grey from a JPEG's luma, torchvision from the colours", LEAVE)
    if pipeline.decode != "exact":
        _refuse(f"decode={pipeline.decode!r}", "DALI decodes JPEGs at their full size", "leave one of them out")
    resample: str | None = None
    resampled = part_kept = mirrored = upside_down = False
    for at, operator in enumerate(pipeline.operators):
        if isinstance(operator, (operators.Resize, operators.RandomResizedCrop)):
            if operator.interpolation in TORCH_FILTERS:
                _refuse(_name(operator), "behind ToImage it has torch's pixels", "move ToImage behind it, or pass as_pil=True")
            if operator.interpolation not in DISTANCES:
                _refuse(_name(operator), f"interpolation {operator.interpolation!r} differs in DALI", "use bilinear or bicubic")
            if resampled:
                _refuse(_name(operator), "it resizes a second time", "resize once, or " + LEAVE)
            if mirrored or upside_down:
                _refuse(_name(operator), "it comes after a flip", "flip behind it: what a sample may become is the same")
            resample, resampled = operator.interpolation, True
        elif isinstance(operator, operators.CenterCrop):
            known = group_out(pipeline.operators[:at], Shape(None, 3)).size
            if known is not None and (operator.size[0] > known[0] or operator.size[1] > known[1]):
                _refuse(_name(operator), f"it pads images of {list(known)}", "crop to what there is, or " + LEAVE)
            part_kept = resampled
        elif isinstance(operator, operators.RandomCrop):
            if operator.padding is not None or operator.pad_if_needed:
                _refuse(_name(operator), "it pads", "crop without padding, or " + LEAVE)
            part_kept = resampled
        elif isinstance(operator, operators.RandomHorizontalFlip):
            mirrored = True
        elif isinstance(operator, operators.RandomVerticalFlip):
            upside_down = True
        elif not isinstance(operator, Mask):  # the epilogue fills masks
            _refuse(_name(operator), _why(operator), LEAVE)
    return Stages(resample, part_kept, mirrored, upside_down)


def _why(operator: Operator) -> str:
    if isinstance(operator, User):
        return "DALI can't run your functions"
    if isinstance(operator, Container):
        return "which operators run, and in what order, is fixed in a DALI pipeline"
    return "DALI has no counterpart that gives the same pixels"


def _name(operator: Operator) -> str:
    return operator.function if isinstance(operator, User) else type(operator).__name__


def _refuse(what: str, why: str, way_out: str) -> NoReturn:
    raise ValueError(f"backend='dali': {what}: {why}. Way out: {way_out}.")
