"""Pipeline: checked plain data that says how a sample's pixels are made."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError, quote
from csd_engine.transforms import checks
from csd_engine.transforms.containers import Group, SizedViews, group_out, leaves, row_size
from csd_engine.transforms.operators import Box, Canvas, Shape
from csd_engine.transforms.parse import parse_ops, require_keys
from csd_engine.transforms.primitives import CHANNELS, Crop, Primitive, Resize, UserCall, apply_primitive
from csd_engine.transforms.reduced import DECODES, draft, is_jpeg, reduced
from csd_engine.transforms.resample import ORDERS, crop_resize
from csd_engine.transforms.user import Calls, User

__all__ = ["Pipeline", "SamplePlan", "row_shape"]

FORMAT = 1


class SamplePlan(NamedTuple):
    """The plan of one sample: the result of drawing its random operators.

    Attributes:
        primitives: steps to run in turn on the image, converted to the pipeline's mode.
        shape: (height, width, channels) of the result.
        boxes: (top, left, bottom, right) of each mask in pixels of the result, zeros for a box that was not drawn.
        reduce: the image is decoded at 1 / reduce of its size: 1, or 2, 4, 8 with decode="fast".
    """

    primitives: Tuple[Primitive, ...]
    shape: Tuple[int, int, int]
    boxes: Tuple[Box, ...]
    reduce: int = 1


def row_shape(plans: Sequence[SamplePlan]) -> Tuple[int, int, int]:
    """(height, width, channels) of a sample's row in a batch, from the plans of the images that it holds."""
    shapes = [plan.shape for plan in plans]
    return shapes[0] if len(shapes) == 1 else (*row_size([shape[:2] for shape in shapes]), shapes[0][2])


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Operators, the mode that images are converted to first, and the order of Pillow's resampling passes.

    Attributes:
        order: ``"pillow12"`` or ``"pillow13"``.
        mode: ``"RGB"`` or ``"L"``.
        operators: the operators in turn.
        boxes: mask boxes a sample, 0 if none.
        decode: ``"exact"``, or ``"fast"``: JPEGs are decoded at a fraction of their size if that is enough.
    """

    order: str
    mode: str
    operators: Group
    boxes: int
    decode: str = "exact"

    @staticmethod
    def parse(data: Any, calls: Optional[Calls] = None) -> Pipeline:
        """Make a pipeline from plain data, which may be hostile; PipelineError quotes operator, parameter and value.

        ``calls`` finds the user's own functions (``OperatorDirectory.call`` on a device). Its errors pass through. Without it
        a pipeline with such functions can be inspected, but not run.
        """
        require_keys(data, ["format", "order", "mode", "ops"], "pipeline", optional=["decode"])
        if type(data["format"]) is not int or data["format"] != FORMAT:
            raise PipelineError(f"pipeline: format={quote(data['format'])}: this version reads format {FORMAT}; "
                                "install the same version of ddlp on both sides")
        decode = data.get("decode", "exact")
        named = (("order", data["order"], ORDERS), ("mode", data["mode"], tuple(CHANNELS)), ("decode", decode, DECODES))
        for name, value, allowed in named:
            if type(value) is not str or value not in allowed:
                raise PipelineError(f"pipeline: {name}={quote(value)}: expected one of {allowed!r}")
        operators, boxes = parse_ops(data["ops"], calls=calls)
        return Pipeline(data["order"], data["mode"], operators, boxes, decode)

    def to_data(self) -> Dict[str, Any]:
        """Plain JSON data, from which ``Pipeline.parse`` makes an equal pipeline."""
        ops = [operator.to_data() for operator in self.operators]
        data = {"format": FORMAT, "order": self.order, "mode": self.mode, "ops": ops}
        return data if self.decode == "exact" else dict(data, decode=self.decode)

    @property
    def user_operators(self) -> Tuple[User, ...]:
        """The operators that are the user's functions, including those in containers."""
        return tuple(operator for operator in leaves(self.operators) if isinstance(operator, User))

    @functools.cached_property
    def digest(self) -> str:
        """32 hex digits that stand for this pipeline: blake2b-128 of its canonical JSON."""
        text = json.dumps(self.to_data(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @functools.cached_property
    def each(self) -> Tuple[Pipeline, ...]:
        """The pipelines of the images that a sample's row holds: of each view if views have sizes of their own, else this one.

        All views are made of one decoded image, so it is decoded at its full size.
        """
        first = self.operators[0] if self.operators else None
        if not isinstance(first, SizedViews):
            return (self,)
        return tuple(dataclasses.replace(self, operators=group, decode="exact") for group in first.groups)

    def view_sizes(self, size: Optional[Tuple[int, int]]) -> Tuple[Tuple[int, int], ...]:
        """(height, width) of each view in a row; empty unless views have sizes of their own. Arguments as of `output_shape`."""
        return tuple(view.output_shape(size)[:2] for view in self.each) if len(self.each) > 1 else ()

    def known_shape(self, size: Optional[Tuple[int, int]]) -> Shape:
        """What is known of the output for sources of (width, height); None: each source has its own size."""
        return group_out(self.operators, Shape(None if size is None else (size[1], size[0]), CHANNELS[self.mode]))

    def output_shape(self, size: Optional[Tuple[int, int]]) -> Tuple[int, int, int]:
        """(height, width, channels) of the output for sources of (width, height); None: each source has its own size.

        Raises PipelineError if the samples of a batch could differ in size or channels.
        """
        shape = self.known_shape(size)
        sources = "sources of many sizes" if size is None else f"sources of {size[0]}x{size[1]}"
        if shape.size is None:
            raise PipelineError(f"the output's size is not fixed for {sources}: ops={quote(self.to_data()['ops'])}; "
                                "end with an operator of fixed size, such as Resize([h, w]) or CenterCrop")
        if shape.channels is None:
            raise PipelineError(f"the number of channels is left to chance: ops={quote(self.to_data()['ops'])}; "
                                "use Grayscale with 3 channels inside random operators")
        height, width = shape.size
        if not (0 < height <= checks.MAX_SIDE and 0 < width <= checks.MAX_SIDE and height * width <= checks.MAX_PIXELS):
            raise PipelineError(f"the output for {sources} would be {width}x{height} pixels (width x height); sides "
                                f"must be 1 to {checks.MAX_SIDE} and pixels at most {checks.MAX_PIXELS}")
        return height, width, shape.channels

    def draw(self, size: Tuple[int, int], keyed: Keyed, jpeg: bool = False) -> SamplePlan:
        """Plan an image of (width, height) with numbers from ``keyed``; PipelineError if an operator refuses the image.

        ``jpeg`` tells that the source is a JPEG file, which decode="fast" may decode at a fraction of its size.
        """
        canvas = Canvas(size[1], size[0], CHANNELS[self.mode], self.boxes)
        for operator in self.operators:
            operator.draw(canvas, keyed)
        steps, reduce = tuple(canvas.steps), 1
        if jpeg and self.decode == "fast":
            steps, reduce = reduced(steps, size)
        return SamplePlan(steps, (canvas.height, canvas.width, canvas.channels), tuple(canvas.boxes), reduce)

    def draw_row(self, size: Tuple[int, int], keyed: Keyed, jpeg: bool = False) -> List[SamplePlan]:
        """Plan each image that the sample's row holds, in the order of `each`. Arguments and errors as of `draw`."""
        if len(self.each) == 1:
            return [self.draw(size, keyed, jpeg)]
        return [view.draw(size, keyed.of_view(number, len(self.each)), jpeg) for number, view in enumerate(self.each)]

    def places(self, plans: Sequence[SamplePlan], out: np.ndarray, boxes: Optional[np.ndarray]) -> List[np.ndarray]:
        """Return each planned image's place in the sample's row, and write the mask boxes.

        Room that no image fills becomes 0. Raises ValueError if ``out`` is not uint8 of the row's shape, or as `place_boxes`.
        """
        _check_output(row_shape(plans), out)
        if len(plans) == 1:
            self.place_boxes(plans[0], boxes)
            return [out]
        places, flat, at = [], out.reshape(-1), 0
        for plan in plans:
            height, width, channels = plan.shape
            end = at + height * width * channels
            places.append(flat[at:end].reshape(plan.shape))
            at = end
        flat[at:] = 0
        return places

    def apply(self, image: Image.Image, plan: SamplePlan, out: np.ndarray) -> None:
        """Write the plan's result for an opened image into ``out``, uint8 of ``plan.shape``.

        The image is converted to the pipeline's mode as torchvision's default_loader does. Errors of decoding
        (OSError and others) are Pillow's own. Raises ValueError if ``out`` has another shape or dtype.
        """
        _check_output(plan.shape, out)
        if plan.reduce > 1:
            draft(image, plan.reduce)
        steps = plan.primitives
        if len(steps) > 1 and isinstance(steps[0], Crop) and isinstance(steps[1], Resize):
            box, to = steps[0].box, steps[1]
            image = crop_resize(image, box, self.mode, to.width, to.height, to.interpolation, self.order)
            steps = steps[2:]
        elif image.mode != self.mode:
            image = image.convert(self.mode)
        self.finish(image, steps, out)

    def finish(self, image: Image.Image, steps: Tuple[Primitive, ...], out: np.ndarray) -> None:
        """Run a plan's last steps on the result of the others, an image of the pipeline's mode, and write it into ``out``."""
        for step in steps:
            image = apply_primitive(image, step, self.order)
        out[...] = np.asarray(image).reshape(out.shape)

    def run(self, image: Image.Image, keyed: Keyed, out: np.ndarray, boxes: Optional[np.ndarray]) -> None:
        """Draw, then apply: pixels into ``out`` (height, width, channels), boxes into ``boxes``, int32 (boxes, 4).

        ``boxes`` may be None only if the pipeline has no masks, else ValueError.
        """
        self.apply_row(image, self.draw_image(image, keyed), out, boxes)

    def draw_image(self, image: Image.Image, keyed: Keyed) -> List[SamplePlan]:
        """Plan each image of the sample's row for an opened image, as `draw_row`.

        If an operator refuses the image, it is decoded: a damaged file's header may give any size, and the error of such a file
        is Pillow's own, as in torchvision, which decodes first.
        """
        try:
            return self.draw_row(image.size, keyed, is_jpeg(image))
        except Exception:
            image.convert(self.mode)
            raise

    def apply_row(self, image: Image.Image, plans: Sequence[SamplePlan], out: np.ndarray, boxes: Optional[np.ndarray]) -> None:
        """Write the result of `draw_image` for an opened image into ``out`` and ``boxes``, as `run`."""
        for view, plan, place in zip(self.each, plans, self.places(plans, out, boxes)):
            shared = len(plans) > 1 and plan.primitives and isinstance(plan.primitives[0], UserCall)
            view.apply(image.copy() if shared else image, plan, place)  # a function may draw on the image that it gets

    def place_boxes(self, plan: SamplePlan, boxes: Optional[np.ndarray]) -> None:
        """Write the plan's mask boxes, if the pipeline has any, into ``boxes``; ValueError if ``boxes`` is None then."""
        if self.boxes:
            if boxes is None:
                raise ValueError(f"run: the pipeline draws {self.boxes} mask boxes a sample, but boxes is None; "
                                 f"pass an int32 array of ({self.boxes}, 4)")
            boxes[...] = plan.boxes


def _check_output(shape: Tuple[int, int, int], out: np.ndarray) -> None:
    """Raise ValueError if ``out`` is not uint8 of this shape."""
    if out.shape != shape or out.dtype != np.uint8:
        raise ValueError(f"the image is uint8 of shape {shape} (height, width, channels), and its place in the batch "
                         f"{out.dtype} of shape {out.shape}")
