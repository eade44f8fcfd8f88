"""A batch of files in few calls: same samples and errors as one by one, each file opened once, none left open."""

import ctypes
import os
import struct
import time

import numpy as np
import pytest
from PIL import Image

from csd_engine import kernels
from csd_engine.data.base import Places, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.data.readahead import AHEAD
from csd_engine.errors import SampleError
from csd_engine.prepare import sample as samples
from csd_engine.prepare import started_batch
from csd_engine.prepare.kernel_calls import file_calls
from csd_engine.prepare.read_time import READING
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.transforms.fileplan import file_plan
from tests.at_once import at_once
from tests.csd_engine.prepare.memory import Memory
from tests.csd_engine.prepare.test_sample import BAD, GOOD, PIPELINES, SHAPES, TEST, TRAIN, pipeline
from tests.open_files import few_descriptors, open_files, opened_since

SEED, EPOCH = 3, 2
_IN_OPEN = 0x20


@pytest.fixture
def kernel(need_kernel):
    return kernels.kernel()


@pytest.fixture
def folder(tmp_path):
    for name, data in {**GOOD, **BAD}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def reader_of(folder, names, beneath=None):
    manifest = folder / "manifest"
    digest = write_manifest(manifest, names)
    return open_reader(FileSet(str(folder), digest, len(names)), lambda root: root, lambda _: manifest, beneath)


def request_of(indices, **more):
    sources = np.array(indices, dtype=np.int64)
    return BatchRequest(sources, np.arange(len(sources), dtype=np.int64) % 3, SEED, EPOCH, **more)


def started(reader, pipe, kernel, request):
    calls = file_calls(reader, file_plan(pipe, kernel), request)
    assert calls is not None
    return StartedBatch(reader, pipe, request, calls)


def together(reader, pipe, kernel, indices, table=None, channels_last=True, **more):
    """Samples and boxes of one batch, and the number of calls it took."""
    memory = Memory(len(indices), SHAPES[pipe.mode], pipe.boxes, table, channels_last)
    at = calls = 0
    with started(reader, pipe, kernel, request_of(indices, **more)) as batch:
        while at < len(indices):
            before, calls = at, calls + 1
            at = batch.make(at, memory)
            assert at > before
    return memory.images, memory.boxes, calls


def one_by_one(reader, pipe, indices):
    out = np.zeros((len(indices), *SHAPES[pipe.mode]), np.uint8)
    boxes = np.zeros((len(indices), pipe.boxes, 4), np.int32) if pipe.boxes else None
    for row, index in enumerate(indices):
        masks = None if boxes is None else boxes[row]
        samples.prepare_sample(reader, pipe, (index, row % 3), SEED, EPOCH, out[row], masks)
    return out, boxes


@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("name", ["train", "evaluation", "masks", "fast"])
def test_the_samples_are_those_made_one_by_one(kernel, folder, name, mode):
    reader = reader_of(folder, list(GOOD))
    pipe = pipeline(TRAIN, mode, decode="fast") if name == "fast" else pipeline(PIPELINES[name], mode)
    indices = [*range(len(GOOD))] * 3
    (found, boxes, _), (wanted, wanted_boxes) = together(reader, pipe, kernel, indices), one_by_one(reader, pipe, indices)
    assert np.array_equal(found, wanted)
    assert (boxes is None and wanted_boxes is None) or np.array_equal(boxes, wanted_boxes)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", [None, np.uint16, np.uint32])
def test_they_come_in_the_batchs_type(kernel, folder, dtype, channels_last):
    reader, pipe, indices = reader_of(folder, list(GOOD)), pipeline(TRAIN), list(range(len(GOOD)))  # some are left to Pillow
    table = None if dtype is None else np.random.default_rng(0).integers(0, 60000, (3, 256)).astype(dtype)
    wanted, _ = one_by_one(reader, pipe, indices)
    if table is not None:
        wanted = np.stack([table[channel][wanted[..., channel]] for channel in range(3)], axis=-1)
    found, _, _ = together(reader, pipe, kernel, indices, table, channels_last)
    assert np.array_equal(found, wanted if channels_last else wanted.transpose(0, 3, 1, 2))


def test_many_are_made_by_one_call(kernel, folder, monkeypatch):
    reader, indices = reader_of(folder, ["plain.jpg", "444.jpg"]), [0, 1] * 20
    monkeypatch.setattr(started_batch, "ENOUGH_S", 60.0)
    assert together(reader, pipeline(TRAIN), kernel, indices)[2] == 1
    monkeypatch.setattr(started_batch, "ENOUGH_S", 1e-9)  # time for one sample only
    assert together(reader, pipeline(TRAIN), kernel, indices)[2] == len(indices)


@pytest.mark.parametrize("name", [*BAD, "missing.jpg", "folder", "fifo"])
@pytest.mark.parametrize("ops", [TRAIN, TEST])
def test_the_errors_are_those_made_one_by_one(kernel, folder, name, ops):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    reader, pipe = reader_of(folder, ["plain.jpg", name]), pipeline(ops)

    def told(make):
        try:
            return make().tobytes()
        except SampleError as error:
            return type(error.__cause__), str(error)

    found = told(lambda: together(reader, pipe, kernel, [0, 0, 1, 0])[0])
    assert found == told(lambda: one_by_one(reader, pipe, [0, 0, 1, 0])[0])
    assert type(found) is bytes or name in found[1]


def test_an_image_that_the_pipeline_cannot_take_is_told_as_ever(kernel, folder):
    small = {"op": "RandomCrop", "size": [32, 24], "padding": None, "pad_if_needed": False, "fill": [0], "padding_mode": "edge"}
    Image.new("RGB", (9, 99)).save(folder / "narrow.jpg")
    with pytest.raises(SampleError, match="narrow.jpg.*larger than input image size .*RandomCrop"):
        together(reader_of(folder, ["plain.jpg", "narrow.jpg"]), pipeline([small]), kernel, [0, 1])


def test_what_the_kernel_takes_never_comes_to_pillow(kernel, folder, monkeypatch):
    monkeypatch.setattr(started_batch, "prepare_by_pillow", None)
    monkeypatch.setattr(started_batch, "prepare_sample", None)
    reader = reader_of(folder, ["plain.jpg", "444.jpg", "progressive.jpg", "grey.jpg", "profile.jpg"])
    for name in ("train", "evaluation", "masks"):
        together(reader, pipeline(PIPELINES[name]), kernel, range(5))


class Opens:
    """Counts how often files of a folder are opened (inotify)."""

    def __init__(self, folder):
        libc = ctypes.CDLL(None)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _IN_OPEN) >= 0

    def names(self):
        found = []
        try:
            while data := os.read(self._descriptor, 1 << 16):
                while data:
                    length = struct.unpack_from("iIII", data)[3]
                    found.append(data[16 : 16 + length].rstrip(b"\0").decode())
                    data = data[16 + length :]
        except BlockingIOError:
            return found

    def close(self):
        os.close(self._descriptor)


def test_each_file_is_opened_once(kernel, folder):
    names = list(GOOD)
    reader, opens = reader_of(folder, names), Opens(folder)
    try:
        together(reader, pipeline(TRAIN), kernel, range(len(names)))
        assert sorted(opens.names()) == sorted(names)
    finally:
        opens.close()


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_nothing_stays_open_when_a_batch_is_broken_off(kernel, folder, monkeypatch, calls):
    monkeypatch.setattr(started_batch, "ENOUGH_S", 1e-9)
    reader, pipe, n = reader_of(folder, ["plain.jpg"]), pipeline(TRAIN), 2 * AHEAD
    memory, before = Memory(n, SHAPES["RGB"], 0), open_files()
    with started(reader, pipe, kernel, request_of([0] * n)) as batch:
        for at in range(calls):
            batch.make(at, memory)
        assert len(opened_since(before)) == (AHEAD if calls else 0)  # opened ahead of their turn
    assert opened_since(before) == []


@pytest.mark.parametrize("free", [1, 2, 3, AHEAD])
def test_files_that_cannot_be_opened_ahead_are_opened_at_their_turn(kernel, folder, free):
    """If few descriptors are left, the files that come next get them, not later ones."""
    reader, pipe = reader_of(folder, ["plain.jpg", "palette.png"]), pipeline(TRAIN)
    indices = [0, 0, 1] * AHEAD
    wanted, _ = one_by_one(reader, pipe, indices)
    with few_descriptors(free):
        found, _, _ = together(reader, pipe, kernel, indices)
    assert np.array_equal(found, wanted)


def test_what_goes_one_by_one(kernel, folder):
    """There are no calls without a plan, or if a file's path cannot be passed to C."""
    plan = file_plan(pipeline(TRAIN), kernel)
    of = lambda reader, plan=plan, index=0: file_calls(reader, plan, request_of([index, index]))  # noqa: E731
    reader = reader_of(folder, ["plain.jpg"])
    assert of(reader) is not None
    assert of(reader, None) is None
    assert of(reader, index=7) is None  # there is no sample 7: the error comes when it is its turn
    for path in ("plain.jpg\0.png", "no \ud800 file name.jpg"):
        reader.places = lambda indices, path=path: Places(["plain.jpg"] * (len(indices) - 1) + [path])
        assert of(reader) is None


def test_files_lie_beneath_the_roots_whatever_links_say(kernel, folder):
    roots, pipe = [str(folder / "one"), str(folder / "two") + "/"], pipeline(TRAIN)
    for name in ("one", "two", "one and more"):
        (folder / name).mkdir()
        (folder / name / "image.jpg").write_bytes(GOOD["plain.jpg"])
    (folder / "one" / "to two.jpg").symlink_to(folder / "two" / "image.jpg")
    (folder / "one" / "out.jpg").symlink_to(folder / "one and more" / "image.jpg")
    reader = reader_of(folder, ["one/image.jpg", "one/to two.jpg", "one/out.jpg", "one and more/image.jpg"], roots)
    found, _, _ = together(reader, pipe, kernel, [0, 1])
    assert np.array_equal(found, one_by_one(reader, pipe, [0, 1])[0])
    with pytest.raises(SampleError, match="outside the roots"):  # an empty list of roots
        together(reader_of(folder, ["one/image.jpg"], []), pipe, kernel, [0])
    for outside in (2, 3):
        with pytest.raises(SampleError, match="RootNotAllowed.*outside the roots") as found:
            together(reader, pipe, kernel, [0, outside])
        with pytest.raises(SampleError) as wanted:
            one_by_one(reader, pipe, [0, outside])
        assert str(found.value) == str(wanted.value)


def test_with_roots_the_kernel_still_does_it(kernel, folder, monkeypatch):
    monkeypatch.setattr(started_batch, "prepare_sample", None)
    together(reader_of(folder, ["plain.jpg"], [str(folder)]), pipeline(TRAIN), kernel, [0, 0])
    together(reader_of(folder, ["plain.jpg"], ["/"]), pipeline(TRAIN), kernel, [0, 0])


def test_large_images_wait_for_their_turn(kernel, folder):
    names = ["plain.jpg", "progressive.jpg", "cmyk.jpg"]
    reader, pipe, asked = reader_of(folder, names), pipeline(TRAIN), []
    memory = 6 * 150 * 117
    found, _, _ = together(reader, pipe, kernel, range(3), large_bytes=memory, before_decoding=asked.append)
    assert asked == [memory, (4 + 4) * 150 * 117]  # Pillow holds the CMYK image and its RGB copy
    assert np.array_equal(found, one_by_one(reader, pipe, range(3))[0])
    asked.clear()
    together(reader, pipe, kernel, range(3), large_bytes=memory + 1, before_decoding=asked.append)
    assert asked == [(4 + 4) * 150 * 117]


@pytest.mark.parametrize("limit", [1000, 1000.5])
def test_an_image_larger_than_the_user_allows_is_pillows(kernel, folder, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(SampleError, match="DecompressionBombError"):
        together(reader_of(folder, ["plain.jpg"]), pipeline(TRAIN), kernel, [0])


@pytest.mark.parametrize("limit", [1e10, float("inf"), 1 << 63, 1 << 64])
def test_any_large_number_is_a_limit_that_the_kernel_keeps_to(kernel, folder, monkeypatch, limit):
    reader, pipe = reader_of(folder, ["plain.jpg", "progressive.jpg"]), pipeline(TRAIN)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    wanted, _, _ = together(reader, pipe, kernel, [0, 1])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr(started_batch, "prepare_by_pillow", None)  # it would be called if the limit had overflowed to 0
    assert np.array_equal(together(reader, pipe, kernel, [0, 1])[0], wanted)


def test_reading_is_timed(kernel, folder):
    before, began = READING.seconds, time.monotonic()
    together(reader_of(folder, list(GOOD)), pipeline(TRAIN), kernel, range(len(GOOD)))
    assert 0 < READING.seconds - before < time.monotonic() - began


def test_threads_have_batches_of_their_own(kernel, folder):
    reader, pipe = reader_of(folder, list(GOOD)), pipeline(TRAIN)
    indices = [*range(len(GOOD))] * 8
    wanted = one_by_one(reader, pipe, indices)[0]
    results = at_once(lambda _: together(reader, pipe, kernel, indices)[0], 4)
    assert all(np.array_equal(result, wanted) for result in results)


@pytest.mark.parametrize(
    "out, boxes",
    [
        (np.zeros((1, 32, 24, 3), np.float32), None),
        (np.zeros((1, 32, 25, 3), np.uint8), None),
        (np.zeros((1, 32, 48, 3), np.uint8)[:, :, ::2], None),
        (np.zeros((3, 32, 24, 3), np.uint8), None),  # more rows than files
        (np.zeros((1, 32, 24, 3), np.uint8), np.zeros((1, 2, 4), np.int64)),
    ],
)
def test_what_does_not_fit_is_an_error(kernel, folder, out, boxes):
    pipe = pipeline(PIPELINES["train" if boxes is None else "masks"])
    with started(reader_of(folder, ["plain.jpg"]), pipe, kernel, request_of([0, 0])) as batch, pytest.raises(ValueError):
        batch.calls.make(0, out, boxes, 1.0)
