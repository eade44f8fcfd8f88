"""Samples whose bytes came in a parcel equal the same samples in files, and what is wrong with a parcel is told."""

from __future__ import annotations

import os

import numpy as np
import pytest

from csd_engine.batchfile.reader import Layout
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.carried import CarriedReader, CarriedSet, pack_parcel
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import content
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.manifest import write_manifest
from csd_engine.data.parts import PartSet, pack_parts
from csd_engine.errors import DatasetError, SampleError
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.sample import prepare_sample
from csd_engine.prepare.started_batch import BatchRequest
from csd_engine.service.worker import _OneRow
from tests.engine_process import EPOCH, SEED, pipeline
from tests.open_files import open_files, opened_since

MOST = 1 << 30


class Scene:
    """JPEG files, the same files inside one larger file, and an array: on the host, and carried."""

    def __init__(self, jpegs, home):
        self.home = home
        root, self.names = jpegs
        self.contents = [(root / name).read_bytes() for name in self.names]
        files = FileSet(str(root), self._manifest(self.names), len(self.names))
        (home / "large").write_bytes(b"".join(self.contents))
        sizes = np.array([len(one) for one in self.contents])
        table = pack_parts(np.zeros(len(sizes)), np.cumsum(sizes) - sizes, sizes)
        np.save(home / "table.npy", table)
        inside = FileSet(str(home), self._manifest(["large"]), 1)
        parts = PartSet(inside, ArraySet(str(home / "table.npy"), "0" * 32, table.shape), upright=True)
        pixels = np.random.default_rng(1).integers(0, 256, (4, 40, 50, 3), dtype=np.uint8)
        np.save(home / "pixels.npy", pixels)
        array = ArraySet(str(home / "pixels.npy"), "1" * 32, pixels.shape)
        self.n = len(self.names)
        self.here = self._open(ConcatSet((files, parts, array)))
        self.description = ConcatSet((*(CarriedSet(fingerprint(one), self.n) for one in (files, parts)), array))
        self.there = CarriedReader(self._open(self.description))

    def _manifest(self, names):
        digest = write_manifest(self.home / "m", names)
        os.replace(self.home / "m", self.home / digest)
        return digest

    def _open(self, dataset):
        return open_reader(dataset, str, lambda digest: self.home / digest)

    def take(self, parcel):
        (self.home / "parcel").write_bytes(parcel)
        self.there.take(os.open(self.home / "parcel", os.O_RDONLY), str(self.home / "parcel"))


@pytest.fixture
def scene(jpegs, tmp_path):
    before = open_files()
    made = Scene(jpegs, tmp_path)
    yield made
    for reader in (made.here, made.there):
        reader.close()
    assert opened_since(before) == []


def test_the_description_goes_round(scene):
    assert parse_dataset(scene.description.to_data()) == scene.description and scene.description.carried
    files = scene.description.parts[0]
    assert not files.host_paths("/a") and not files.uploads("/a") and len(fingerprint(files)) == 32
    assert not ConcatSet((ArraySet("/a.npy", "0" * 32, (1, 1, 1, 3)),)).carried
    for wrong in ({"count": -1}, {"files": "x"}, {"count": True}):
        with pytest.raises(DatasetError, match="data set description"):
            parse_dataset({**files.to_data(), **wrong})


def test_a_parcel_has_each_file_of_a_batch_once_and_no_arrays(scene):
    n, indices = scene.n, [3, 0, 3, 2 * 24 + 1, 24 + 5, 0]
    parcel = pack_parcel(scene.here, indices, MOST)
    assert len(parcel) == 8 + 3 * 24 + sum(len(scene.contents[k]) for k in (3, 0, 5))
    scene.take(parcel)
    assert content(scene.there.open(3)) == scene.contents[3]
    part = scene.there.open(n + 5)
    assert part.upright and content(part) == scene.contents[5]
    assert not isinstance(scene.there.open(2 * n + 1), tuple)  # the array is the engine's own
    with pytest.raises(SampleError, match="its bytes did not come with the lease"):
        scene.there.open(1)
    scene.there.drop()
    with pytest.raises(SampleError, match="its bytes did not come with the lease"):
        scene.there.open(3)


@pytest.mark.parametrize("arrays", [False, True])
def test_batches_have_the_same_bits(scene, arrays):
    """By the kernel's calls on many files, and one by one where an array is among them."""
    indices = [5, 0, 23, 24 + 7, 5, 24 + 1, *([48, 50] if arrays else [])]
    scene.take(pack_parcel(scene.here, indices, MOST))
    assert (scene.there.places(indices) is None) == arrays
    pipe, sources = pipeline(), np.array(indices)
    rows = _OneRow(Layout(1, 32, 32, 3))
    request = BatchRequest(sources, np.zeros_like(sources), SEED, EPOCH)
    with BatchMaker(scene.there, pipe, (32, 32, 3), 0).start(request) as batch:
        for k, index in enumerate(indices):
            expected = np.zeros((32, 32, 3), np.uint8)
            prepare_sample(scene.here, pipe, (index, 0), SEED, EPOCH, expected)
            batch.make(k, rows)
            assert np.array_equal(rows.sample()[0], expected), index


def test_a_file_that_the_host_cannot_read_is_that_samples_error_alone(scene, jpegs):
    root, names = jpegs
    os.rename(root / names[2], root / "away")
    try:
        scene.take(pack_parcel(scene.here, [1, 2, 4], MOST))
    finally:
        os.rename(root / "away", root / names[2])
    assert content(scene.there.open(4)) == scene.contents[4]
    assert scene.there.places([1, 2]) is None and scene.there.places([1, 4]) is not None
    with pytest.raises(SampleError, match="sample 2 of the host's data set cannot be prepared: the host could not read it"):
        scene.there.open(2)


def test_a_parcel_that_would_be_too_long_is_not_packed(scene):
    length = len(pack_parcel(scene.here, [0, 1], MOST))
    assert len(pack_parcel(scene.here, [0, 1], length)) == length
    with pytest.raises(DatasetError, match=f"more than {length - 1} bytes.*--quota-bytes"):
        pack_parcel(scene.here, [0, 1], length - 1)


def numbers(*values):
    return np.array(values, dtype="<i8").tobytes()


@pytest.mark.parametrize("parcel, why", [
    (b"", "0 bytes and names -1"),
    (numbers(-1), "names -1"),
    (numbers(1), "names 1 files"),
    (numbers(1 << 17 | 1), "names 131073"),
    (numbers(1 << 60), "names"),
    (numbers(1, 0, 5, 0) + b"1234", "files have 5 bytes, and 4 came"),
    (numbers(1, 0, 3, 0) + b"1234", "files have 3 bytes, and 4 came"),
    (numbers(1, 0, -2, 0), "wrong size"),
    (numbers(1, 0, 1 << 62, 0) + b"1234", "wrong size"),
    (numbers(2, 0, 4, 0, 1, 4, 0) + b"1234", "files have 8 bytes, and 4 came"),
])  # fmt: skip
def test_what_is_no_parcel_is_refused(scene, parcel, why):
    with pytest.raises(DatasetError, match=why):
        scene.take(parcel)
