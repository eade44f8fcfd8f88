"""Batches of files by indexes: the bits and errors are those without, from fewer bytes, whatever the indexes hold."""

from __future__ import annotations

import functools
import os
import random
import threading

import numpy as np
import pytest
from PIL import Image

from csd_engine import kernels
from csd_engine.cache.indexes import IndexesInMemory, IndexesOnShelf
from csd_engine.cache.shelf import Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.data.parts import PartSet, pack_parts
from csd_engine.errors import SampleError
from csd_engine.prepare import file_batch as filebatch
from csd_engine.prepare import kernel_batch
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.file_batch import FileBatch
from csd_engine.prepare.read_time import READING
from csd_engine.transforms.fileplan import file_plan
from scripts.check_kernel import KINDS, encoded, noise
from scripts.fuzz_kernel import EXIF, hostile
from tests.csd_engine.prepare.test_batch_maker import PIPELINE, Memory
from tests.csd_engine.prepare.test_file_batch import EPOCH, SEED, reader_of, together
from tests.csd_engine.prepare.test_sample import BAD, PIPELINES, SHAPES, TRAIN, pipeline
from tests.open_files import descriptors

BASELINE = [kind for kind in KINDS if "rogressive" not in kind and "scans" not in kind]
DOWN = {"op": "RandomVerticalFlip", "p": 0.5}
ROOM = 1 << 24


@pytest.fixture
def kernel(need_kernel):
    return kernels.kernel()


def photograph(seed=5, size=(500, 375), quality=90, **options):
    return encoded(noise(np.random.default_rng(seed), *size), quality=quality, **options)


def turned(jpeg):
    """The same with an orientation other than upright."""
    exif = bytearray(EXIF)
    exif[-8] = 6
    return jpeg[:2] + bytes(exif) + jpeg[2:]


@functools.lru_cache(maxsize=1)
def all_kinds():
    """Files by name: of each kind of JPEG, those that are left to Pillow, and one with an orientation."""
    generator = np.random.default_rng(3)
    files = {f"{n:02}.jpg": make(generator, 90 + n, 120 - n) for n, make in enumerate(KINDS.values())}
    files["cmyk.jpg"] = encoded(noise(generator, 80, 90).convert("CMYK"))
    files["turned.jpg"] = turned(files["00.jpg"])
    files["upright.jpg"] = files["00.jpg"][:2] + EXIF + files["00.jpg"][2:]
    files["photograph.jpg"] = photograph()
    files["narrow.jpg"] = encoded(noise(generator, 3, 700), quality=90)
    files["a picture.png"] = encoded(noise(generator, 50, 60), format="PNG")
    return files


@pytest.fixture
def folder(tmp_path):
    for name, data in all_kinds().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def one(reader, pipe, epoch, indexes=None):
    """The first sample in an epoch, as bytes, or its error."""
    zero, out = np.zeros(1, np.int64), np.zeros((1, *SHAPES[pipe.mode]), np.uint8)
    plan = file_plan(pipe, kernels.kernel())
    with FileBatch.of(reader, pipe, plan, zero, zero, SEED, epoch, indexes=indexes) as batch:
        try:
            batch.make(0, out, None)
        except SampleError as error:
            return str(error)
    return out.tobytes()


def coded_bits_of(make):
    """What a call returns, and the bytes read and coded bits decoded meanwhile."""
    before = READING.bytes, READING.coded_bits
    made = make()
    return made, READING.bytes - before[0], READING.coded_bits - before[1]


@pytest.mark.parametrize("name", ["train", "evaluation", "masks", "fast", "down"])
@pytest.mark.parametrize("mode", SHAPES)
def test_the_samples_are_those_without(kernel, folder, mode, name):
    names = sorted(all_kinds())
    reader, indexes = reader_of(folder, names), IndexesInMemory(ROOM)
    ops = [*TRAIN, DOWN] if name == "down" else PIPELINES.get(name, TRAIN)
    pipe = pipeline(ops, mode, decode="fast" if name == "fast" else "exact")
    for some in ([*range(len(names))], [*range(len(names))] * 3):
        wanted, boxes, _ = together(reader, pipe, kernel, some)
        found, their_boxes, _ = together(reader, pipe, kernel, some, indexes=indexes)
        assert np.array_equal(found, wanted)
        assert boxes is None or np.array_equal(boxes, their_boxes)
    if mode == "RGB":
        kept = {names[source] for source in range(len(names)) if indexes.find(source)}
        assert kept == {f"{list(KINDS).index(kind):02}.jpg" for kind in BASELINE} | {
            "turned.jpg", "upright.jpg", "photograph.jpg", "narrow.jpg",
        }  # fmt: skip


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", [None, np.uint16, np.float32])
def test_they_come_in_the_batchs_type(kernel, folder, dtype, channels_last):
    names = sorted(all_kinds())
    reader, indexes, some = reader_of(folder, names), IndexesInMemory(ROOM), [*range(len(names))] * 2
    table = None if dtype is None else np.random.default_rng(0).integers(0, 60000, (3, 256)).astype(dtype)
    wanted, _, _ = together(reader, pipeline(TRAIN), kernel, some, table, channels_last)
    for _ in range(2):
        found, _, _ = together(reader, pipeline(TRAIN), kernel, some, table, channels_last, indexes=indexes)
        assert np.array_equal(found, wanted)


def test_less_is_read_and_decoded(kernel, folder):
    """Of a photograph and random crops of it; the first time all is decoded, to make the index."""
    reader, size = reader_of(folder, ["photograph.jpg"]), (folder / "photograph.jpg").stat().st_size
    indexes, pipe, crops = IndexesInMemory(ROOM), pipeline(TRAIN), 60
    plain, all_bytes, bits = coded_bits_of(lambda: [one(reader, pipe, epoch) for epoch in range(crops)])
    _, first_bytes, first_bits = coded_bits_of(lambda: one(reader, pipe, 0, indexes))
    assert first_bytes == size and all_bytes == crops * size and first_bits * crops > bits
    later, later_bytes, later_bits = coded_bits_of(lambda: [one(reader, pipe, epoch, indexes) for epoch in range(crops)])
    assert later == plain
    assert 0.3 * all_bytes < later_bytes < 0.8 * all_bytes
    assert 0.2 * bits < later_bits < 0.65 * bits


def test_the_bytes_beside_what_a_sample_needs_are_not_read(kernel, folder):
    """They are gone, and no sample notices that does not need them. The others are refused as ever."""
    path, crops = folder / "photograph.jpg", range(40)
    reader, indexes, pipe = reader_of(folder, ["photograph.jpg"]), IndexesInMemory(ROOM), pipeline(TRAIN)
    before = [one(reader, pipe, epoch, indexes) for epoch in crops]
    whole, status = path.read_bytes(), path.stat()
    kept = len(whole) * 3 // 4
    path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    now, found = ([one(reader, pipe, epoch, some) for epoch in crops] for some in (None, indexes))
    unlike = [epoch for epoch in crops if before[epoch] != now[epoch]]
    assert all(found[epoch] in (before[epoch], now[epoch]) for epoch in crops)
    assert {found[epoch] == before[epoch] for epoch in unlike} == {True, False}


@pytest.mark.parametrize("name", [*BAD, "missing.jpg"])
@pytest.mark.parametrize("ops", ["train", "evaluation"])
def test_the_errors_are_those_without(kernel, tmp_path, name, ops):
    for bad, data in BAD.items():
        (tmp_path / bad).write_bytes(data)
    (tmp_path / "good.jpg").write_bytes(photograph(size=(150, 117)))
    reader, pipe, indexes = reader_of(tmp_path, ["good.jpg", name]), pipeline(PIPELINES[ops]), IndexesInMemory(ROOM)

    def told(**more):
        try:
            return together(reader, pipe, kernel, [0, 0, 1, 0], **more)[0].tobytes()
        except SampleError as error:
            return type(error.__cause__), str(error)

    wanted = told()
    assert told(indexes=indexes) == told(indexes=indexes) == wanted
    assert indexes.find(0) and bool(indexes.find(1)) == (name == "zeros inside.jpg")  # which decodes: all its codes are valid


HOSTILE = list(hostile(photograph(size=(90, 70))))


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_headers_are_what_they_are_without(kernel, tmp_path, number):
    """Arithmetic coding, 12 bits, any process, a bomb, and files that break off."""
    (tmp_path / "one.jpg").write_bytes(HOSTILE[number])
    reader, indexes = reader_of(tmp_path, ["one.jpg"]), IndexesInMemory(ROOM)
    for epoch in range(3):
        for ops in (TRAIN, PIPELINES["evaluation"]):
            assert one(reader, pipeline(ops), epoch, indexes) == one(reader, pipeline(ops), epoch)


def test_what_the_kernel_leaves_to_pillow_has_the_files_bytes(kernel, folder, monkeypatch):
    """Though they were not read at first, since there is an index."""
    (folder / "small.jpg").write_bytes(photograph(size=(30, 20)))
    reader, indexes = reader_of(folder, ["small.jpg", "photograph.jpg"]), IndexesInMemory(ROOM)
    together(reader, pipeline(TRAIN), kernel, [0, 1], indexes=indexes)
    padded = pipeline([{"op": "CenterCrop", "size": [32, 24]}])
    wanted, _, _ = together(reader, padded, kernel, [0, 1])
    assert np.array_equal(together(reader, padded, kernel, [0, 1], indexes=indexes)[0], wanted)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(SampleError, match="DecompressionBombError"):
        together(reader, pipeline(TRAIN), kernel, [1], indexes=indexes)


class Wrong(IndexesInMemory):
    """Gives the same bytes for every sample, and counts what it is given."""

    wanted = True

    def __init__(self, index):
        self.index, self.kept = index, []

    def find(self, source):
        return self.index

    def keep(self, source, index):
        self.kept.append((source, index))


def test_an_index_that_is_damaged_is_not_used(kernel, tmp_path):
    (tmp_path / "one.jpg").write_bytes(photograph(size=(90, 70)))
    reader, pipe, rng = reader_of(tmp_path, ["one.jpg"]), pipeline(TRAIN), random.Random(1)
    good = IndexesInMemory(ROOM)
    wanted, _, _ = together(reader, pipe, kernel, [0, 0], indexes=good)
    index = good.find(0)
    for at in range(len(index)):
        flipped = bytearray(index)
        flipped[at] ^= 1 << rng.randrange(8)
        for bad in (bytes(flipped), index[:at], index + bytes(at + 1), rng.randbytes(at)):
            wrong = Wrong(bad)
            assert np.array_equal(together(reader, pipe, kernel, [0, 0], indexes=wrong)[0], wanted)
            assert wrong.kept == [(0, index)] * 2  # a new one


def test_another_files_index_is_not_used(kernel, tmp_path):
    """Not even that of a file with the same header, size and time, whose coded data have other places."""
    photographs = [photograph(seed) for seed in range(3)]
    names, most = ["0.jpg", "1.jpg", "2.jpg", "larger.jpg", "wider.jpg"], max(map(len, photographs))
    photographs = [data + bytes(most - len(data)) for data in photographs]
    for name, data in zip(names, [*photographs, photographs[0] + b"0", photograph(0, (508, 375))]):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, ns=(0, 1))
    reader, pipe, indexes = reader_of(tmp_path, names), pipeline(TRAIN), IndexesInMemory(ROOM)
    some = [0, 1, 2, 3, 4] * 12
    wanted, _, _ = together(reader, pipe, kernel, some, indexes=indexes)
    for source in range(len(names)):
        wrong = Wrong(indexes.find(source))
        assert np.array_equal(together(reader, pipe, kernel, some, indexes=wrong)[0], wanted)
        assert wrong.kept.count((source, wrong.index)) == 0  # the right one was used
        assert [number for number, _ in wrong.kept] == [number for number in some if number != source]


@pytest.mark.parametrize("size", ["same", "shorter", "longer", "only the time"])
def test_a_file_that_has_changed_is_read_anew(kernel, tmp_path, size):
    path, before, after = tmp_path / "one.jpg", photograph(1), photograph(2)
    most = max(len(before), len(after)) + 20
    before, after = (data + bytes(most - len(data)) for data in (before, after))
    path.write_bytes(before)
    os.utime(path, ns=(10**18, 10**18))
    reader, pipe, indexes = reader_of(tmp_path, ["one.jpg"]), pipeline(TRAIN), IndexesInMemory(ROOM)
    together(reader, pipe, kernel, [0], indexes=indexes)
    first = indexes.find(0)
    path.write_bytes({"longer": after + bytes(9), "shorter": after[:-9], "same": after, "only the time": before}[size])
    os.utime(path, ns=(10**18, 10**18 + (size in ("same", "only the time"))))
    wanted, _, _ = together(reader, pipe, kernel, [0] * 9)
    for _ in range(2):
        assert np.array_equal(together(reader, pipe, kernel, [0] * 9, indexes=indexes)[0], wanted)
    second = indexes.find(0)
    assert second != first
    _, read, _ = coded_bits_of(lambda: together(reader, pipe, kernel, [0] * 9, indexes=indexes))
    assert indexes.find(0) == second and read < 9 * path.stat().st_size


@pytest.mark.parametrize("upright", [False, True])
def test_parts_of_larger_files_have_indexes(kernel, tmp_path, upright):
    contents, rows, large = all_kinds(), [], bytearray(b"before")
    for data in contents.values():
        rows.append((0, len(large), len(data)))
        large += data + b"between"
    (tmp_path / "large.tar").write_bytes(large)
    digest = write_manifest(tmp_path / "m", ["large.tar"])
    table = pack_parts(*np.asarray(rows, dtype=np.int64).T)
    np.save(tmp_path / "table.npy", table)
    parts = PartSet(FileSet(str(tmp_path), digest, 1), ArraySet(str(tmp_path / "table.npy"), "0" * 32, table.shape), upright)
    reader, pipe = open_reader(parts, str, lambda _: tmp_path / "m"), pipeline(TRAIN)
    indexes, some = IndexesInMemory(ROOM), [*range(len(rows))] * 3
    try:
        wanted, _, _ = together(reader, pipe, kernel, some)
        before = descriptors()
        for _ in range(2):
            assert np.array_equal(together(reader, pipe, kernel, some, indexes=indexes)[0], wanted)
        assert descriptors() == before
        kept = [name for source, name in enumerate(contents) if indexes.find(source)]
        assert "photograph.jpg" in kept and "upright.jpg" in kept and ("turned.jpg" in kept) is not upright
        _, read, _ = coded_bits_of(lambda: together(reader, pipe, kernel, some, indexes=indexes))
        assert read < 3 * len(large)
    finally:
        reader.close()


def test_nothing_stays_open_when_a_batch_is_broken_off(kernel, folder, monkeypatch):
    monkeypatch.setattr(kernel_batch, "ENOUGH_S", 1e-9)
    reader, pipe, indexes = reader_of(folder, ["photograph.jpg"]), pipeline(TRAIN), IndexesInMemory(ROOM)
    together(reader, pipe, kernel, [0], indexes=indexes)
    before, zeros, out = descriptors(), np.zeros(20, np.int64), np.zeros((20, *SHAPES["RGB"]), np.uint8)
    with FileBatch.of(reader, pipe, file_plan(pipe, kernel), zeros, zeros, SEED, EPOCH, indexes=indexes) as batch:
        batch.make(0, out, None)
        batch.make(1, out[1:], None)
    assert descriptors() == before


def test_no_index_is_made_that_nobody_wants(kernel, folder):
    """Neither without indexes nor where there is no more room, but those that are there are used."""
    names = ["photograph.jpg", "00.jpg"]
    reader, pipe, some = reader_of(folder, names), pipeline(TRAIN), [0, 1] * 9
    indexes = IndexesInMemory(ROOM)
    together(reader, pipe, kernel, [0], indexes=indexes)
    full = IndexesInMemory(len(indexes.find(0)) + 300)
    full.keep(0, indexes.find(0))
    full.keep(1, bytes(1000))
    assert full.find(0) and not full.find(1) and not full.wanted
    wanted, all_bytes, bits = coded_bits_of(lambda: together(reader, pipe, kernel, some)[0])
    found, read, decoded = coded_bits_of(lambda: together(reader, pipe, kernel, some, indexes=full)[0])
    assert np.array_equal(found, wanted) and read < all_bytes and decoded < bits
    wrong = Wrong(None)
    wrong.wanted = False
    assert coded_bits_of(lambda: together(reader, pipe, kernel, some, indexes=wrong)[0])[1:] == (all_bytes, bits)
    assert not wrong.kept


def test_threads_share_indexes(kernel, folder, monkeypatch):
    monkeypatch.setattr(kernel_batch, "ENOUGH_S", 1e-3)
    names = sorted(all_kinds())
    reader, pipe, some, results = reader_of(folder, names), pipeline(TRAIN), [*range(len(names))] * 4, []
    indexes, (wanted, _, _) = IndexesInMemory(ROOM), together(reader, pipe, kernel, some)
    work = lambda: results.extend(together(reader, pipe, kernel, some, indexes=indexes)[0] for _ in range(2))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(np.array_equal(result, wanted) for result in results)


@pytest.mark.parametrize("kept", ["memory", "shelf"])
def test_a_batch_maker_makes_them_once_and_uses_them(kernel, tmp_path, monkeypatch, kept):
    """Epoch after epoch, with other crops each time."""
    pipe, sources, zeros = PIPELINE, np.arange(6), np.zeros(6, np.int64)
    names = [f"{k}.jpg" for k in range(6)]
    for k, name in enumerate(names):
        (tmp_path / name).write_bytes(photograph(k))
        os.utime(tmp_path / name, (1e9, 1e9))
    reader, indexes, flush = reader_of(tmp_path, names), IndexesInMemory(ROOM), int
    if kept == "shelf":
        shelf = Shelf(Shelves(tmp_path / "cache", ROOM), "ab" * 16, {}, 6, 1, pytest.fail)
        indexes, flush = IndexesOnShelf(shelf), shelf.flush
    monkeypatch.setattr(filebatch, "prepare_by_pillow", None)
    plain, ours = BatchMaker(reader, pipe, (20, 24, 3), 2), BatchMaker(reader, pipe, (20, 24, 3), 2, indexes)

    def epoch(maker, number):
        to, at = Memory(6), 0
        with maker.start(sources, zeros, SEED, number) as batch:
            while at < 6:
                at = batch.make(at, to)
        return to.images

    for number in range(4):
        wanted, all_bytes, _ = coded_bits_of(lambda number=number: epoch(plain, number))
        found, read, _ = coded_bits_of(lambda number=number: epoch(ours, number))
        assert np.array_equal(found, wanted) and (read == all_bytes if number == 0 else read < 0.5 * all_bytes)
        flush()
        assert all(indexes.of(sources, reader.places(sources.tolist())).found)
    if kept == "shelf":
        shelf.close()
