"""The three ways to make a batch: which one is chosen, that they give the same bits, and that each sample comes once."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from csd_engine.data.base import Places, Reader
from csd_engine.data.image_files import open_sample
from csd_engine.errors import SampleError
from csd_engine.kernels.files import Files
from csd_engine.prepare import batch_maker
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.destination import Destination, FinishedPlace
from csd_engine.prepare.sample import prepare_sample
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.transforms.pipeline import Pipeline
from tests.open_files import open_files, opened_since

SEED, EPOCH, COUNT, SHAPE = 5, 3, 40, (20, 24, 3)
OPS = [
    {"op": "RandomCrop", "size": [20, 24], "padding": None, "pad_if_needed": False, "fill": [0], "padding_mode": "constant"},
    {"op": "RandomHorizontalFlip", "p": 0.5}, {"op": "Cutout", "holes": 2, "length": 9},
]  # fmt: skip
PIPELINE = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": OPS})
SOURCES = np.array([7, 7, 0, 39, 12, 3, 3, 3, 20, 1, 2, 38, 5], dtype=np.int64)
OCCURRENCES = np.array([0, 1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0], dtype=np.int64)


class OfArray(Reader):
    def __init__(self, images):
        self._images = images

    def __len__(self):
        return len(self._images)

    def open(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._images[index]

    def where(self, index):
        return f"row {index}"

    def rows(self):
        return self._images


class OfFiles(Reader):
    """With `whole`, it gives the files' paths."""

    def __init__(self, folder, whole):
        self._folder, self._whole = folder, whole

    def __len__(self):
        return COUNT

    def open(self, index):
        return open_sample(self.where(index))

    def where(self, index):
        return str(self._folder / f"{index}.jpg")

    def places(self, indices):
        return Places([self.where(index) for index in indices]) if self._whole else None


class Memory(Destination):
    """Memory for all samples, or for `places` at a time; with a table, also for the finished numbers."""

    def __init__(self, samples, places=None, table=None):
        self.images, self.boxes = np.zeros((samples, *SHAPE), np.uint8), np.zeros((samples, 2, 4), np.int32)
        self._places = samples if places is None else places
        self._room = np.zeros((self._places, *SHAPE), np.uint8), np.zeros((self._places, 2, 4), np.int32)
        self.table, self.numbers = table, None if table is None else np.zeros((samples, *SHAPE), table.dtype)
        self.parts = []

    def place(self, part):
        samples = part.stop - part.start
        return self._room[0][:samples], self._room[1][:samples]

    def done(self, part):
        samples = part.stop - part.start
        assert 0 < samples <= self._places
        self.images[part], self.boxes[part] = self._room[0][:samples], self._room[1][:samples]
        self.parts.append(part)

    def finished_place(self, part):
        if self.table is None:
            return None
        self.parts.append(part)
        return FinishedPlace(self.numbers[part], self.boxes[part], self.table, True)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(1)
    coarse = random.integers(0, 256, (COUNT, 5, 6, 3), dtype=np.uint8)
    decoded = []
    for index, one in enumerate(coarse):
        stream = io.BytesIO()
        Image.fromarray(one).resize((36, 30)).save(stream, "JPEG")
        (folder / f"{index}.jpg").write_bytes(stream.getvalue())
        decoded.append(np.asarray(Image.open(stream).convert("RGB")))
    return {"in bulk": OfArray(np.stack(decoded)), "by files": OfFiles(folder, True), "one by one": OfFiles(folder, False)}


def make(maker, to, sources=SOURCES, occurrences=OCCURRENCES):
    steps = [0]
    with maker.start(BatchRequest(sources, occurrences, SEED, EPOCH)) as batch:
        while steps[-1] < len(sources):
            steps.append(batch.make(steps[-1], to))
    return steps


def expected(reader):
    images, boxes = np.zeros((len(SOURCES), *SHAPE), np.uint8), np.zeros((len(SOURCES), 2, 4), np.int32)
    for row, item in enumerate(zip(SOURCES.tolist(), OCCURRENCES.tolist())):
        prepare_sample(reader, PIPELINE, item, SEED, EPOCH, images[row], boxes[row])
    return images, boxes


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "no kernel"])
@pytest.mark.parametrize("places", [None, 1, 3])
@pytest.mark.parametrize("way", ["in bulk", "by files", "one by one"])
def test_each_way_gives_the_bits_of_single_samples(readers, monkeypatch, way, places, kernel, request):
    if kernel:
        request.getfixturevalue("need_kernel")
    else:
        for user in ("prepare.batch_maker", "prepare.sample", "transforms.bulk", "arithmetic.keyed"):
            monkeypatch.setattr(f"csd_engine.{user}.kernel", lambda: None)
    maker, to, before = BatchMaker(readers[way], PIPELINE, SHAPE, 2), Memory(len(SOURCES), places), open_files()
    steps = make(maker, to)
    images, boxes = expected(readers["one by one"])
    assert np.array_equal(to.images, images) and np.array_equal(to.boxes, boxes)
    assert [part.start for part in to.parts] == steps[:-1] and [part.stop for part in to.parts] == steps[1:]
    assert len(steps) - 1 == (len(SOURCES) if way == "one by one" else len(to.parts))
    assert opened_since(before) == []


@pytest.mark.parametrize("way", ["in bulk", "by files", "one by one"])
def test_the_kernel_finishes_what_it_can_at_once(readers, need_kernel, way):
    table = np.random.default_rng(2).integers(0, 1 << 16, (3, 256), dtype=np.uint16)
    to = Memory(len(SOURCES), None, table)
    make(BatchMaker(readers[way], PIPELINE, SHAPE, 2), to)
    images, boxes = expected(readers["one by one"])
    assert np.array_equal(to.boxes, boxes)
    if way == "one by one":
        assert np.array_equal(to.images, images)
    else:
        assert np.array_equal(to.numbers, np.stack([table[channel][images[..., channel]] for channel in range(3)], -1))


def test_which_way_is_taken(readers, need_kernel):
    def way(reader, *about, sources=SOURCES):
        maker = BatchMaker(readers[reader], PIPELINE, *(about or (SHAPE, 2)))
        with maker.start(BatchRequest(sources, OCCURRENCES, 0, 0)) as batch:
            return type(batch), type(batch.calls)

    one_by_one = StartedBatch, type(None)
    assert way("in bulk") == (batch_maker._InBulk, type(None))
    assert way("by files") == (StartedBatch, Files)
    assert way("one by one") == one_by_one
    for reader in ("in bulk", "by files"):  # the memory has another pipeline's shape: the first sample raises
        assert way(reader, (20, 20, 3), 2) == way(reader, SHAPE, 1) == one_by_one
    assert way("in bulk", sources=SOURCES + 30) == one_by_one


@pytest.mark.parametrize("way", ["in bulk", "by files", "one by one"])
def test_a_sample_that_is_missing_is_told_at_its_turn(readers, way, need_kernel):
    sources, before = np.array([3, 4, 99, 5]), open_files()
    to = Memory(4)
    with pytest.raises(SampleError, match="99"):
        make(BatchMaker(readers[way], PIPELINE, SHAPE, 2), to, sources, np.zeros(4, np.int64))
    assert [part.stop for part in to.parts][-1] == 2 and opened_since(before) == []
