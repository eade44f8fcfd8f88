"""torchvision's transforms (v1 and v2, exact types) as a Pipeline and an Epilogue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from csd_engine.prepare.operator_file import OperatorCall, OperatorFile
from csd_engine.transforms import Pipeline, PipelineError, native_order
from ddlp.errors import Untranslatable
from ddlp.transfer.epilogue import Epilogue
from ddlp.transforms import Cutout
from ddlp.translate.parameters import borders, interpolation, plain, size_pair
from ddlp.translate.user_operators import UserOperator
from ddlp.translate.values import BATCH, KEEP, Values

__all__ = ["Translation", "obstacles_in", "translate"]

Data = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Translation:
    """A transform in two parts: what either side does to each sample, and what the host does to each batch."""

    pipeline: Pipeline
    epilogue: Epilogue


def translate(transform: Any, mode: str = "RGB") -> Translation:
    """Pipeline and epilogue that give a torchvision transform's result on PIL images of a mode, bit for bit.

    Args:
        transform: an object of torchvision.transforms (v1 or v2), nn.Sequential, ddlp.transforms.Cutout, or an operator
            from ddlp.load_operators.
        mode: ``"RGB"`` (what torchvision's default_loader yields) or ``"L"``.

    Raises:
        Untranslatable: names the operator, the reason and the ways out.
    """
    if transform is None:
        raise _no_transform()
    return _Translator(mode).translate(transform)


def _no_transform() -> Untranslatable:
    return Untranslatable("transform=None", "the data set yields PIL images, and a batch needs tensors",
                          ["pass transform=ToTensor()", KEEP])


def obstacles_in(transform: Any, mode: str = "RGB") -> list[Untranslatable]:
    """All that keeps a transform from being translated, in its order; `translate` raises the first of them."""
    return list(_Translator(mode).obstacles(transform)) if transform is not None else [_no_transform()]


def _v2(*names: str) -> tuple[type, ...]:
    """v2's classes of these names, without those that this torchvision doesn't have yet."""
    return tuple(getattr(v2, name) for name in names if hasattr(v2, name))


OWN = "write it with numpy and Pillow in a file of its own (docs/operators.md): ops = ddlp.load_operators('my_operators.py')"
SEQUENCES = (v1.Compose, v2.Compose, nn.Sequential)
VALUES = (
    v1.PILToTensor, v1.ToTensor, v1.ConvertImageDtype, v1.Normalize, nn.Identity,
    *_v2("PILToTensor", "ToTensor", "ToImage", "ToDtype", "ToPureTensor", "ConvertImageDtype", "Normalize", "Identity"),
)
RESAMPLING = (v1.Resize, v2.Resize, v1.RandomResizedCrop, v2.RandomResizedCrop)
COLOUR = (v1.Grayscale, v2.Grayscale, v1.RandomGrayscale, v2.RandomGrayscale, *_v2("RGB"))
ERASING = (v1.RandomErasing, v2.RandomErasing)
RANDOM = (v1.RandomApply, v2.RandomApply, v1.RandomChoice, v2.RandomChoice, v1.RandomOrder, v2.RandomOrder)


class _Translator:
    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.ops: list[Data] = []
        self.values = Values()
        self.fills: list[list[float]] = []
        self.files: dict[str, OperatorFile] = {}
        self.handlers = _handlers(self)

    def translate(self, transform: Any) -> Translation:
        for obstacle in self.obstacles(transform):
            raise obstacle
        return Translation(self.pipeline("the transform", self.ops), self.values.epilogue())

    def obstacles(self, transform: Any) -> Iterator[Untranslatable]:
        """What can't be translated, operator by operator, as if those before were left out."""
        found = False
        for leaf in self.flat([transform]):
            try:
                self.ops.extend(self.operator(leaf, inside=None))
            except Untranslatable as obstacle:
                # An operator that is left out may be the one that makes a tensor, so that it is missing here tells nothing.
                if not (found and self.values.tensor is None and type(leaf) in (*VALUES, *ERASING, Cutout)):
                    yield obstacle
                found = True
        if not found:
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
        """A user's function, for the pipeline's parser."""
        return self.files[file].call(function, parameters)

    def flat(self, transforms: Iterable[Any]) -> Iterable[Any]:
        for transform in transforms:
            transform = _wrapped(transform)
            if type(transform) not in SEQUENCES or _hooked(transform):
                yield transform
                continue
            yield from self.flat(transform if type(transform) is nn.Sequential else transform.transforms)

    def operator(self, transform: Any, inside: str | None) -> list[Data]:
        """Plain data of one operator; value operators change ``values`` instead and give none."""
        kind, name = type(transform), _name(transform)
        self.require_untouched(transform)
        if kind in VALUES:
            self.value(transform, name, inside)
            return []
        if kind in RANDOM:
            return self.container(transform)
        if kind in ERASING or kind is Cutout:
            return self.mask(transform, name)
        if kind not in self.handlers:
            raise Untranslatable(name, "it is not one of the operators that ddlp knows (exact torchvision types; a "
                                 "subclass or function may do anything)",
                                 [*_instead(transform), OWN, BATCH, KEEP])
        if self.values.masks:
            raise Untranslatable(name, "it comes after an operator that masks pixels, and masks are drawn for the "
                                 "finished image", ["move RandomErasing and Cutout to the end", KEEP])
        if self.values.tensor is not None and kind in RESAMPLING + COLOUR:
            raise Untranslatable(name, "after ToImage or ToTensor it runs torch's kernels, whose pixels differ from "
                                 "Pillow's", [f"move ToImage or ToTensor behind {kind.__name__}", KEEP])
        if self.values.tensor is not None and kind is UserOperator:
            raise Untranslatable(name, "it takes a PIL image and comes after ToImage or ToTensor",
                                 ["move it before ToImage or ToTensor", KEEP])
        ops = self.handlers[kind](transform)
        self.pipeline(name, ops)
        return ops

    def require_untouched(self, transform: Any) -> None:
        if _hooked(transform):
            raise Untranslatable(_name(transform), "it has forward hooks or a forward of its own",
                                 ["remove the hooks", KEEP])

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

    def mask(self, transform: Any, name: str) -> list[Data]:
        if self.values.tensor is None:
            raise Untranslatable(name, "it comes before the image is a tensor", ["put it after ToTensor or ToImage",
                                                                                 KEEP])
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

    def fill(self, transform: Any, padding_mode: str) -> Any:
        """The fill in bytes: as PIL takes it, or the bytes that have that value where it is a tensor already."""
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
        found = self.values.byte_of(values)
        if found is None:
            raise Untranslatable(name, f"it pads with {values}, which no uint8 pixel has at that place of the "
                                 "transform", ["move it before ToTensor or ToImage", "choose another fill", KEEP])
        return found

    def random_crop_v1(self, t: Any) -> list[Data]:
        fill = self.fill(t, t.padding_mode) if t.padding is not None or t.pad_if_needed else [0]
        # v1 pads twice where both are given, and reflections of reflections are not one reflection.
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
        return [{"op": "Grayscale", "channels": plain(t.num_output_channels)}]

    def user(self, t: UserOperator) -> list[Data]:
        self.files[t.file.hash] = t.file
        return [t.to_data()]

    def to_rgb(self, t: Any) -> list[Data]:
        return [{"op": "Grayscale", "channels": 3}] if self.channels(_name(t)) == 1 else []


def _handlers(translator: _Translator) -> dict[type, Callable[[Any], list[Data]]]:
    """Each pixel operator's exact type and how it is translated."""
    handlers: dict[type, Callable[[Any], list[Data]]] = {
        v1.RandomCrop: translator.random_crop_v1,
        v2.RandomCrop: translator.random_crop_v2,
        UserOperator: translator.user,
    }
    both: dict[str, Callable[[Any], list[Data]]] = {
        "Resize": lambda t: [{"op": "Resize", "size": _short_side(t.size), "max_size": plain(t.max_size),
                              "interpolation": interpolation(t.interpolation)}],
        "RandomResizedCrop": lambda t: [{"op": "RandomResizedCrop", "size": size_pair(t.size),
                                         "scale": plain(t.scale), "ratio": plain(t.ratio),
                                         "interpolation": interpolation(t.interpolation)}],
        "CenterCrop": translator.center_crop,
        "Pad": lambda t: [_pad(t.padding, translator.fill(t, t.padding_mode), t.padding_mode)],
        "RandomHorizontalFlip": lambda t: [{"op": "RandomHorizontalFlip", "p": plain(t.p)}],
        "RandomVerticalFlip": lambda t: [{"op": "RandomVerticalFlip", "p": plain(t.p)}],
        "Grayscale": translator.grayscale,
        "RandomGrayscale": lambda t: [{"op": "RandomGrayscale", "p": plain(t.p)}],
    }
    for name, handler in both.items():
        handlers[getattr(v1, name)] = handlers[getattr(v2, name)] = handler
    for kind in _v2("RGB"):
        handlers[kind] = translator.to_rgb
    return handlers


def _hooked(transform: Any) -> bool:
    if not isinstance(transform, nn.Module):
        return False
    return bool(transform._forward_hooks or transform._forward_pre_hooks or "forward" in vars(transform))


class _PassesOn:
    transforms: Callable[[Any], Any]

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


def _wrapped(transform: Any) -> Any:
    """What an object of the user's only passes its images on to: the presets of torchvision's references are such.

    That is so where its ``__call__`` is compiled to just what ``return self.NAME(image)`` is, and NAME is plainly its own
    attribute. Anything else is given back as it is, torchvision's Lambda too: its name says more than its function's.
    """
    kind = type(transform)
    code = getattr(kind.__call__, "__code__", None) if callable(transform) else None
    if code is None or kind is v1.Lambda or (code.co_code, code.co_argcount) != (_PassesOn.__call__.__code__.co_code, 2):
        return transform
    (name,) = code.co_names
    usual: Any = object.__getattribute__
    plain = kind.__getattribute__ is usual and not hasattr(kind, name)
    return _wrapped(vars(transform)[name]) if plain and name in vars(transform) else transform


def _instead(transform: Any) -> list[str]:
    """What to pass in place of an object that ddlp doesn't know, where that can be said."""
    if type(transform) is ImageClassification:
        t = transform
        return [
            f"it is this, written out: transforms.Compose([transforms.Resize({t.resize_size}, "
            f"transforms.InterpolationMode.{t.interpolation.name}), transforms.CenterCrop({t.crop_size}), "
            f"transforms.ToTensor(), transforms.Normalize({t.mean}, {t.std})])"
        ]
    inside = {**getattr(transform, "__dict__", {}), **getattr(transform, "_modules", {})}
    held = [name for name, value in inside.items() if type(value) in SEQUENCES]
    return [f"pass what it holds, if it does no more than that: transform=preset.{name}" for name in held[:1]]


def _name(transform: Any) -> str:
    """The operator as the user wrote it, on one line and not too long."""
    text = " ".join(repr(transform).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


def _short_side(value: Any) -> Any:
    value = plain(value)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _pad(padding: Any, fill: list[int], padding_mode: str) -> Data:
    return {"op": "Pad", "padding": borders(padding), "fill": fill, "padding_mode": padding_mode}


def _random_crop(t: Any, padding: list[int] | None, fill: list[int]) -> Data:
    return {"op": "RandomCrop", "size": size_pair(t.size), "padding": padding, "pad_if_needed": bool(t.pad_if_needed),
            "fill": fill, "padding_mode": t.padding_mode}
