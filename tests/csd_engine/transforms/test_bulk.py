"""Bulk processing of equally large images gives, value for value, what the pipeline makes of each alone."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms.bulk import Bulk
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import native_order

CROP = {"op": "RandomCrop", "size": [32, 32], "padding": [4, 4, 4, 4], "pad_if_needed": False, "fill": [0],
        "padding_mode": "constant"}
FLIP, FLOP = {"op": "RandomHorizontalFlip", "p": 0.5}, {"op": "RandomVerticalFlip", "p": 0.4}
CUTOUT = {"op": "Cutout", "holes": 2, "length": 11}
ERASING = {"op": "RandomErasing", "p": 0.6, "scale": [0.02, 0.9], "ratio": [0.1, 9.0]}
MODES = ["constant", "edge", "reflect", "symmetric"]
CENTER = {"op": "CenterCrop", "size": [20, 45]}


def pad(*borders, fill=(7,), mode="constant"):
    return {"op": "Pad", "padding": list(borders), "fill": list(fill), "padding_mode": mode}


def pipeline(*ops, mode="RGB"):
    return Pipeline.parse({"format": 1, "order": native_order(), "mode": mode, "ops": list(ops)})


def images(n=40, height=32, width=32, channels=3):
    shape = (n, height, width, channels) if channels > 1 else (n, height, width)
    return np.random.default_rng(height * width).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(params=["kernel", "numpy"], autouse=True)
def way(request, monkeypatch):
    """Each test with the compiled kernel and without."""
    if request.param == "numpy":
        monkeypatch.setattr("csd_engine.transforms.bulk.kernel", lambda: None)
    else:
        request.getfixturevalue("need_kernel")


def assert_same(made, rows, n=70, seed=5, epoch=2):
    bulk = Bulk.of(made, rows)
    assert bulk is not None
    generator = np.random.default_rng(1)
    indices, occurrences = generator.integers(0, len(rows), n), generator.integers(0, 3, n)
    out = np.empty((n, *bulk.shape), dtype=np.uint8)
    boxes = np.full((n, made.boxes, 4), -1, dtype=np.int32) if made.boxes else None
    bulk.fill(indices, occurrences, seed, epoch, out, boxes)
    expected = np.empty(bulk.shape, dtype=np.uint8)
    expected_boxes = np.empty((made.boxes, 4), dtype=np.int32) if made.boxes else None
    for k in range(n):
        keyed = Keyed(seed, epoch, int(indices[k]), int(occurrences[k]))
        made.run(Image.fromarray(rows[indices[k]]), keyed, expected, expected_boxes)
        np.testing.assert_array_equal(out[k], expected, err_msg=f"sample {k}")
        if boxes is not None:
            np.testing.assert_array_equal(boxes[k], expected_boxes, err_msg=f"boxes of sample {k}")


def test_numbers_are_drawn_in_single_precision():
    """0.49 of a square of 35 pixels has sides of 24.5, which are 24 in double precision, and 25 in torch's."""
    assert_same(pipeline({"op": "RandomErasing", "p": 1.0, "scale": [0.49, 0.49], "ratio": [1.0, 1.0]}), images(40, 35, 35))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "ops",
    [
        [CROP, FLIP],
        [CROP, FLIP, CUTOUT, ERASING],
        [pad(1, 2, 3, 4), FLOP, CROP | {"fill": [7]}],
        [pad(-3, 0, -1, -2), FLIP],
        [CROP | {"size": [60, 50], "pad_if_needed": True, "padding": None}],
        [FLOP, pad(9, 0, 40, 33, mode="symmetric"), FLIP, CENTER],
        [pad(-1, 0, 0, -3), pad(0, 0, 0, 0, mode="edge")],
        [],
    ],
    ids=lambda ops: " ".join(op["op"] for op in ops),
)
def test_equals_the_pipeline_sample_by_sample(ops, channels):
    assert_same(pipeline(*ops, mode="RGB" if channels == 3 else "L"), images(channels=channels))


def test_colour_borders_and_sizes_that_are_not_square():
    assert_same(pipeline(CROP | {"fill": [1, 2, 250], "size": [9, 40]}, FLIP, FLOP), images(height=17, width=45))


@pytest.mark.parametrize("ops", [[CROP, FLIP], [FLIP]], ids=["with borders", "without"])
def test_rows_that_are_not_contiguous(ops):
    """torchvision's CIFAR-10 is stored so: one plane per channel, seen as pixels through a transpose."""
    planes = np.random.default_rng(3).integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
    assert_same(pipeline(*ops), planes.transpose(0, 2, 3, 1))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.lists(
        st.one_of(
            st.just(FLIP), st.just(FLOP), st.builds(pad, *[st.integers(-2, 5)] * 4, mode=st.sampled_from(MODES)),
            st.builds(lambda h, w: {"op": "CenterCrop", "size": [h, w]}, st.integers(1, 14), st.integers(1, 14)),
            st.builds(lambda h, w, p: CROP | {"size": [h, w], "padding": [p] * 4, "fill": [7]},
                      st.integers(1, 14), st.integers(1, 14), st.integers(0, 4)),
        ),
        max_size=5,
    ),
    st.sampled_from([[], [CUTOUT], [ERASING], [ERASING, CUTOUT]]),
)
def test_what_bulk_accepts_equals_the_pipeline(size, moves, last):
    made, rows = pipeline(*moves, *last), images(7, *size)
    if Bulk.of(made, rows) is not None:
        assert_same(made, rows, n=12)


@pytest.mark.parametrize(
    "ops",
    [
        [pad(2, 2, 2, 2, mode="reflect"), pad(2, 2, 2, 2, mode="reflect")],
        [pad(2, 2, 2, 2), pad(2, 2, 2, 2, mode="edge")],
        [{"op": "CenterCrop", "size": [8, 8]}, pad(2, 2, 2, 2)],
        [pad(2, 2, 2, 2, fill=(1,)), pad(2, 2, 2, 2, fill=(2,))],
        [{"op": "Resize", "size": [8, 8], "max_size": None, "interpolation": "bilinear"}],
        [{"op": "RandomApply", "ops": [FLIP], "p": 0.5}],
        [CROP | {"size": [41, 41]}],  # larger than the padded image: the single sample raises
    ],
    ids=lambda ops: " ".join(op["op"] for op in ops),
)
def test_what_it_leaves_to_the_pipeline(ops):
    assert Bulk.of(pipeline(*ops), images()) is None


def test_data_that_it_leaves_to_the_pipeline():
    assert Bulk.of(pipeline(FLIP), None) is None
    assert Bulk.of(pipeline(FLIP), images(channels=1)) is None  # grey rows with an RGB pipeline
    bulk = Bulk.of(pipeline(FLIP), images(40))
    assert bulk.takes(np.array([0, 39])) and not bulk.takes(np.array([0, 40])) and not bulk.takes(np.array([-1]))


def test_parts_of_a_batch_stay_small():
    bulk = Bulk.of(pipeline(FLIP), images(3, 100, 100))
    parts = [np.arange(256)[at : at + bulk.at_once] for at in range(0, 256, bulk.at_once)]
    assert np.concatenate(parts).tolist() == list(range(256))
    assert max(map(len, parts)) * 30_000 <= 1 << 20
    assert Bulk.of(pipeline(), images(2, 700, 700)).at_once == 1
