"""Views of several sizes in one row: the kernel makes Pillow's pixels from one decoded image. Which views may form a row."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.base import Reader
from csd_engine.errors import PipelineError
from csd_engine.kernels import kernel
from csd_engine.prepare import sample as samples
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms.pipeline import Pipeline
from tests.csd_engine.prepare.test_file_info import OneFile

FLIP = {"op": "RandomHorizontalFlip", "p": 0.5}
GREY = {"op": "RandomGrayscale", "p": 0.5}
WINDOW = {"op": "CenterCrop", "size": [17, 11]}


def crop(size, low, high):
    ratio = [0.75, 4 / 3]
    return {"op": "RandomResizedCrop", "size": [size, size], "scale": [low, high], "ratio": ratio, "interpolation": "bicubic"}


def pipeline(*ops, **more):
    return Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": list(ops), **more})


GROUPS = [[crop(32, 0.4, 1.0), FLIP], [crop(32, 0.4, 1.0), GREY], [WINDOW], [crop(13, 0.05, 0.4), FLIP, GREY]]
ROW = pipeline({"op": "SizedViews", "groups": GROUPS})
SHAPE = (76, 32, 3)  # two of 32 x 32, 17 x 11 and 13 x 13: 2,404 pixels in lines of 32


def picture():
    small = np.random.default_rng(5).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((320, 240), Image.Resampling.BICUBIC)


class OneRow(Reader):
    """A data set of one array."""

    def __len__(self):
        return 1

    def open(self, index):
        return np.array(picture())

    def where(self, index):
        return "a row"


@pytest.mark.parametrize("kind", ["JPEG", "progressive", "PNG", "array", "fast"])
def test_a_row_is_its_views_each_made_alone(tmp_path, kind, monkeypatch):
    path, row = str(tmp_path / "image"), ROW if kind != "fast" else pipeline(*ROW.to_data()["ops"], decode="fast")
    if kind == "array":
        reader = OneRow()
    else:
        picture().save(path, "PNG" if kind == "PNG" else "JPEG", progressive=kind == "progressive")
        reader = OneFile(path)
    decoded, real = [], samples._window
    monkeypatch.setattr(samples, "_window", lambda jobs: (decoded.append(len(jobs)), real(jobs))[1])
    assert row.output_shape(None) == SHAPE and row.view_sizes(None) == ((32, 32), (32, 32), (17, 11), (13, 13))
    for occurrence in range(6):
        out, memory = np.full(SHAPE, 255, np.uint8), []
        prepare_sample(reader, row, (0, occurrence), 3, 1, out, None, memory.append)
        flat, at = out.reshape(-1), 0
        for view, group in enumerate(GROUPS):
            one = pipeline(*group)
            wanted = np.empty(one.output_shape(None), np.uint8)
            with reader.image(0) as image:
                one.run(image, Keyed(3, 1, 0, 4 * occurrence + view), wanted, None)
            assert np.array_equal(flat[at : at + wanted.size], wanted.reshape(-1)), view
            at += wanted.size
        assert at == 3 * 2404 and not flat[at:].any()
        assert kind == "array" or memory and max(memory) > 3 * 17 * 11
    assert decoded == ([4] * 6 if kernel() and kind in ("JPEG", "progressive", "fast") else [])


@pytest.mark.parametrize("ops, text", [
    ([{"op": "SizedViews", "groups": GROUPS}, FLIP], "beside other operators"),
    ([{"op": "RandomApply", "ops": [{"op": "SizedViews", "groups": GROUPS}], "p": 0.5}], "inside another"),
    ([{"op": "SizedViews", "groups": [[WINDOW], [{"op": "Cutout", "holes": 1, "length": 4}]]}], "without masks"),
    ([{"op": "SizedViews", "groups": [[WINDOW]]}], "at least two"),
])  # fmt: skip
def test_what_is_no_row(ops, text):
    with pytest.raises(PipelineError, match=text):
        pipeline(*ops)


def test_a_row_of_unknown_size_or_of_too_many_pixels_is_refused():
    with pytest.raises(PipelineError, match="not fixed"):
        pipeline({"op": "SizedViews", "groups": [[FLIP], [WINDOW]]}).output_shape(None)
    huge = {"op": "CenterCrop", "size": [16384, 16384]}
    with pytest.raises(PipelineError, match="pixels at most"):
        pipeline({"op": "SizedViews", "groups": [[huge], [huge]]}).output_shape(None)
    with pytest.raises(PipelineError, match="draw_row"):
        ROW.draw((64, 64), Keyed(0, 0, 0, 0))
