"""Joint transforms of torchvision's v2, for detection and segmentation: boxes, masks and key points follow their image.

The image goes through the pipeline, on either side. The host draws the same plan again, for which the image's size is all that
it needs, and runs each operator's own code, torchvision's, on the target with what was drawn. So a target has torchvision's
bits, and does not depend on who has prepared the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import tree_flatten, tree_unflatten
from torchvision import tv_tensors
from torchvision.transforms import v2

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms.containers import Group
from csd_engine.transforms.operators import Canvas
from csd_engine.transforms.primitives import Crop, Pad, Primitive
from ddlp.transforms import CachePoint

__all__ = ["Joint", "changes_image", "follows", "foreign_part"]

Size = tuple[int, int]
Params = dict[str, Any]
_Drawn = Callable[[list[Primitive], Size, Size], Params | None]


def _by_itself(steps: list[Primitive], before: Size, after: Size) -> Params | None:
    return {}


def _if_drawn(steps: list[Primitive], before: Size, after: Size) -> Params | None:
    return {} if steps else None


def _size(steps: list[Primitive], before: Size, after: Size) -> Params | None:
    return {"size": list(after)}


def _rectangle(steps: list[Primitive], before: Size, after: Size) -> Params | None:
    return _placed(steps[0] if steps and isinstance(steps[0], Crop) else Crop(0, 0, *before))


def _placed(crop: Crop) -> Params:
    return {"top": crop.top, "left": crop.left, "height": crop.height, "width": crop.width}


def _padded_crop(steps: list[Primitive], before: Size, after: Size) -> Params | None:
    pad = next((step for step in steps if isinstance(step, Pad)), None)
    crop = next((step for step in steps if isinstance(step, Crop)), None)
    return {
        "needs_pad": pad is not None, "padding": [0, 0, 0, 0] if pad is None else [pad.left, pad.top, pad.right, pad.bottom],
        "needs_crop": crop is not None, **_placed(crop or Crop(0, 0, *after)),
    }  # fmt: skip


_GEOMETRY: dict[type, _Drawn] = {
    v2.Resize: _by_itself,
    v2.CenterCrop: _by_itself,
    v2.Pad: _by_itself,
    v2.RandomHorizontalFlip: _if_drawn,
    v2.RandomVerticalFlip: _if_drawn,
    v2.ScaleJitter: _size,
    v2.RandomShortestSize: _size,
    v2.RandomResizedCrop: _rectangle,
    v2.RandomCrop: _padded_crop,
}
"""The operators that targets follow, and what each takes as its ``params``: of the steps that were drawn for it, and of the
image's (height, width) before and after it. None: it does nothing this time."""


def _v2(*names: str) -> tuple[type, ...]:
    """v2's classes of these names, as far as this torchvision has them."""
    return tuple(getattr(v2, name) for name in names if hasattr(v2, name))


_VALUES = _v2("ToDtype", "ConvertImageDtype", "Normalize", "ToPureTensor")  # run on targets as they are
_IMAGE_ALONE = (CachePoint, *_v2(
    "Identity", "ToImage", "PILToTensor", "ToTensor", "RGB", "Grayscale", "RandomGrayscale", "ColorJitter", "GaussianBlur",
    "RandomAdjustSharpness", "RandomPosterize", "RandomSolarize", "RandomInvert", "RandomAutocontrast", "RandomEqualize",
))  # fmt: skip
_TARGET_ALONE = _v2(
    "SanitizeBoundingBoxes", "ClampBoundingBoxes", "ConvertBoundingBoxFormat", "ClampKeyPoints", "SetClampingMode"
)
_RUN = "transform" if hasattr(v2.Transform, "transform") else "_transform"  # public since torchvision 0.21
_IMAGE = tv_tensors.Image(torch.zeros(1, 1, 1, dtype=torch.uint8))  # stands for the image where an operator looks at targets


def follows(step: Any) -> bool:
    """Whether ddlp knows what a step of a joint transform does to targets, by its exact type."""
    if type(step) is v2.RandomCrop and step.padding is not None and min(step.padding) < 0:
        return False  # it crops before it pads
    return type(step) in (*_GEOMETRY, *_VALUES, *_IMAGE_ALONE, *_TARGET_ALONE)


def changes_image(step: Any) -> bool:
    """Whether a step that targets follow does anything to images."""
    return type(step) not in _TARGET_ALONE


def foreign_part(target: Any) -> str | None:
    """The type of a part of a target that v2 would change as an image, so that no drawn plan tells how; None: there is none."""
    kinds = (Image.Image, np.ndarray, tv_tensors.Image, tv_tensors.Video)
    return next((type(part).__qualname__ for part in tree_flatten(target)[0] if isinstance(part, kinds)), None)


@dataclass(frozen=True)
class Joint:
    """The known steps of a joint transform, for targets.

    Attributes:
        steps: each step, and the pipeline's operators that it became, in turn.
        channels: of the images before the first step.
        from_raw: for each part of the data set, what makes the target that its transforms get, of the target that is kept and
            of the image's (width, height); None: it is kept as they get it.
    """

    steps: tuple[tuple[Any, Group], ...]
    channels: int
    from_raw: tuple[Callable[[Any, Size], Any] | None, ...] = ()

    def follow(self, target: Any, part: int, size: Size, keyed: Keyed) -> Any:
        """Return a target as the joint transform changes it together with its image.

        Args:
            target: of any structure. Its TVTensors follow; the rest stays.
            part: the number of the data set's part that it is from.
            size: (width, height) of the image file.
            keyed: the sample's stream of random numbers, from its beginning.

        Raises:
            TypeError: the target has an image in it. Errors of torchvision's operators and of ``from_raw`` pass through.
        """
        make = self.from_raw[part]
        if make is not None:
            target = make(target, size)
        foreign = foreign_part(target)
        if foreign is not None:
            raise TypeError(f"the target has a {foreign} in it, which a joint transform changes as an image; "
                            "give it as a tv_tensors.Mask, or pass own_steps='off' to the loader")
        canvas = Canvas(size[1], size[0], self.channels, 0)
        for step, operators in self.steps:
            before, drawn = (canvas.height, canvas.width), len(canvas.steps)
            for operator in operators:
                operator.draw(canvas, keyed)
            kind = type(step)
            if kind in _TARGET_ALONE:
                target = step(_IMAGE, target)[1]
            elif kind in _GEOMETRY or kind in _VALUES:
                params = _GEOMETRY.get(kind, _by_itself)(canvas.steps[drawn:], before, (canvas.height, canvas.width))
                if params is not None:
                    target = _applied(step, target, params)
        return target


def _applied(step: Any, target: Any, params: Params) -> Any:
    """Run a step on the TVTensors of a target, as v2's own forward does once it has drawn."""
    parts, structure = tree_flatten(target)
    run = getattr(step, _RUN)
    return tree_unflatten([run(part, params) if isinstance(part, tv_tensors.TVTensor) else part for part in parts], structure)
