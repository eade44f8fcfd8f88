"""Samples that are parts of large files equal the same samples as single files: one by one, and in the kernel's batches."""

from __future__ import annotations

import os

import numpy as np
import pytest

import csd_engine.data.parts
from csd_engine import kernels
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import content
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.manifest import write_manifest
from csd_engine.data.parts import PartSet, pack_parts
from csd_engine.errors import DatasetError, SampleError
from csd_engine.prepare.kernel_calls import file_calls
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.transforms.fileplan import file_plan
from tests.csd_engine.prepare.memory import Memory
from tests.engine_process import EPOCH, SEED, pipeline
from tests.open_files import open_files, opened_since

GAP = b"between two parts"


class Scene:
    """JPEG files, and the same files inside three larger files, in another order. The table of parts lists each twice."""

    def __init__(self, jpegs, home):
        root, self.names = jpegs
        self.root, self.home, self.readers = str(root), home, []
        self.contents = [(root / name).read_bytes() for name in self.names]
        n = len(self.names)
        files = [bytearray(GAP) for _ in range(3)]
        rows = []
        for k in list(range(n))[::-1]:
            file = k % 3
            rows.append((file, len(files[file]), len(self.contents[k])))
            files[file] += self.contents[k] + GAP
        self.rows = np.array(rows[::-1] * 2, dtype=np.int64)
        (home / "large").mkdir()
        self.paths = [str(home / "large" / f"{k}.tar") for k in range(3)]
        for path, data in zip(self.paths, files):
            with open(path, "wb") as stream:
                stream.write(data)
        self.contents *= 2
        self.whole = self._files(self.root, self.names)
        self.parts = self.part_set(self.rows)

    def _files(self, root, names):
        digest = write_manifest(self.home / "m", names)
        os.replace(self.home / "m", self.home / digest)
        return FileSet(str(root), digest, len(names))

    def part_set(self, rows):
        table = pack_parts(*np.asarray(rows, dtype=np.int64).T)
        (self.home / "tables").mkdir(exist_ok=True)
        path = self.home / "tables" / f"{len(os.listdir(self.home / 'tables'))}.npy"
        np.save(path, table)
        files = self._files(self.home / "large", [os.path.basename(path) for path in self.paths])
        return PartSet(files, ArraySet(str(path), "0" * 32, table.shape))

    def reader(self, dataset, beneath=None):
        self.readers.append(open_reader(dataset, str, lambda digest: self.home / digest, beneath))
        return self.readers[-1]

    def batch(self, reader, indices):
        """Return a batch that the kernel made, and the positions that were left to Pillow."""
        sources, pipe = np.array(indices), pipeline()
        plan = file_plan(pipe, kernels.kernel())
        memory, request = Memory(len(sources), plan.shape, 0), BatchRequest(sources, np.zeros_like(sources), SEED, EPOCH)
        calls = file_calls(reader, plan, request)
        assert calls is not None
        made = StartedBatch(reader, pipe, request, calls)
        one, made._make_one = made._make_one, lambda position, *more: singles.append(position) or one(position, *more)
        at, singles = 0, []
        with made:
            while at < len(sources):
                at = made.make(at, memory)
        return memory.images, singles


@pytest.fixture
def scene(jpegs, tmp_path, need_kernel):
    made = Scene(jpegs, tmp_path)
    yield made
    for reader in made.readers:
        reader.close()


@pytest.mark.parametrize("most", [64, 2, 0])
def test_parts_are_those_of_files(scene, monkeypatch, most):
    monkeypatch.setattr(csd_engine.data.parts, "MOST_OPEN", most)
    before, n = open_files(), len(scene.names)
    reader, whole = scene.reader(scene.parts), scene.reader(scene.whole)
    assert len(reader) == 2 * n
    assert [content(reader.open(k)) for k in range(2 * n)] == scene.contents
    order = [5, 0, n, n - 1, 2 * n - 1, 3, 3, *range(n)]
    ours, singles = scene.batch(reader, order)
    assert not singles
    for row, k in zip(ours, order):  # a sample's draws depend on its index, so compare with the same index
        expected, _ = scene.batch(whole, [k]) if k < n else (scene.batch(reader, [k])[0], [])
        assert np.array_equal(row, expected[0])
    both = scene.reader(ConcatSet((scene.whole, scene.parts)))
    mixed, singles = scene.batch(both, [2, n + 2, 2 * n + 2])
    assert not singles
    assert np.array_equal(mixed[0], scene.batch(both, [2])[0][0])
    for one in (reader, whole, both):
        one.close()
    assert opened_since(before) == []


@pytest.mark.parametrize("most", [64, 0])
@pytest.mark.parametrize("row", [(0, 5, 1 << 40), (0, 1 << 40, 5), (0, -5, 9), (0, 5, -9), (1, (1 << 63) - 1, 1)])
def test_a_part_that_is_not_in_its_file(scene, monkeypatch, row, most):
    monkeypatch.setattr(csd_engine.data.parts, "MOST_OPEN", most)
    before = open_files()
    reader = scene.reader(scene.part_set([scene.rows[0], row, scene.rows[2]]))
    with pytest.raises(SampleError, match="not in the file of"):
        reader.open(1)
    with pytest.raises(SampleError, match="not in the file of"):
        scene.batch(reader, [0, 1, 2])
    assert content(reader.open(2)) == scene.contents[2] and str(row[2]) in reader.where(1)
    reader.close()
    assert opened_since(before) == []


def test_a_part_that_is_too_large_is_refused(scene, monkeypatch):
    monkeypatch.setattr("csd_engine.prepare.kernel_calls.MAX_FILE_BYTES", 10)
    monkeypatch.setattr("csd_engine.data.parts.MAX_FILE_BYTES", 10)
    with pytest.raises(SampleError, match="larger than"):
        scene.batch(scene.reader(scene.parts), [0])


def test_a_table_that_names_no_file(scene):
    reader = scene.reader(scene.part_set([scene.rows[0], (3, 0, 9), (-1, 0, 9)]))
    assert content(reader.open(0)) == scene.contents[0]
    for index in (1, 2):
        with pytest.raises(DatasetError, match="names file"):
            reader.open(index)
        with pytest.raises(DatasetError, match="names file"):
            reader.places([0, index])
        assert "names file" in reader.where(index)
    with pytest.raises(IndexError):
        reader.open(3)


@pytest.mark.parametrize("most", [64, 0])
def test_links_that_lead_out_of_the_roots(scene, monkeypatch, tmp_path, most):
    monkeypatch.setattr(csd_engine.data.parts, "MOST_OPEN", most)
    reader = scene.reader(scene.parts, [str(tmp_path / "large"), str(tmp_path / "tables")])
    os.rename(scene.paths[0], tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", scene.paths[0])
    out = int(np.flatnonzero(scene.rows[:, 0] == 0)[0])
    for read in (reader.open, lambda index: scene.batch(reader, [index])):
        with pytest.raises(SampleError, match="outside the roots"):
            read(out)
    assert content(reader.open(out + 1)) == scene.contents[out + 1]
    reader.close()


def test_the_descriptions_plain_data(scene):
    data = scene.parts.to_data()
    assert parse_dataset(data) == scene.parts and len(scene.parts) == len(scene.rows)
    assert scene.parts.host_paths("/none") == [str(scene.home / "large"), scene.parts.table.path]
    assert [kind for kind, _ in scene.parts.uploads(os.path.dirname(scene.parts.table.path))] == ["manifest"]
    table = ArraySet(scene.parts.table.path, "1" * 32, scene.parts.table.shape)
    others = (PartSet(scene.whole, scene.parts.table), PartSet(scene.parts.files, table))
    assert len({fingerprint(one) for one in (scene.parts, *others)}) == 3
    for wrong in (
        {**data, "files": data["table"]},
        {**data, "table": data},
        {**data, "table": {**data["table"], "shape": [4, 2, 24]}},
        {"type": "parts", "files": data["files"]},
    ):
        with pytest.raises(DatasetError):
            parse_dataset(wrong)
