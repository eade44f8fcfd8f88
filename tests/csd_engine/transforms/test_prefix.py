"""Where a pipeline is cut for the cache."""

from __future__ import annotations

from typing import Any

import pytest

from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.prefix import cache_point, draw_nothing

_SHORT = {"op": "Resize", "size": 256, "max_size": None, "interpolation": "bilinear"}
_SQUARE = {"op": "Resize", "size": [64, 80], "max_size": None, "interpolation": "bilinear"}
_CENTER = {"op": "CenterCrop", "size": [224, 200]}
_PAD = {"op": "Pad", "padding": [1, 2, 3, 4], "fill": [0], "padding_mode": "constant"}
_GREY = {"op": "Grayscale", "channels": 1}
_FLIP = {"op": "RandomHorizontalFlip", "p": 0.5}
_RANDOM = {"op": "RandomResizedCrop", "size": [32, 30], "scale": [0.1, 1.0], "ratio": [0.75, 1.33], "interpolation": "bilinear"}


@pytest.mark.parametrize(
    "ops, size, before, shape",
    (
        ([_SHORT, _CENTER], None, 2, (224, 200, 3)),
        ([_SHORT, _CENTER, _FLIP], None, 2, (224, 200, 3)),
        ([_SHORT, _CENTER, _FLIP, _PAD], None, 2, (224, 200, 3)),
        ([_SQUARE, _PAD, _GREY, _FLIP], None, 3, (70, 84, 1)),
        ([_RANDOM, _FLIP], None, 0, (0, 0, 3)),
        ([_SHORT, _RANDOM], None, 1, (0, 0, 3)),
        ([_SHORT, _GREY, _RANDOM], None, 2, (0, 0, 1)),
        ([_SHORT, _RANDOM], (300, 512), 1, (436, 256, 3)),
        ([_FLIP, _CENTER], (300, 512), 0, (512, 300, 3)),
        ([{"op": "RandomApply", "ops": [_CENTER], "p": 0.5}, _CENTER], None, 0, (0, 0, 3)),
    ),
)
def test_the_cut(ops: list[Any], size: tuple[int, int] | None, before: int, shape: tuple[int, int, int]) -> None:
    pipeline = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": ops})
    point = cache_point(pipeline, size)
    assert point is not None
    assert (len(point.before.operators), point.shape, point.fixed) == (before, shape, shape[0] > 0)
    assert point.before.operators + point.behind.operators == pipeline.operators
    assert point.behind.mode == ("L" if shape[2] == 1 else "RGB")


@pytest.mark.parametrize("ops, nothing", [([], True), ([_SHORT, _CENTER, _PAD, _GREY], True), ([_SHORT, _FLIP], False)])
def test_whether_it_draws(ops: list[Any], nothing: bool) -> None:
    assert draw_nothing(Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": ops}).operators) is nothing


def test_its_name() -> None:
    for ops, name in (([_SHORT, _CENTER, _FLIP], "pixels after Resize -> CenterCrop"), ([_RANDOM], "pixels after decoding")):
        assert str(cache_point(Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": ops}), None)) == name
