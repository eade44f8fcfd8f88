import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError
from csd_engine.transforms import operators, primitives
from csd_engine.transforms.pipeline import Pipeline
from tests.small_images import image

RRC = {"op": "RandomResizedCrop", "size": [24, 20], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3],
       "interpolation": "bilinear"}
RESIZE = {"op": "Resize", "size": 32, "max_size": None, "interpolation": "bicubic"}
CROP = {"op": "RandomCrop", "size": [28, 28], "padding": [1, 2, 3, 4], "pad_if_needed": True, "fill": [7],
        "padding_mode": "constant"}
CENTER = {"op": "CenterCrop", "size": [24, 24]}
FLIP = {"op": "RandomHorizontalFlip", "p": 0.5}
ERASE = {"op": "RandomErasing", "p": 0.5, "scale": [0.02, 0.33], "ratio": [0.3, 3.3]}
CUTOUT = {"op": "Cutout", "holes": 2, "length": 8}
KNOWN_PLAN = (
    "SamplePlan(primitives=(Crop(top=32, left=16, height=341, width=425), Resize(height=24, width=20, "
    "interpolation='bilinear')), shape=(24, 20, 3), boxes=((0, 0, 0, 0), (0, 0, 7, 8), (14, 7, 22, 15)), reduce=1)"
)
KNOWN_DIGEST = "8af48a6cc4889e2a4032e5b9d28ee6db"


def pipeline(*ops, mode="RGB", order="pillow13"):
    return Pipeline.parse({"format": 1, "order": order, "mode": mode, "ops": list(ops)})


def run(pipe, source, key=(0, 0, 0, 0)):
    plan = pipe.draw(source.size, Keyed(*key))
    out = np.full(plan.shape, 99, dtype=np.uint8)
    boxes = np.full((pipe.boxes, 4), -1, dtype=np.int32) if pipe.boxes else None
    pipe.run(source, Keyed(*key), out, boxes)
    return out, boxes


def test_a_known_plan_stays_the_same():
    pipe = pipeline(RRC, FLIP, ERASE, CUTOUT)
    plan = pipe.draw((469, 387), Keyed(1, 2, 3, 0))
    assert repr(plan) == KNOWN_PLAN
    assert pipe.digest == KNOWN_DIGEST


def test_the_key_decides_and_nothing_else():
    pipe = pipeline(RRC, FLIP, CUTOUT)
    first, boxes = run(pipe, image(), (1, 2, 3, 4))
    again, same = run(pipe, image(), (1, 2, 3, 4))
    other, _ = run(pipe, image(), (1, 2, 3, 5))
    assert (first == again).all() and (boxes == same).all() and (first != other).any()


@pytest.mark.parametrize("ops, size, shape", [
    ([RRC], None, (24, 20, 3)),
    ([RESIZE, CENTER], None, (24, 24, 3)),
    ([RESIZE], (64, 128), (64, 32, 3)),
    ([{"op": "Pad", "padding": [1, 2, 3, -4], "fill": [0], "padding_mode": "constant"}], (10, 20), (18, 14, 3)),
    ([RRC, {"op": "Grayscale", "channels": 1}], None, (24, 20, 1)),
    ([RRC, {"op": "RandomApply", "ops": [CENTER, {"op": "Resize", "size": [24, 20], "max_size": None,
                                                  "interpolation": "box"}], "p": 0.3}], None, (24, 20, 3)),
    ([{"op": "RandomOrder", "groups": [[CENTER], [FLIP], [{"op": "Grayscale", "channels": 1}]]}], None, (24, 24, 1)),
    ([{"op": "RandomChoice", "groups": [[CENTER], [CENTER, FLIP]], "p": [1, 2]}], None, (24, 24, 3)),
])
def test_output_shape(ops, size, shape):
    assert pipeline(*ops).output_shape(size) == shape
    if size is None:
        for width, height in [(30, 61), (7, 9), (300, 20)]:
            assert pipeline(*ops).draw((width, height), Keyed(0, 0, 0, 0)).shape == shape


@pytest.mark.parametrize("ops", [
    [], [RESIZE], [FLIP], [RESIZE, {"op": "RandomApply", "ops": [CENTER], "p": 0.5}],
    [RRC, {"op": "RandomApply", "ops": [{"op": "Grayscale", "channels": 1}], "p": 0.5}],
    [{"op": "RandomOrder", "groups": [[RRC], [CENTER]]}],
])
def test_output_that_is_not_fixed_is_refused(ops):
    with pytest.raises(PipelineError, match="not fixed|left to chance"):
        pipeline(*ops).output_shape(None)


@pytest.mark.parametrize("change, quoted", [
    ({"op": "Rotate"}, "Rotate"), ({"op": None}, "None"), ({"op": ["x"]}, "unknown operator"),
    ({"size": [0, 5]}, "size=[0, 5]"), ({"size": [70000, 5]}, "size=[70000, 5]"),
    ({"size": [65535, 65535]}, "size=[65535, 65535]"), ({"size": "224"}, "'224'"), ({"size": [1, 2, 3]}, "[1, 2, 3]"),
    ({"size": [True, 5]}, "True"), ({"size": 5}, "size=5"), ({"scale": [float("nan"), 1]}, "nan"),
    ({"scale": [0.5, float("inf")]}, "inf"), ({"scale": [1, 0.5]}, "smaller bound first"), ({"ratio": [0, 1]}, "ratio"),
    ({"ratio": [-1.0, 1]}, "ratio"), ({"ratio": {}}, "ratio"), ({"interpolation": "cubic"}, "'cubic'"),
    ({"interpolation": 2}, "interpolation=2"), ({"extra": 1}, "'extra'"), ({1: 2}, "unknown parameter 1"),
])
def test_hostile_parameters_are_quoted(change, quoted):
    with pytest.raises(PipelineError) as error:
        pipeline(dict(RRC, **change) if all(isinstance(k, str) for k in change) else {**RRC, **change})
    assert quoted in str(error.value)


@pytest.mark.parametrize("data, quoted", [
    (None, "None"), ([], "[]"), ({}, "'format'"), ({"format": 2}, "'order'"),
    ({"format": 2, "order": "pillow13", "mode": "RGB", "ops": []}, "format=2"),
    ({"format": True, "order": "pillow13", "mode": "RGB", "ops": []}, "format=True"),
    ({"format": 1, "order": "pillow14", "mode": "RGB", "ops": []}, "pillow14"),
    ({"format": 1, "order": ["pillow13"], "mode": "RGB", "ops": []}, "order="),
    ({"format": 1, "order": "pillow13", "mode": "CMYK", "ops": []}, "CMYK"),
    ({"format": 1, "order": "pillow13", "mode": "RGB", "ops": {"op": "Pad"}}, "ops is"),
    ({"format": 1, "order": "pillow13", "mode": "RGB", "ops": [3]}, "ops[0]"),
    ({"format": 1, "order": "pillow13", "mode": "RGB", "ops": [FLIP] * 1000}, "more than"),
    ({"format": 1, "order": "pillow13", "mode": "RGB", "ops": [{"op": "RandomOrder", "groups": [[]] * 500_000}]}, "groups"),
    ({"format": 1, "order": "pillow13", "mode": "RGB",
      "ops": [{"op": "RandomChoice", "groups": [[]], "p": [1.0] * 500_000}]}, "at most 256 weights"),
])
def test_hostile_pipelines_are_quoted(data, quoted):
    with pytest.raises(PipelineError) as error:
        Pipeline.parse(data)
    assert quoted in str(error.value) and len(str(error.value)) < 2000


def test_missing_parameters_and_contradictions():
    for name in list(RRC)[1:]:
        with pytest.raises(PipelineError, match=f"lacks the parameter '{name}'"):
            pipeline({k: v for k, v in RRC.items() if k != name})
    for bad in ({"size": [5, 5], "max_size": 9}, {"size": None}, {"size": 32, "max_size": 32}):
        with pytest.raises(PipelineError, match="max_size"):
            pipeline(dict(RESIZE, **bad))
    with pytest.raises(PipelineError, match="weights"):
        pipeline({"op": "RandomChoice", "groups": [[FLIP], [RRC]], "p": [1.0]})
    with pytest.raises(PipelineError, match="positive sum"):
        pipeline({"op": "RandomChoice", "groups": [[FLIP]], "p": [0.0]})


def test_deep_nesting_is_refused():
    deep = FLIP
    for _ in range(50):
        deep = {"op": "RandomApply", "ops": [deep], "p": 0.5}
    with pytest.raises(PipelineError, match="deeper"):
        pipeline(deep)


def test_the_shape_of_nested_random_orders_takes_few_steps(monkeypatch):
    """The engine's service computes it while all hosts wait. Without a cache each level took six times as many steps."""
    grey, calls = {"op": "Grayscale", "channels": 1}, []
    nested = [CENTER, grey]
    for _ in range(8):
        nested = [{"op": "RandomOrder", "groups": [nested, [CENTER, grey]]}]
    out = operators.CenterCrop.out
    monkeypatch.setattr(operators.CenterCrop, "out", lambda self, shape: calls.append(shape) or out(self, shape))
    assert pipeline(*nested).output_shape(None) == (24, 24, 1)
    assert len(calls) < 1000


@pytest.mark.parametrize("ops", [
    [CUTOUT, FLIP], [{"op": "RandomApply", "ops": [ERASE], "p": 1.0}, RRC],
    [{"op": "RandomOrder", "groups": [[FLIP], [ERASE]]}], [{"op": "RandomOrder", "groups": [[FLIP, ERASE]] * 2}],
    [{"op": "RandomApply", "ops": [ERASE, FLIP], "p": 1.0}],
])
def test_masks_come_last(ops):
    with pytest.raises(PipelineError, match="masks must be the last"):
        pipeline(*ops)


def test_masks_in_containers_have_places_of_their_own():
    pipe = pipeline(RRC, {"op": "RandomChoice", "groups": [[CUTOUT], [CUTOUT]], "p": None}, CUTOUT)
    assert pipe.boxes == 6
    for index in range(8):
        _, boxes = run(pipe, image(), (0, 0, index, 0))
        drawn = boxes.any(axis=1)
        assert drawn[4:].all() and drawn[:2].all() != drawn[2:4].all()


def test_sizes_that_only_an_image_shows():
    with pytest.raises(PipelineError, match="would become"):
        pipeline(RESIZE).draw((60000, 1), Keyed(0, 0, 0, 0))
    with pytest.raises(PipelineError, match="would become"):
        pipeline(dict(RESIZE, size=None, max_size=8)).draw((60000, 1), Keyed(0, 0, 0, 0))
    with pytest.raises(PipelineError, match="larger than input image size"):
        pipeline(dict(CROP, pad_if_needed=False)).draw((5, 5), Keyed(0, 0, 0, 0))


def test_wrong_buffers_are_refused():
    pipe = pipeline(RRC, CUTOUT)
    with pytest.raises(ValueError, match="boxes is None"):
        pipe.run(image(), Keyed(0, 0, 0, 0), np.empty((24, 20, 3), np.uint8), None)
    with pytest.raises(ValueError, match="shape"):
        pipe.run(image(), Keyed(0, 0, 0, 0), np.empty((20, 24, 3), np.uint8), np.empty((2, 4), np.int32))


def leaf():
    p = st.floats(0, 1)
    pair = st.lists(st.integers(1, 300), min_size=2, max_size=2)
    interval = st.lists(st.floats(0.01, 1), min_size=2, max_size=2).map(sorted)
    fill = st.one_of(st.lists(st.integers(0, 255), min_size=1, max_size=1),
                     st.lists(st.integers(0, 255), min_size=3, max_size=3))
    modes = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
    borders = st.lists(st.integers(-3, 30), min_size=4, max_size=4)
    return st.one_of(
        st.fixed_dictionaries({"op": st.sampled_from(["RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale"]),
                               "p": p}),
        st.fixed_dictionaries({"op": st.just("CenterCrop"), "size": pair}),
        st.fixed_dictionaries({"op": st.just("Pad"), "padding": borders, "fill": fill, "padding_mode": modes}),
        st.fixed_dictionaries({"op": st.just("RandomCrop"), "size": pair, "padding": st.none() | borders,
                               "pad_if_needed": st.booleans(), "fill": fill, "padding_mode": modes}),
        st.fixed_dictionaries({"op": st.just("RandomResizedCrop"), "size": pair, "scale": interval, "ratio": interval,
                               "interpolation": st.sampled_from(["nearest", "bilinear", "lanczos"])}),
        st.fixed_dictionaries({"op": st.just("Grayscale"), "channels": st.sampled_from([1, 3])}),
    )


def containers(inner):
    groups = st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"op": st.just("RandomApply"), "ops": st.lists(inner, max_size=3), "p": st.floats(0, 1)}),
        st.fixed_dictionaries({"op": st.just("RandomOrder"), "groups": groups}),
        st.fixed_dictionaries({"op": st.just("RandomChoice"), "groups": groups, "p": st.none()}),
    )


def sizes_after(plan, size):
    """(width, height) after each step."""
    for step in plan.primitives:
        if isinstance(step, primitives.Pad):
            size = (size[0] + step.left + step.right, size[1] + step.top + step.bottom)
        elif isinstance(step, (primitives.Crop, primitives.Resize)):
            size = (step.width, step.height)
        yield size


@settings(max_examples=60, deadline=None)
@given(st.lists(st.recursive(leaf(), containers, max_leaves=5), max_size=4), st.integers(0, 2**64 - 1),
       st.integers(1, 90), st.integers(1, 90))
def test_round_trip_and_any_known_shape_is_kept(ops, seed, width, height):
    pipe = pipeline(*ops)
    again = Pipeline.parse(json.loads(json.dumps(pipe.to_data())))
    assert again == pipe and again.digest == pipe.digest and again.to_data() == pipe.to_data()
    source = image(width, height)
    try:
        plan = pipe.draw(source.size, Keyed(seed, 0, 0, 0))
        out = np.empty(plan.shape, dtype=np.uint8)
        pipe.apply(source, plan, out)
    except PipelineError:
        return
    for before, step in zip([source.size, *sizes_after(plan, source.size)], plan.primitives):
        if isinstance(step, primitives.Crop):
            assert 0 <= step.left <= before[0] - step.width and 0 <= step.top <= before[1] - step.height
    for size in (None, source.size):
        known = pipe.known_shape(size)
        assert known.size in (None, plan.shape[:2]) and known.channels in (None, plan.shape[2])
