"""Samples that are parts of larger files: opened, read, and decoded by every code path."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from PIL import Image

from csd_engine.data.base import open_reader
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import SampleStream, content, open_sample
from csd_engine.data.kinds import KINDS, parse_dataset
from csd_engine.data.manifest import write_manifest
from csd_engine.errors import DatasetError, SampleError
from csd_engine.prepare import sample as samples
from csd_engine.prepare.sample import prepare_sample
from tests.engine_process import EPOCH, SEED, pipeline
from tests.joined_files import JoinedSet
from tests.open_files import open_files, opened_since


class Scene:
    """The same samples twice: as single files, and joined in one file. Sample 5 is a PNG, the others are JPEGs."""

    def __init__(self, jpegs, home):
        root, self.names = jpegs
        self.contents = [(root / name).read_bytes() for name in self.names]
        png = io.BytesIO()
        Image.open(root / self.names[0]).save(png, "PNG")
        self.contents[5] = png.getvalue()
        for name, one in zip(self.names, self.contents):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(one)
        self.manifests = home / "manifests"
        self.manifests.mkdir()
        self.path = home / "joined"
        self.path.write_bytes(b"".join(self.contents))
        self.joined = JoinedSet(str(self.path), tuple(map(len, self.contents)))
        fingerprint = write_manifest(home / "m", self.names)
        os.rename(home / "m", self.manifests / fingerprint)
        self.files = FileSet(str(home), fingerprint, len(self.names))

    def reader(self, dataset):
        return open_reader(dataset, str, lambda fingerprint: self.manifests / fingerprint)

    def expected(self, dataset, items):
        reader, out = self.reader(dataset), np.zeros((len(items), 32, 32, 3), np.uint8)
        for row, item in enumerate(items):
            prepare_sample(reader, pipeline(), item, SEED, EPOCH, out[row])
        reader.close()
        return out


@pytest.fixture
def scene(jpegs, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, JoinedSet.type, JoinedSet)
    return Scene(jpegs, tmp_path)


def test_the_bytes_of_a_part_and_no_others(scene):
    reader, before = scene.reader(scene.joined), open_files()
    assert [content(reader.open(index)) for index in range(len(reader))] == scene.contents
    for index in (0, 3, len(reader) - 1):
        with io.BufferedReader(SampleStream(reader.open(index))) as stream:
            assert stream.read() == scene.contents[index] and stream.read(1) == b""
            assert stream.seek(-4, os.SEEK_END) == len(scene.contents[index]) - 4
            assert stream.read() == scene.contents[index][-4:]
            stream.seek(2)
            assert stream.read(3) == scene.contents[index][2:5]
    assert opened_since(before) == []


@pytest.mark.parametrize(("offset", "size"), [(5, 6), (11, 0), (-1, 2), (0, -1), (0, 11), (20, None)])
def test_a_part_that_is_not_in_the_file_is_refused(tmp_path, offset, size):
    (tmp_path / "x").write_bytes(bytes(10))
    before = open_files()
    with pytest.raises(SampleError, match="not in the file of 10 bytes"):
        open_sample(str(tmp_path / "x"), offset=offset, size=size)
    assert opened_since(before) == []


def test_a_part_up_to_the_end_and_its_limit(tmp_path):
    (tmp_path / "x").write_bytes(b"0123456789")
    assert content(open_sample(str(tmp_path / "x"), offset=7)) == b"789"
    assert content(open_sample(str(tmp_path / "x"), None, 3, 7)) == b"789"
    with pytest.raises(SampleError, match="larger"):
        open_sample(str(tmp_path / "x"), None, 3, 6)


@pytest.mark.parametrize("way", ["as it comes", "without a kernel", "too large to be read whole"])
def test_a_part_gives_the_pixels_of_a_file(scene, monkeypatch, way):
    items = [(index, index % 2) for index in range(len(scene.names))]
    expected = scene.expected(scene.files, items)
    if way == "without a kernel":
        monkeypatch.setattr(samples, "kernel", lambda: None)
    elif way == "too large to be read whole":
        monkeypatch.setattr(samples, "MAX_FILE_BYTES", 10)
    assert np.array_equal(scene.expected(scene.joined, items), expected)


def test_a_kind_in_the_table_is_parsed(scene):
    both = ConcatSet((scene.files, scene.joined))
    assert parse_dataset(both.to_data()) == both and len(both) == 2 * len(scene.names)
    with pytest.raises(DatasetError, match="expected at most"):
        parse_dataset({**scene.joined.to_data(), "sizes": [-1]})
    with pytest.raises(DatasetError, match="expected type files, array, concat, parts, objects, carried or joined"):
        parse_dataset({"type": "tar"})
