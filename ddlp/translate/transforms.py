"""Translates torchvision's transforms (v1 and v2, exact types) to a Pipeline and an Epilogue."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import ImageClassification

from csd_engine.errors import PipelineError
from csd_engine.kernels import kernel, why_not
from csd_engine.prepare.operator_file import OperatorCall, OperatorFile
from csd_engine.transforms.colour import ColorJitter
from csd_engine.transforms.containers import leaves
from csd_engine.transforms.operators import Operator
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.policies import OPERATORS as POLICIES
from csd_engine.transforms.resample import native_order
from csd_engine.transforms.torch_pixels import EXACT_MEAN, GRID_FILTERS, PILLOW
from csd_engine.transforms.warp_steps import WARP_FILTERS
from ddlp.errors import Untranslatable
from ddlp.transfer.epilogue import Epilogue
from ddlp.transforms import CachePoint, Cutout, Views
from ddlp.translate import timm
from ddlp.translate.parameters import borders, interpolation, plain, size_pair
from ddlp.translate.torch_pixels import torch_filter, torchs_pixels
from ddlp.translate.user_operators import UserOperator
from ddlp.translate.values import BATCH, KEEP, Values
from ddlp.translate.views import Held, ViewTransforms, views_of

__all__ = ["Translation", "obstacles_in", "names_of", "operator_counts", "steps_of", "translate",
           "translate_steps", "translate_views_steps", "view_transforms"]

Data = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Translation:
    """A transform in two parts: either side runs the pipeline on each sample, and the host runs the epilogue on each batch."""

    pipeline: Pipeline
    epilogue: Epilogue
    views: int = 1  # rows of each sample, one for each view; 1 if a row holds views of several sizes
    crops: int = 1  # in each of these images, one below the other
    image_type: type[Tensor] = Tensor  # of the transform's result: v2's is a tv_tensors.Image


def translate(transform: Any, mode: str = "RGB", as_pil: bool = False) -> Translation:
    """Return the pipeline and epilogue that give a transform's result on PIL images of a mode, bit for bit.

    Args:
        transform: an object of torchvision.transforms (v1 or v2), nn.Sequential, ddlp.transforms.Cutout, or an operator
            from ddlp.load_operators.
        mode: ``"RGB"`` (as torchvision's default_loader gives it) or ``"L"``.
        as_pil: operators after ToImage or PILToTensor run as on PIL images, not by torch's kernels.

    Raises:
        Untranslatable: names the operator, the reason and the ways out.
    """
    if transform is None:
        raise _no_transform()
    views = view_transforms(transform)
    if views is None:
        return _Translator(mode, as_pil).translate(transform)
    if isinstance(views.gathered, Held):
        raise _not_a_list(transform)
    return _views(views.transforms, mode, as_pil)


def view_transforms(transform: Any) -> ViewTransforms | None:
    """The views' transforms, as `views_of`, also of an object that only passes its images on to such a transform."""
    return views_of(_wrapped(transform))


def _views(transforms: tuple[Any, ...], mode: str, as_pil: bool) -> Translation:
    each = [_Translator(mode, as_pil) for _ in transforms]
    return _merged(each, [translator.translate(transform) for translator, transform in zip(each, transforms, strict=True)])


def translate_views_steps(
    views: Sequence[Sequence[Any]], mode: str = "RGB", as_pil: bool = False
) -> tuple[Translation, type[Tensor] | None]:
    """Do as `translate_steps` for the first operators of each view. They must end with one type of image."""
    each = [_Translator(mode, as_pil) for _ in views]
    pairs = (translator.translate_steps(steps) for translator, steps in zip(each, views, strict=True))
    translations, types = zip(*pairs, strict=True)
    if len(set(types)) > 1:
        raise Untranslatable("the views", "their first operators give images of different types", [KEEP])
    return _merged(each, translations), types[0]


def _merged(each: Sequence[_Translator], translations: Sequence[Translation]) -> Translation:
    """Join the views' translations to one pipeline, with a group for each view if they differ.

    Values and masks belong to the whole batch, so they must be the same for all views. Views of several sizes share a row.
    """
    first = translations[0]
    if all(
        translation.pipeline.digest == first.pipeline.digest and translation.epilogue.does_what(first.epilogue)
        for translation in translations
    ):
        return dataclasses.replace(first, views=len(translations))
    if any(translation.pipeline.boxes or not translation.epilogue.does_what(first.epilogue) for translation in translations):
        raise Untranslatable("the views", "they turn bytes into different values, or erase differently, and one table "
                             "must hold for the whole batch",
                             ["end all views with the same ToTensor and Normalize, without masks", KEEP])
    # Their channels are those of the table, so they are the same.
    shapes = {translation.pipeline.known_shape(None) for translation in translations}
    merged = _Translator(each[0].mode, each[0].as_pil)
    for translator in each:
        merged.files.update(translator.files)
    ops = [{"op": "Views" if len(shapes) == 1 else "SizedViews", "groups": [translator.ops for translator in each]}]
    rows = len(translations) if len(shapes) == 1 else 1
    return Translation(merged.pipeline("the views", ops), first.epilogue, rows, image_type=first.image_type)


def _no_transform() -> Untranslatable:
    return Untranslatable("transform=None", "the data set yields PIL images, and a batch needs tensors",
                          ["pass transform=ToTensor()", KEEP])


def _not_a_list(transform: Any) -> Untranslatable:
    return Untranslatable(_name(transform), "its views are in a dict, or in a list with more in it, for collate to join",
                          ["return the views alone, in one list", KEEP])


def steps_of(transform: Any, mode: str = "RGB") -> list[Any]:
    """A transform's operators in turn. A Compose, also one inside another, is replaced by its operators."""
    return list(_Translator(mode, False).flat([transform]))


def names_of(steps: Iterable[Any]) -> list[str]:
    """Operators as the user wrote them, each on one line."""
    return [_name(step) for step in steps]


def translate_steps(
    steps: Sequence[Any], mode: str = "RGB", as_pil: bool = False
) -> tuple[Translation, type[Tensor] | None]:
    """Translate the first operators of a transform as `translate` does. They need not make a tensor.

    Returns:
        The translation, and the type of the tensor that the next operator gets. The type is None for a PIL image; then the
        epilogue leaves bytes as they are, in channels_last.

    Raises:
        Untranslatable: as `translate`.
    """
    return _Translator(mode, as_pil).translate_steps(steps)


def operator_counts(steps: Sequence[Any], mode: str = "RGB", as_pil: bool = False) -> list[int]:
    """How many operators of the pipeline each of these steps becomes. `translate_steps` must know all of them."""
    translator, counts = _Translator(mode, as_pil), []
    for step in steps:
        operators = translator.operator(step, inside=None)
        translator.ops.extend(operators)
        counts.append(len(operators))
    return counts


def obstacles_in(transform: Any, mode: str = "RGB", as_pil: bool = False) -> list[Untranslatable]:
    """Return all reasons why a transform can't be translated, in its order. `translate` raises the first of them."""
    if transform is None:
        return [_no_transform()]
    views = view_transforms(transform)
    if views is None:
        return list(_Translator(mode, as_pil).obstacles(transform))
    each = {id(view): view for view in views.transforms}.values()
    obstacles = [obstacle for view in each for obstacle in _Translator(mode, as_pil).obstacles(view)]
    if isinstance(views.gathered, Held):
        obstacles.append(_not_a_list(transform))
    elif not obstacles:
        try:
            _views(views.transforms, mode, as_pil)
        except Untranslatable as obstacle:
            obstacles.append(obstacle)
    return obstacles


def _v2(*names: str) -> tuple[type, ...]:
    """v2's classes of these names, as far as this torchvision has them."""
    return tuple(getattr(v2, name) for name in names if hasattr(v2, name))


OWN = "write it with numpy and Pillow in a file of its own (docs/operators.md): ops = ddlp.load_operators('my_operators.py')"
SEQUENCES = (v1.Compose, v2.Compose, nn.Sequential)
VALUES = (
    v1.PILToTensor, v1.ToTensor, v1.ConvertImageDtype, v1.Normalize, nn.Identity,
    *_v2("PILToTensor", "ToTensor", "ToImage", "ToDtype", "ToPureTensor", "ConvertImageDtype", "Normalize", "Identity"),
)
RESAMPLING = (v1.Resize, v2.Resize, v1.RandomResizedCrop, v2.RandomResizedCrop, v2.ScaleJitter, v2.RandomShortestSize)
_BOTH = (
    "Grayscale", "RandomGrayscale", "ColorJitter", "GaussianBlur", "RandomAdjustSharpness", "RandomPosterize",
    "RandomSolarize", "RandomInvert", "RandomAutocontrast", "RandomEqualize", "RandomRotation", "RandomAffine",
    "RandomPerspective", "AutoAugment", "RandAugment", "TrivialAugmentWide",
)  # fmt: skip
ON_PIXELS = (*(getattr(module, name) for module in (v1, v2) for name in _BOTH), *_v2("RGB"))
SAME_ON_BYTES = (  # torchvision gives the same pixels for a uint8 tensor as for a PIL image
    *(
        getattr(module, name)
        for module in (v1, v2)
        for name in ("RandomPosterize", "RandomSolarize", "RandomInvert", "RandomEqualize", "GaussianBlur")
    ),
    *_v2("RGB"),
)
TORCHS_COLOURS = tuple(  # ddlp knows torch's own pixels
    getattr(module, name)
    for module in (v1, v2)
    for name in ("Grayscale", "RandomGrayscale", "ColorJitter", "RandomAdjustSharpness", "RandomAutocontrast")
)
TORCHS_MAPS = tuple(  # here too, and they move pixels by a matrix
    getattr(module, name)
    for module in (v1, v2)
    for name in ("RandomRotation", "RandomAffine", "AutoAugment", "RandAugment", "TrivialAugmentWide")
)
SEVERAL_CROPS: dict[type, int] = {v1.FiveCrop: 5, v2.FiveCrop: 5, v1.TenCrop: 10, v2.TenCrop: 10}
ERASING = (v1.RandomErasing, v2.RandomErasing)
RANDOM = (v1.RandomApply, v2.RandomApply, v1.RandomChoice, v2.RandomChoice, v1.RandomOrder, v2.RandomOrder)


class _Translator:
    def __init__(self, mode: str, as_pil: bool) -> None:
        self.mode = mode
        self.as_pil = as_pil
        self.ops: list[Data] = []
        self.values = Values()
        self.fills: list[list[float]] = []
        self.files: dict[str, OperatorFile] = {}
        self.crops = 1  # of each image, which the next operator gets as a tuple
        self.timm = timm.loaded()
        self.handlers = _handlers(self)

    def translate(self, transform: Any) -> Translation:
        for obstacle in self.obstacles(transform):
            raise obstacle
        translation = Translation(self.pipeline("the transform", self.ops), self.values.epilogue())
        assert self.values.tensor is not None  # or the epilogue had raised
        return dataclasses.replace(translation, image_type=type(self.values.tensor))

    def translate_steps(self, steps: Sequence[Any]) -> tuple[Translation, type[Tensor] | None]:
        for step in steps:
            self.ops.extend(self.operator(step, inside=None))
        pipeline, tensor = self.pipeline("the transform", self.ops), self.values.tensor
        if tensor is not None:
            return Translation(pipeline, self.values.epilogue()), type(tensor)
        fills = torch.zeros(0, self.channels("the transform"), dtype=torch.float32)  # whatever torch's default dtype is
        return Translation(pipeline, Epilogue(None, fills, torch.uint8, torch.channels_last), crops=self.crops), None

    def obstacles(self, transform: Any) -> Iterator[Untranslatable]:
        """Yield what can't be translated, operator by operator, as if the refused operators before were left out."""
        refused = False
        for leaf in self.flat([transform]):
            try:
                self.ops.extend(self.operator(leaf, inside=None))
            except Untranslatable as obstacle:
                # A refused operator may be the one that makes the tensor, so a missing tensor is no obstacle after it.
                on_tensors = (*VALUES, *ERASING, Cutout, *self.timm.values, *self.timm.erasing)
                if not (refused and self.values.tensor is None and type(leaf) in on_tensors):
                    yield obstacle
                refused = True
        if not refused:
            try:
                self.values.epilogue()
            except Untranslatable as obstacle:
                yield obstacle

    def pipeline(self, name: str, ops: list[Data]) -> Pipeline:
        try:
            data = {"format": 1, "order": native_order(), "mode": self.mode, "ops": ops}
            return Pipeline.parse(data, self.call)
        except PipelineError as error:
            raise Untranslatable(name, str(error), ["correct the parameter", KEEP]) from error

    def call(self, file: str, function: str, parameters: Mapping[str, Any]) -> OperatorCall:
        """Return the call of a user's function, for the pipeline's parser."""
        return self.files[file].call(function, parameters)

    def flat(self, transforms: Iterable[Any]) -> Iterable[Any]:
        for transform in transforms:
            transform = _wrapped(transform)
            if type(transform) is ImageClassification and not _hooked(transform):
                yield from _written_out(transform)
                continue
            if type(transform) not in SEQUENCES or _hooked(transform):
                yield transform
                continue
            yield from self.flat(transform if type(transform) is nn.Sequential else transform.transforms)

    def operator(self, transform: Any, inside: str | None) -> list[Data]:
        """Return the plain data of one operator. A value operator changes ``values`` instead, and gives an empty list."""
        ops = self.of_any_size(transform, inside)
        if inside is None:
            self.require_exact_means(_name(transform), ops)
        return ops

    def of_any_size(self, transform: Any, inside: str | None) -> list[Data]:
        kind, name = type(transform), _name(transform)
        self.require_untouched(transform)
        if kind is CachePoint:
            if inside is not None:
                raise Untranslatable(name, f"it stands inside {inside}", ["put it into the outermost Compose", "leave it out"])
            return []
        if self.crops > 1:
            raise Untranslatable(name, "it gets several crops of each image, not one", [KEEP])
        if kind in VALUES or kind in self.timm.values:
            self.value(transform, name, inside)
            return []
        if kind in RANDOM:
            return self.container(transform)
        if kind in ERASING or kind is Cutout:
            return self.mask(transform, name)
        if kind in self.timm.erasing:
            return self.erased_blocks(transform, name)
        if kind is Views:
            raise Untranslatable(name, "it gives several images, and stands inside another transform",
                                 ["let it be the whole transform, with all steps in each of its views", KEEP])
        if kind not in self.handlers:
            raise Untranslatable(name, "it is not one of the operators that ddlp knows (exact torchvision types; a "
                                 "subclass or function may do anything)",
                                 [*_instead(transform), OWN, BATCH, KEEP])
        if self.values.masks:
            raise Untranslatable(name, "it comes after an operator that masks pixels, and masks are drawn for the "
                                 "finished image", ["move RandomErasing and Cutout to the end", KEEP])
        if self.values.tensor is not None and (kind in RESAMPLING + ON_PIXELS or kind in self.timm.on_pixels):
            self.require_known_pixels(transform, name)
        if kind in SEVERAL_CROPS and (inside is not None or self.values.tensor is not None):
            where = "after ToImage or ToTensor" if inside is None else f"inside {inside}"
            raise Untranslatable(name, f"it comes {where}, and ddlp knows it for PIL images and for every sample only",
                                 ["let it be an operator of its own, before ToImage or ToTensor", KEEP])
        if self.values.tensor is not None and kind is UserOperator:
            raise Untranslatable(name, "it takes a PIL image and comes after ToImage or ToTensor",
                                 ["move it before ToImage or ToTensor", KEEP])
        ops = self.handlers[kind](transform)
        if kind in SEVERAL_CROPS:
            self.crops = SEVERAL_CROPS[kind]
        self.pipeline(name, ops)
        if self.values.bytes_only:
            self.values.has_channels(self.pipeline(name, [*self.ops, *ops]).known_shape(None).channels)
        return ops

    def require_untouched(self, transform: Any) -> None:
        if _hooked(transform):
            raise Untranslatable(_name(transform), "it has forward hooks or a forward of its own",
                                 ["remove the hooks", KEEP])

    def require_known_pixels(self, transform: Any, name: str) -> None:
        """Raise Untranslatable unless torch's pixels for an operator that gets a tensor are known, or may be Pillow's."""
        move = f"move ToImage or ToTensor behind {type(transform).__name__}"
        if not self.values.bytes_only:
            raise Untranslatable(name, "after ToTensor it runs torch's kernels for floats, whose pixels differ from Pillow's",
                                 [move, KEEP])
        if getattr(transform, "antialias", True) is False:
            raise Untranslatable(name, "antialias=False holds for tensors only, and Pillow knows no such resampling",
                                 ["leave antialias out", KEEP])
        if type(transform) in SAME_ON_BYTES or self.as_pil:
            return
        if kernel() is None:
            raise Untranslatable(name, "after ToImage or PILToTensor its pixels are torch's, which numpy would make later "
                                 f"than torch, and ddlp's kernel isn't used: {why_not()}", [move, KEEP])
        if not (self.torch_filter(transform) or self.pixels(transform)):
            raise Untranslatable(name, "after ToImage or PILToTensor it runs torch's kernels, here one that ddlp doesn't know, "
                                 "whose pixels differ a little from Pillow's (docs/operators.md)",
                                 ["pass as_pil=True to DDLPLoader: it runs as on a PIL image then", move, KEEP])

    def torch_filter(self, t: Any) -> str | None:
        """The filter by which torch resamples the operator's tensor; None: it gets a PIL image, or the pixels aren't known."""
        if self.values.tensor is None or self.as_pil or type(t) not in RESAMPLING:
            return None
        return torch_filter((v2 if _is_v2(t) else v1).functional, interpolation(t.interpolation), t.antialias)

    def pixels(self, t: Any) -> str | None:
        """Whose pixels the operator makes, one of `torch_pixels.PIXELS`; None: torch's, and they aren't known."""
        if self.values.tensor is None or self.as_pil:
            return PILLOW
        if type(t) not in TORCHS_COLOURS + TORCHS_MAPS:
            return None
        return torchs_pixels((v2 if _is_v2(t) else v1).functional, type(t) in TORCHS_MAPS)

    def whose(self, t: Any) -> Data:
        """The parameter of an operator that can make torch's pixels."""
        pixels = self.pixels(t)
        return {} if pixels == PILLOW else {"pixels": pixels}

    def require_exact_means(self, name: str, ops: list[Data]) -> None:
        """Raise Untranslatable if an operator takes a mean of so many pixels that torch's order of adding them decides it."""
        operators = self.pipeline(name, ops).operators
        if not any(map(_takes_a_mean, leaves(operators))):
            return
        shape = self.pipeline(name, self.ops).known_shape(None)
        resized = any(operator.out(shape) != shape for operator in leaves(operators) if not _takes_a_mean(operator))
        if shape.size is None or shape.size[0] * shape.size[1] > EXACT_MEAN or resized:
            size = "its size isn't known before it" if shape.size is None or resized else f"it has {shape.size} pixels"
            raise Untranslatable(name, "contrast takes the mean of a tensor's pixels, which torch adds in an order of its own "
                                 f"where the image may have more than {EXACT_MEAN:,} pixels: {size}",
                                 ["crop or resize to a smaller size before it", "move ToImage or PILToTensor behind it", KEEP])

    def filter(self, t: Any) -> str:
        """The filter by which an operator resamples."""
        return self.torch_filter(t) or interpolation(t.interpolation)

    def channels(self, name: str) -> int:
        channels = self.pipeline(name, self.ops).known_shape(None).channels
        if channels is None:
            raise Untranslatable(name, "the number of channels is left to chance before it",
                                 ["use Grayscale(num_output_channels=3) inside random operators", KEEP])
        return channels

    def value(self, transform: Any, name: str, inside: str | None) -> None:
        before = self.values.tensor
        if self.values.apply(transform, self.channels(name)) and inside is not None:
            self.values.tensor = before
            raise Untranslatable(name, f"inside {inside} it changes values or types at random, and one table must "
                                 "hold for the whole batch", [f"move it out of {inside}", BATCH, KEEP])

    def container(self, transform: Any) -> list[Data]:
        kind = type(transform).__name__
        first = len(self.fills)
        groups = [
            [data for leaf in self.flat([child]) for data in self.operator(leaf, inside=kind)]
            for child in transform.transforms
        ]
        if kind == "RandomApply":
            ops = [data for group in groups for data in group]
            return [{"op": kind, "ops": ops, "p": plain(transform.p)}] if ops else []
        if kind == "RandomChoice":
            return [{"op": kind, "groups": groups, "p": plain(transform.p)}]
        if any(fill != self.fills[first] for fill in self.fills[first:]):
            raise Untranslatable(_name(transform), "its masks have different values, so their order matters where "
                                 "they overlap", ["give them one value, or a fixed order", KEEP])
        return [{"op": kind, "groups": groups}] if groups else []

    def require_tensor(self, name: str) -> None:
        if self.values.tensor is None:
            raise Untranslatable(name, "it comes before the image is a tensor", ["put it after ToTensor or ToImage",
                                                                                 KEEP])

    def mask(self, transform: Any, name: str) -> list[Data]:
        self.require_tensor(name)
        if type(transform) is Cutout:
            for _ in range(transform.n_holes):
                self.fills.append(self.values.add_fill(name, transform.fill))
            return [{"op": "Cutout", "holes": transform.n_holes, "length": transform.length}]
        value = plain(transform.value)
        if value is None or isinstance(value, str):
            raise Untranslatable(name, "value='random' draws a normal number for every pixel, which would travel as "
                                 "floats", ["use a constant value=", BATCH, KEEP])
        self.fills.append(self.values.add_fill(name, value))
        return [{"op": "RandomErasing", "p": plain(transform.p), "scale": plain(transform.scale),
                 "ratio": plain(transform.ratio)}]

    def erased_blocks(self, t: Any, name: str) -> list[Data]:
        self.require_tensor(name)
        data = timm.erasing(t)
        for block in range(t.max_count):
            fill = self.values.add_fill(name, 0.0)
            if data["op"] == "ErasedBlocks" and data["noise"]:
                self.values.add_noise(name, by_pixel=bool(t.per_pixel))
                fill = [math.nan, float(block)]  # differs from any other fill, since its order matters
                self.fills.append(fill)
            self.fills.append(fill)
        return [data]

    def fill(self, transform: Any, padding_mode: str) -> Any:
        """The fill in bytes: as PIL takes it, or, once the image is a tensor, the bytes that have the fill's value there."""
        fill, name = plain(transform.fill), _name(transform)
        if isinstance(fill, dict):
            raise Untranslatable(name, "fill is a dict by type of input", ["give a number or one a channel", KEEP])
        if padding_mode != "constant":
            return [0]
        values = [0] if fill is None else fill if isinstance(fill, list) else [fill]
        if self.values.tensor is None:
            return [int(v) for v in values]
        return self.fill_byte(name, values)

    def fill_byte(self, name: str, values: list[Any]) -> list[int]:
        fill = self.values.byte_of(values)
        if fill is None:
            raise Untranslatable(name, f"it pads with {values}, which no uint8 pixel has at that place of the "
                                 "transform", ["move it before ToTensor or ToImage", "choose another fill", KEEP])
        return fill

    def random_crop_v1(self, t: Any) -> list[Data]:
        fill = self.fill(t, t.padding_mode) if t.padding is not None or t.pad_if_needed else [0]
        # v1 pads twice if both are given, and two reflections are not the same as one larger reflection.
        first = [] if t.padding is None else [_pad(t.padding, fill, t.padding_mode)]
        return [*first, _random_crop(t, None, fill)]

    def random_crop_v2(self, t: Any) -> list[Data]:
        fill = self.fill(t, t.padding_mode) if t.padding is not None or t.pad_if_needed else [0]
        left, right, top, bottom = plain(t.padding) or (0, 0, 0, 0)  # v2's order
        return [_random_crop(t, [left, top, right, bottom] if t.padding else None, fill)]

    def center_crop(self, t: Any) -> list[Data]:
        data = {"op": "CenterCrop", "size": size_pair(t.size)}
        if self.values.tensor is not None:
            known = self.pipeline(_name(t), self.ops).known_shape(None).size
            larger = known is not None and all(k >= s for k, s in zip(known, data["size"], strict=True))
            if not larger and any(self.fill_byte(f"{_name(t)} (of a smaller image)", [0])):
                raise Untranslatable(_name(t), "it pads smaller images with 0, which is not black there",
                                     ["move it before ToTensor or ToImage", KEEP])
        return [data]

    def grayscale(self, t: Any) -> list[Data]:
        whose = self.whose(t)
        if whose and not _is_v2(t) and self.channels(_name(t)) == 1:
            return []  # v1 leaves such a tensor as it is
        return [{"op": "Grayscale", "channels": plain(t.num_output_channels), **whose}]

    def warp_fill(self, t: Any) -> list[int] | None:
        """The colour of the area that a rotation or the like leaves empty. None, for tensors only: nothing is mixed in."""
        by_type = t._fill if _is_v2(t) else {"others": t.fill}  # v2 keeps a fill for each type of input
        if set(by_type) != {"others"}:
            raise Untranslatable(_name(t), "fill is a dict by type of input", ["give a number or one a channel", KEEP])
        values = plain(by_type["others"])
        if self.whose(t):
            listed = values if isinstance(values, list) else [] if values is None else [values]
            if any(not 0 <= value <= 255 or value != int(value) for value in listed):
                raise Untranslatable(_name(t), f"on a tensor fill={values} is a colour that no byte has",
                                     ["give whole numbers from 0 to 255", KEEP])
            return [int(value) for value in listed] or None
        return [int(v) for v in (values if isinstance(values, list) else [values or 0])]

    def warp(self, t: Any, op: str, **parameters: Any) -> Data:
        whose, name = self.whose(t), interpolation(t.interpolation)
        filters = GRID_FILTERS if whose else WARP_FILTERS
        if name not in filters or (whose and t.interpolation == InterpolationMode.NEAREST_EXACT):
            raise Untranslatable(_name(t), f"{'torch' if whose else 'Pillow'} does not rotate or shear by {name!r}",
                                 [f"choose one of {', '.join(filters)}", KEEP])
        if whose and parameters.get("expand"):
            raise Untranslatable(_name(t), "after ToImage or PILToTensor torch computes the size of an expanded image, which "
                                 "ddlp doesn't know", ["leave expand out", "move ToImage or PILToTensor behind it", KEEP])
        return {"op": op, **parameters, "interpolation": name, "fill": self.warp_fill(t), **whose}

    def rotation(self, t: Any) -> list[Data]:
        center = None if t.expand and type(t) is v2.RandomRotation else t.center  # v2 ignores the center then, and warns
        return [self.warp(t, "RandomRotation", degrees=plain(t.degrees), expand=bool(t.expand), center=plain(center))]

    def affine(self, t: Any) -> list[Data]:
        return [self.warp(t, "RandomAffine", degrees=plain(t.degrees), translate=plain(t.translate), scale=plain(t.scale),
                          shear=plain(t.shear), center=plain(t.center), v2=_is_v2(t))]

    def perspective(self, t: Any) -> list[Data]:
        return _by_chance(t.p, self.warp(t, "Perspective", distortion_scale=plain(t.distortion_scale)))

    def policy(self, t: Any, **parameters: Any) -> list[Data]:
        return [self.warp(t, type(t).__name__, v2=_is_v2(t), **parameters)]

    def solarize(self, t: Any) -> list[Data]:
        threshold = plain(t.threshold)
        if self.values.tensor is not None and not self.as_pil:
            threshold = float(np.float32(threshold))  # torch compares bytes with float32
        return _by_chance(t.p, {"op": "Solarize", "threshold": threshold})

    def blur(self, t: Any) -> list[Data]:
        width, height = t.kernel_size
        return [{"op": "GaussianBlur", "kernel_size": [plain(width), plain(height)], "sigma": plain(t.sigma)}]

    def user(self, t: UserOperator) -> list[Data]:
        self.files[t.file.hash] = t.file
        return [t.to_data()]

    def to_rgb(self, t: Any) -> list[Data]:
        return [{"op": "Grayscale", "channels": 3}] if self.channels(_name(t)) == 1 else []


def _handlers(translator: _Translator) -> dict[type, Callable[[Any], list[Data]]]:
    """Each pixel operator's exact type, and the function that translates it."""
    handlers: dict[type, Callable[[Any], list[Data]]] = {
        v1.RandomCrop: translator.random_crop_v1,
        v2.RandomCrop: translator.random_crop_v2,
        UserOperator: translator.user,
    }
    both: dict[str, Callable[[Any], list[Data]]] = {
        "Resize": lambda t: [{"op": "Resize", "size": _short_side(t.size), "max_size": plain(t.max_size),
                              "interpolation": translator.filter(t)}],
        "RandomResizedCrop": lambda t: [{"op": "RandomResizedCrop", "size": size_pair(t.size),
                                         "scale": plain(t.scale), "ratio": plain(t.ratio),
                                         "interpolation": translator.filter(t)}],
        "CenterCrop": translator.center_crop,
        "FiveCrop": lambda t: [{"op": "FiveCrop", "size": size_pair(t.size)}],
        "TenCrop": lambda t: [{"op": "TenCrop", "size": size_pair(t.size), "vertical_flip": bool(t.vertical_flip)}],
        "Pad": lambda t: [_pad(t.padding, translator.fill(t, t.padding_mode), t.padding_mode)],
        "RandomHorizontalFlip": lambda t: [{"op": "RandomHorizontalFlip", "p": plain(t.p)}],
        "RandomVerticalFlip": lambda t: [{"op": "RandomVerticalFlip", "p": plain(t.p)}],
        "Grayscale": translator.grayscale,
        "RandomGrayscale": lambda t: [{"op": "RandomGrayscale", "p": plain(t.p), **translator.whose(t)}],
        "ColorJitter": lambda t: [{"op": "ColorJitter", "brightness": plain(t.brightness), "contrast": plain(t.contrast),
                                   "saturation": plain(t.saturation), "hue": plain(t.hue), **translator.whose(t)}],
        "GaussianBlur": translator.blur,
        "RandomAdjustSharpness": lambda t: _by_chance(
            t.p, {"op": "Sharpness", "factor": plain(t.sharpness_factor), **translator.whose(t)}
        ),
        "RandomPosterize": lambda t: _by_chance(t.p, {"op": "Posterize", "bits": plain(t.bits)}),
        "RandomSolarize": translator.solarize,
        "RandomInvert": lambda t: _by_chance(t.p, {"op": "Invert"}),
        "RandomAutocontrast": lambda t: _by_chance(t.p, {"op": "AutoContrast", **translator.whose(t)}),
        "RandomEqualize": lambda t: _by_chance(t.p, {"op": "Equalize"}),
        "RandomRotation": translator.rotation,
        "RandomAffine": translator.affine,
        "RandomPerspective": translator.perspective,
        "AutoAugment": lambda t: translator.policy(t, policy=t.policy.value),
        "RandAugment": lambda t: translator.policy(t, num_ops=t.num_ops, magnitude=t.magnitude, bins=t.num_magnitude_bins),
        "TrivialAugmentWide": lambda t: translator.policy(t, bins=t.num_magnitude_bins),
    }
    for name, handler in both.items():
        handlers[getattr(v1, name)] = handlers[getattr(v2, name)] = handler
    for kind in _v2("RGB"):
        handlers[kind] = translator.to_rgb
    handlers[v2.ScaleJitter] = lambda t: [{
        "op": "ScaleJitter", "target_size": plain(t.target_size), "scale_range": plain(t.scale_range),
        "interpolation": translator.filter(t),
    }]  # fmt: skip
    handlers[v2.RandomShortestSize] = lambda t: [{
        "op": "RandomShortestSize", "min_size": plain(t.min_size), "max_size": plain(t.max_size),
        "interpolation": translator.filter(t),
    }]  # fmt: skip
    handlers.update(translator.timm.on_pixels)
    return handlers


def _takes_a_mean(operator: Operator) -> bool:
    """Whether it may take the mean of a tensor's pixels."""
    if getattr(operator, "pixels", PILLOW) == PILLOW:
        return False
    return isinstance(operator, POLICIES) or (isinstance(operator, ColorJitter) and operator.contrast is not None)


def _is_v2(t: Any) -> bool:
    return type(t).__module__.startswith(v2.__name__)


def _by_chance(p: Any, data: Data) -> list[Data]:
    return [{"op": "RandomApply", "ops": [data], "p": plain(p)}]


def _hooked(transform: Any) -> bool:
    if not isinstance(transform, nn.Module):
        return False
    return bool(transform._forward_hooks or transform._forward_pre_hooks or "forward" in vars(transform))


class _PassesOn:
    transforms: Callable[[Any], Any]

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


def _wrapped(transform: Any) -> Any:
    """Return the transform to which a user's object only passes its images on, as torchvision's reference presets do.

    The object is one if its ``__call__`` has the byte code of ``return self.NAME(image)``, and NAME is a plain attribute of its
    own. Any other object is returned as it is. So is torchvision's Lambda, since its name says more than its function's name.
    """
    kind = type(transform)
    code = getattr(kind.__call__, "__code__", None) if callable(transform) else None
    if code is None or kind is v1.Lambda or (code.co_code, code.co_argcount) != (_PassesOn.__call__.__code__.co_code, 2):
        return transform
    (name,) = code.co_names
    usual: Any = object.__getattribute__
    plain = kind.__getattribute__ is usual and not hasattr(kind, name)
    return _wrapped(vars(transform)[name]) if plain and name in vars(transform) else transform


def _written_out(t: ImageClassification) -> list[Any]:
    """The operators that `weights.transforms()`, torchvision's preset for classification, runs. v2's PILToTensor, like the
    preset, lets tensors pass.
    """
    return [
        v1.Resize(t.resize_size, t.interpolation, antialias=t.antialias), v1.CenterCrop(t.crop_size), v2.PILToTensor(),
        v1.ConvertImageDtype(torch.float), v1.Normalize(t.mean, t.std),
    ]  # fmt: skip


def _instead(transform: Any) -> list[str]:
    """Say which attribute to pass in place of an object that ddlp doesn't know, if it holds a known sequence."""
    inside = {**getattr(transform, "__dict__", {}), **getattr(transform, "_modules", {})}
    held = [name for name, value in inside.items() if type(value) in SEQUENCES]
    return [f"pass what it holds, if it does no more than that: transform=preset.{name}" for name in held[:1]]


def _name(transform: Any) -> str:
    """The operator as the user wrote it, on one line and not too long; by its name where its repr is an address."""
    text = " ".join(repr(transform).split())
    if re.search(r" at 0x[0-9a-f]+>$", text, re.IGNORECASE):
        text = getattr(transform, "__qualname__", type(transform).__qualname__).rpartition("<locals>.")[2]
    return text if len(text) <= 120 else f"{text[:117]}..."


def _short_side(value: Any) -> Any:
    value = plain(value)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _pad(padding: Any, fill: list[int], padding_mode: str) -> Data:
    return {"op": "Pad", "padding": borders(padding), "fill": fill, "padding_mode": padding_mode}


def _random_crop(t: Any, padding: list[int] | None, fill: list[int]) -> Data:
    return {"op": "RandomCrop", "size": size_pair(t.size), "padding": padding, "pad_if_needed": bool(t.pad_if_needed),
            "fill": fill, "padding_mode": t.padding_mode}
