"""Translates timm's own transforms, which its create_transform makes, to the pipeline's operators. timm is not imported."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from csd_engine.transforms.timm_policies import NAMES
from csd_engine.transforms.warp_steps import WARP_FILTERS
from ddlp.errors import Untranslatable
from ddlp.translate.parameters import interpolation, plain, size_pair
from ddlp.translate.values import KEEP

__all__ = ["Timm", "erasing", "is_fast_collate", "loaded"]

Data = dict[str, Any]


class Timm(NamedTuple):
    """timm's classes, as far as the process has imported them.

    Attributes:
        on_pixels: each pixel operator's class, and how it is translated.
        values: classes that make a tensor of an image.
        erasing: the classes of its RandomErasing, one or none.
    """

    on_pixels: dict[type, Callable[[Any], list[Data]]]
    values: tuple[type, ...]
    erasing: tuple[type, ...]


def loaded() -> Timm:
    """Return timm's classes; none if nothing has imported timm."""
    classes: list[dict[type, Any]] = [{}, {}, {}]
    for kinds, (modules, names) in zip(classes, (_ON_PIXELS, _VALUES, _ERASING), strict=True):
        for name, handler in names.items():
            for place in modules:
                kind = getattr(sys.modules.get(place), name, None)
                if isinstance(kind, type) and kind.__module__ == place:
                    kinds[kind] = handler
    return Timm(classes[0], tuple(classes[1]), tuple(classes[2]))


def is_fast_collate(function: Any) -> bool:
    """Whether this is timm's fast_collate, which stacks images of bytes, joins their targets, and draws nothing."""
    module = sys.modules.get("timm.data.loader")
    return module is not None and function is getattr(module, "fast_collate", None) and function.__module__ == module.__name__


def _resized_crop(t: Any) -> list[Data]:
    def crop(name: str) -> list[Data]:
        return [{"op": "RandomResizedCrop", "size": size_pair(t.size), "scale": plain(t.scale), "ratio": plain(t.ratio),
                 "interpolation": name}]

    return _one_of(t, crop)


def _keep_ratio(t: Any) -> list[Data]:
    def resize(name: str) -> list[Data]:
        return [{"op": "ResizeKeepRatio", "size": size_pair(t.size), "longest": plain(t.longest), "interpolation": name,
                 "scale_p": plain(t.random_scale_prob), "scale": plain(t.random_scale_range),
                 "scale_area": bool(t.random_scale_area), "aspect_p": plain(t.random_aspect_prob),
                 "aspect": plain(t.random_aspect_range)}]

    return _one_of(t, resize)


def _one_of(t: Any, operators_of: Callable[[str], list[Data]]) -> list[Data]:
    """An operator with one filter, or with one of several at random."""
    if not isinstance(t.interpolation, (tuple, list)):
        return operators_of(interpolation(t.interpolation))
    return [{"op": "RandomChoice", "groups": [operators_of(interpolation(mode)) for mode in t.interpolation], "p": None}]


def _crop_or_pad(t: Any) -> list[Data]:
    fill = _colour(t.fill) if t.padding_mode == "constant" else [0]
    return [{"op": type(t).__name__, "size": size_pair(t.size), "fill": fill, "padding_mode": t.padding_mode}]


def _colour(value: Any) -> list[Any]:
    value = plain(value)
    return value if isinstance(value, list) else [value]


def _rand_augment(t: Any) -> list[Data]:
    weights = None if t.choice_weights is None else [float(weight) for weight in t.choice_weights]
    return _augment(t, [[op] for op in t.ops], t.num_layers, weights)


def _auto_augment(t: Any) -> list[Data]:
    return _augment(t, [list(ops) for ops in t.policy], 1, None)


def _augment_op(t: Any) -> list[Data]:
    return _augment(t, [[t]], 1, None)


def _augment(t: Any, policies: list[list[Any]], layers: int, weights: list[float] | None) -> list[Data]:
    name = type(t).__name__
    ops = [op for lines in policies for op in lines]
    known = loaded().on_pixels
    if any(known.get(type(op)) is not _augment_op or not _as_named(op) for op in ops):
        raise Untranslatable(name, "one of its operators is not timm's own", ["use timm's AugmentOp as it is", KEEP])
    shared = [_shared(op) for op in ops]
    if not ops or any(hparams != shared[0] for hparams in shared):
        raise Untranslatable(name, "its operators have different hparams", ["give all of them the same", KEEP])
    if not set(shared[0]["interpolation"]) <= set(WARP_FILTERS):
        raise Untranslatable(name, f"Pillow does not rotate or shear by {shared[0]['interpolation']}",
                             [f"choose one of {', '.join(WARP_FILTERS)}", KEEP])
    lines = [[[op.name, plain(op.prob), plain(op.magnitude)] for op in policy] for policy in policies]
    return [{"op": "TimmAugment", "policies": lines, "layers": layers, "weights": weights, **shared[0]}]


def _to_numpy(t: Any) -> list[Data]:
    raise Untranslatable("ToNumpy()", "it yields arrays, and a batch needs tensors",
                         ["use timm's MaybePILToTensor, which keeps bytes as well (create_transform does)", KEEP])


def _as_named(op: Any) -> bool:
    """Whether an AugmentOp runs the functions that timm has under its name."""
    module = sys.modules[type(op).__module__]
    same = op.aug_fn is module.NAME_TO_OP.get(op.name) and op.level_fn is module.LEVEL_TO_ARG.get(op.name)
    return op.name in NAMES and same and module.__name__ == getattr(op.aug_fn, "__module__", "")


def _shared(op: Any) -> Data:
    """The parameters that must be equal for all AugmentOps of a policy."""
    resample = op.kwargs["resample"]
    modes = resample if isinstance(resample, (tuple, list)) else (resample,)
    std = plain(op.magnitude_std)
    return {
        "noise": "uniform" if std == math.inf else max(std, 0.0),
        "most": plain(op.magnitude_max or 10.0),
        "interpolation": [interpolation(mode) for mode in modes],
        "fill": _colour(op.kwargs["fillcolor"]),
        "translate_const": plain(op.hparams.get("translate_const", 250)),
        "translate_pct": plain(op.hparams.get("translate_pct", 0.45)),
    }


def erasing(t: Any) -> Data:
    """Plain data of timm's RandomErasing on one image. With one rectangle of zeros it is torchvision's RandomErasing."""
    data = {"op": "RandomErasing", "p": plain(t.probability), "scale": [plain(t.min_area), plain(t.max_area)],
            "ratio": [math.exp(bound) for bound in t.log_aspect_ratio]}
    noise = bool(t.per_pixel or t.rand_color)
    if (t.min_count, t.max_count, noise) == (1, 1, False):
        return data
    return {**data, "op": "ErasedBlocks", "count": [plain(t.min_count), plain(t.max_count)], "noise": noise}


_Table = tuple[tuple[str, ...], dict[str, Any]]  # modules, and what is known of the classes that are in one of them
_TRANSFORMS, _POLICIES = "timm.data.transforms", "timm.data.auto_augment"
_ON_PIXELS: _Table = ((_TRANSFORMS, _POLICIES), {
    "RandomResizedCropAndInterpolation": _resized_crop,
    "ResizeKeepRatio": _keep_ratio,
    "CenterCropOrPad": _crop_or_pad,
    "RandomCropOrPad": _crop_or_pad,
    "TrimBorder": lambda t: [{"op": "Pad", "padding": [-t.border_size] * 4, "fill": [0], "padding_mode": "constant"}],
    "RandAugment": _rand_augment,
    "AutoAugment": _auto_augment,
    "AugmentOp": _augment_op,
    "ToNumpy": _to_numpy,
})  # fmt: skip
_VALUES: _Table = ((_TRANSFORMS,), dict.fromkeys(("MaybeToTensor", "MaybePILToTensor", "ToTensor")))
_ERASING: _Table = (("timm.data.random_erasing",), {"RandomErasing": None})
