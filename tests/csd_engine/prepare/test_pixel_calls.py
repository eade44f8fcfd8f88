"""A batch of images in memory in few calls: the bits of Pillow, whatever their size, mode and strides."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from csd_engine import kernels
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Reader, open_reader
from csd_engine.data.concat import ConcatSet
from csd_engine.kernels.pixels import Pixels, PixelSamples
from csd_engine.prepare import sample as samples
from csd_engine.prepare import started_batch
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.kernel_calls import pixel_calls
from csd_engine.prepare.sample import prepare_sample
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.transforms.fileplan import file_plan
from tests.csd_engine.prepare.memory import Memory
from tests.csd_engine.prepare.test_sample import PIPELINES, SHAPES, TRAIN, pipeline

SEED, EPOCH = 3, 2
SIZES = ((1, 1), (3, 40), (61, 5), (75, 50), (117, 150), (40, 33))  # height, width
COLOURS = (
    {"op": "ColorJitter", "brightness": [0.6, 1.4], "contrast": [0.6, 1.4], "saturation": [0.6, 1.4], "hue": [-0.1, 0.1]},
)


@pytest.fixture
def kernel(need_kernel, monkeypatch):
    monkeypatch.setattr(started_batch, "ENOUGH_S", 60.0)  # so that it does not depend on this machine's speed
    return kernels.kernel()


def images(size, channels, count=3):
    """Smooth colours under noise, (count, height, width[, 3])."""
    noise = np.random.default_rng(size[0] * 1000 + size[1]).integers(0, 256, (count, *size, channels), dtype=np.uint8)
    made = noise // 3 + np.linspace(0, 160, size[1]).astype(np.uint8)[:, None]
    return made if channels == 3 else made[..., 0]


LAYOUTS = {
    "packed": lambda rows: rows,
    "planes": lambda rows: np.moveaxis(np.ascontiguousarray(np.moveaxis(rows, -1, 1)), 1, -1),
    "mirrored": lambda rows: np.ascontiguousarray(rows[:, :, ::-1])[:, :, ::-1],
    "upside down": lambda rows: np.ascontiguousarray(rows[:, ::-1])[:, ::-1],
    "other order": lambda rows: np.ascontiguousarray(rows[..., ::-1])[..., ::-1],
    "gaps between rows": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "gaps between pixels": lambda rows: np.repeat(rows, 2, axis=2)[:, :, ::2],
}  # fmt: skip


class OfRows(Reader):
    """Samples of several arrays."""

    def __init__(self, *arrays):
        self._arrays = arrays

    def __len__(self):
        return sum(map(len, self._arrays))

    def open(self, index):
        return [row for array in self._arrays for row in array][index]

    def pixels(self, indices):
        starts = np.cumsum([0, *map(len, self._arrays)]).tolist()
        return Pixels.of_parts(
            starts, lambda part, own: Pixels.of_rows(self._arrays[part], own), indices
        )

    def where(self, index):
        return f"row {index}"


def by_pillow(reader, pipe, items):
    """The definition: each sample by Pillow alone."""
    out = np.zeros((len(items), *SHAPES[pipe.mode]), np.uint8)
    boxes = np.zeros((len(items), pipe.boxes, 4), np.int32)
    for row, (index, occurrence) in enumerate(items):
        keyed = Keyed(SEED, EPOCH, index, occurrence)
        pipe.run(Image.fromarray(np.ascontiguousarray(reader.open(index))), keyed, out[row], boxes[row] if pipe.boxes else None)
    return out, boxes


def request_of(indices, occurrences=None):
    sources = np.array(indices, dtype=np.int64)
    return BatchRequest(sources, np.zeros_like(sources) if occurrences is None else np.array(occurrences), SEED, EPOCH)


def together(reader, pipe, kernel, items):
    """Samples, boxes, and the number of calls."""
    memory, request = Memory(len(items), SHAPES[pipe.mode], pipe.boxes), request_of(*zip(*items))
    made_by = pixel_calls(reader, file_plan(pipe, kernel), request)
    assert made_by is not None
    at = calls = 0
    with StartedBatch(reader, pipe, request, made_by) as batch:
        while at < len(items):
            at, calls = batch.make(at, memory), calls + 1
    return memory.images, np.zeros((len(items), 0, 4), np.int32) if memory.boxes is None else memory.boxes, calls


def items_of(reader, times=4):
    return [(index, occurrence) for occurrence in range(times) for index in range(len(reader))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("name", ["train", "evaluation", "masks", "fast"])
@pytest.mark.some(20)
def test_the_bits_are_pillows(kernel, name, mode, layout):
    arrays = [LAYOUTS[layout](images(size, SHAPES[mode][2])) for size in SIZES]
    assert all(np.array_equal(array, images(size, SHAPES[mode][2])) for array, size in zip(arrays, SIZES))
    pipe = pipeline(TRAIN, mode, decode="fast") if name == "fast" else pipeline(PIPELINES[name], mode)
    reader = OfRows(*arrays)
    found, boxes, calls = together(reader, pipe, kernel, items_of(reader))
    wanted, wanted_boxes = by_pillow(reader, pipe, items_of(reader))
    assert np.array_equal(found, wanted) and np.array_equal(boxes, wanted_boxes)
    assert calls == 1 or name == "evaluation"  # a narrow image needs borders, which the kernel has not


def test_grey_images_among_coloured_ones(kernel):
    reader, pipe = OfRows(images((50, 70), 1), images((60, 40), 3), images((33, 90), 1)), pipeline(TRAIN)
    found, _, calls = together(reader, pipe, kernel, items_of(reader))
    assert np.array_equal(found, by_pillow(reader, pipe, items_of(reader))[0])
    assert calls == 1
    assert np.array_equal(together(reader, pipeline(TRAIN, "L"), kernel, items_of(reader))[0],  # Pillow makes grey of colours
                          by_pillow(reader, pipeline(TRAIN, "L"), items_of(reader))[0])  # fmt: skip


def test_many_are_made_by_one_call_without_pillow(kernel, monkeypatch):
    reader, pipe = OfRows(images((75, 50), 3), images((40, 33), 3)), pipeline(PIPELINES["masks"])
    monkeypatch.setattr(started_batch, "prepare_sample", None)
    assert together(reader, pipe, kernel, items_of(reader))[2] == 1
    monkeypatch.setattr(started_batch, "ENOUGH_S", 1e-9)  # time for one sample only
    assert together(reader, pipe, kernel, items_of(reader))[2] == len(items_of(reader))


def array_set(path, rows):
    np.save(path, rows)
    return ArraySet(str(path), "0" * 32, rows.shape)


@pytest.fixture
def readers(tmp_path):
    """An engine's readers: of one array, and of several."""
    sets = [array_set(tmp_path / f"{number}.npy", images(size, 3)) for number, size in enumerate(SIZES[2:])]
    return [open_reader(one, str, str) for one in (sets[0], ConcatSet(tuple(sets)))]


def test_data_sets_of_arrays_go_this_way(kernel, readers):
    for reader in readers:
        maker, pipe, count = BatchMaker(reader, pipeline(TRAIN), SHAPES["RGB"], 0), pipeline(TRAIN), len(reader)
        order = np.random.default_rng(1).permutation(count)
        with maker.start(request_of(order)) as batch:
            assert type(batch.calls) is PixelSamples
        items = [(index, 0) for index in order.tolist()]
        assert np.array_equal(together(reader, pipe, kernel, items)[0], by_pillow(reader, pipe, items)[0])
        for wrong in (-1, count):  # told by the sample at its turn
            assert reader.pixels(np.array([0, wrong])) is None
            with maker.start(request_of([0, wrong])) as batch:
                assert batch.calls is None


@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("name", [*PIPELINES, "colours"])
def test_one_by_one_the_bits_are_pillows_too(kernel, monkeypatch, name, mode):
    """A step that the kernel can't draw by itself follows its own steps on the crop alone."""
    ops = (*TRAIN, *COLOURS) if name == "colours" else PIPELINES[name]
    pipe, readers = pipeline(ops, mode), [OfRows(layout(images(SIZES[4], SHAPES[mode][2]))) for layout in LAYOUTS.values()]
    for reader in readers:
        out, boxes = np.zeros((3, *SHAPES[mode]), np.uint8), np.zeros((3, pipe.boxes, 4), np.int32)
        for index in range(3):
            prepare_sample(reader, pipe, (index, 0), SEED, EPOCH, out[index], boxes[index] if pipe.boxes else None)
        wanted, wanted_boxes = by_pillow(reader, pipe, [(index, 0) for index in range(3)])
        assert np.array_equal(out, wanted) and np.array_equal(boxes, wanted_boxes)
    if name in ("train", "evaluation", "a step for Pillow behind", "masks", "colours"):
        monkeypatch.setattr(samples, "_by_pillow", None)
        prepare_sample(readers[0], pipe, (0, 0), SEED, EPOCH, out[0], boxes[0] if pipe.boxes else None)


def test_a_function_may_change_the_image_but_not_the_array(kernel):
    """Grey images are not copied by Pillow when it makes an image of an array."""
    rows = images((32, 24), 1)
    image = OfRows(rows).image(0)
    image.putpixel((0, 0), 255 - int(rows[0, 0, 0]))
    assert np.array_equal(rows, images((32, 24), 1))


def test_files_among_arrays_go_one_by_one(kernel, tmp_path):
    class Mixed(OfRows):
        def pixels(self, indices):
            arrays = super().pixels
            return Pixels.of_parts([0, 3, 6], lambda part, own: None if part else arrays(own), indices)

    reader, plan = Mixed(images((75, 50), 3), images((75, 50), 3)), file_plan(pipeline(TRAIN), kernel)
    assert pixel_calls(reader, plan, request_of([0, 2])) is not None
    assert pixel_calls(reader, plan, request_of([0, 3])) is None
    assert pixel_calls(reader, None, request_of([0, 2])) is None


def test_places_that_do_not_fit_are_an_error(kernel):
    calls = pixel_calls(OfRows(images((75, 50), 3)), file_plan(pipeline(TRAIN), kernel), request_of([0, 0]))
    for shape, step in (((1, 32, 25, 3), 1), ((3, 32, 24, 3), 1), ((1, 32, 48, 3), 2)):  # other size, too many, gaps
        with pytest.raises(ValueError):
            calls.make(0, np.zeros(shape, np.uint8)[:, :, ::step], None, 1.0)
