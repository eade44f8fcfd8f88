import io

import numpy as np
import pytest
from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import Crop, Flip, Resize
from csd_engine.transforms.reduced import draft, reduced

RRC = {"op": "RandomResizedCrop", "size": [32, 40], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], "interpolation": "bilinear"}


def pipeline(decode, *ops):
    return Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": list(ops), "decode": decode})


def jpeg(width, height, **options):
    rows = np.linspace(0, 255, height)[:, None, None] + np.linspace(0, 60, width)[None, :, None] * np.array([1, -1, 0.5])
    stream = io.BytesIO()
    Image.fromarray(np.clip(rows, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90, **options)
    return stream.getvalue()


def run(pipe, data, key=0):
    image = Image.open(io.BytesIO(data))
    out = np.empty(pipe.draw(image.size, Keyed(0, 0, key, 0)).shape, np.uint8)
    pipe.run(image, Keyed(0, 0, key, 0), out, None)
    return out


@pytest.mark.parametrize(
    ("steps", "wanted", "reduce"),
    [
        ((Crop(10, 20, 200, 100), Resize(100, 50, "bilinear")), (Crop(5, 10, 100, 50),), 2),  # nothing left to resample
        ((Crop(11, 21, 201, 103), Resize(100, 50, "bicubic")), (Crop(5, 10, 101, 52), Resize(100, 50, "bicubic")), 2),
        ((Crop(11, 21, 199, 103), Resize(100, 50, "bilinear")), None, 1),  # the height is not twice as large
        ((Crop(0, 0, 800, 1600), Resize(100, 200, "bilinear"), Flip(True)), (Crop(0, 0, 100, 200), Flip(True)), 8),
        ((Crop(0, 0, 799, 1600), Resize(100, 200, "bilinear")), (Crop(0, 0, 200, 400), Resize(100, 200, "bilinear")), 4),
        ((Resize(100, 100, "bilinear"), Crop(1, 2, 3, 4)), (Resize(100, 100, "bilinear"), Crop(1, 2, 3, 4)), 8),
        ((Crop(0, 0, 800, 800), Resize(100, 100, "nearest")), None, 1),
        ((Crop(0, 0, 800, 800),), None, 1),
        ((Flip(True), Resize(10, 10, "bilinear")), None, 1),
        ((), None, 1),
    ],
)
def test_steps_for_a_reduced_image(steps, wanted, reduce):
    assert reduced(steps, (2000, 1601)) == (steps if wanted is None else wanted, reduce)


@pytest.mark.parametrize("size", [(17, 33), (15, 15), (640, 479), (9, 200), (1001, 803)])
@pytest.mark.parametrize("reduce", [2, 4, 8])
def test_pillow_decodes_at_just_this_size(size, reduce):
    image = Image.open(io.BytesIO(jpeg(*size)))
    draft(image, reduce)
    assert np.asarray(image).shape == (-(-size[1] // reduce), -(-size[0] // reduce), 3)


def test_only_a_jpeg_can_be_decoded_at_a_part_of_its_size():
    stream = io.BytesIO()
    Image.new("RGB", (64, 64)).save(stream, "PNG")
    with pytest.raises(ValueError, match="PNG of 64x64"):
        draft(Image.open(stream), 2)
    assert (run(pipeline("fast", RRC), stream.getvalue()) == 0).all()  # the pipeline does not try


def test_close_to_exact_and_the_same_where_the_crop_is_small():
    small, large = jpeg(60, 70), jpeg(900, 700, progressive=True)
    exact, fast = pipeline("exact", RRC), pipeline("fast", RRC)
    differ = 0
    for key in range(20):
        assert (run(exact, small, key) == run(fast, small, key)).all()
        distance = np.abs(run(exact, large, key).astype(int) - run(fast, large, key))
        differ += bool(distance.any())
        assert distance.mean() < 2 and distance.max() < 12
    assert differ > 15


def test_the_pipeline_says_which_it_is():
    exact, fast = pipeline("exact", RRC), pipeline("fast", RRC)
    assert exact.digest != fast.digest and "decode" not in exact.to_data()
    assert Pipeline.parse(fast.to_data()) == fast and fast.to_data()["decode"] == "fast"
    with pytest.raises(PipelineError, match="decode='careless'"):
        pipeline("careless", RRC)
