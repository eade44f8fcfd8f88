"""Data sets: descriptions that are sent to an engine; manifests and readers that check all their input."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from csd_engine.batchfile.layout import Layout
from csd_engine.data import checks
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import MANIFEST, Places, fingerprint, open_reader
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.manifest import Manifest, write_manifest
from csd_engine.data.roots import Roots
from csd_engine.errors import DatasetError, EngineError, RootNotAllowed, SampleError
from csd_engine.prepare.sample import prepare_sample
from csd_engine.service.uploads import needed_files
from tests.engine_process import pipeline

HEX = "0123456789abcdef" * 2
PATHS = ["a/x.jpg", "a/y y.jpg", "top.png", "b/c/\u00e4.jpg", "b/c/\udcff.jpg", "a/z"]


def test_a_manifest_gives_back_the_paths(tmp_path):
    print_ = write_manifest(tmp_path / "m", PATHS)
    with Manifest.open(tmp_path / "m") as manifest:
        assert [manifest[index] for index in range(len(manifest))] == PATHS
        with pytest.raises(IndexError):
            manifest[len(PATHS)]
    assert write_manifest(tmp_path / "m", iter(PATHS)) == print_
    assert write_manifest(tmp_path / "n", PATHS[::-1]) != print_
    assert sorted(os.listdir(tmp_path)) == ["m", "n"]
    write_manifest(tmp_path / "empty", [])
    assert len(Manifest.open(tmp_path / "empty")) == 0


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/x", "../x", "a/../x", "a/..", "a//b", "./a", "a/", "", "a\0b", "a" * 5000]
)
def test_paths_that_leave_the_root_are_refused(tmp_path, path):
    with pytest.raises(DatasetError):
        write_manifest(tmp_path / "m", ["good", path])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [b"../etc/x", b"..", b"/etc/p", b"a\0b", b"a//b"])
def test_a_hostile_manifest_is_refused_at_look_up(tmp_path, name):
    write_manifest(tmp_path / "m", ["x" * len(name), "fine"])
    raw = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(raw.replace(b"x" * len(name), name))
    manifest = Manifest.open(tmp_path / "m")
    with pytest.raises(DatasetError):
        manifest[0]
    assert manifest[1] == "fine"


def test_damaged_manifests_are_refused(tmp_path):
    path = tmp_path / "m"
    write_manifest(path, PATHS)
    raw = path.read_bytes()
    for content in (b"", raw[:-1], raw + b"x", b"x" + raw[1:], raw[:8] + struct.pack("<Q", 1 << 63) + raw[16:]):
        path.write_bytes(content)
        with pytest.raises(DatasetError):
            Manifest.open(path)


SETS = [
    FileSet("/data/x", HEX, 3),
    ArraySet("/data/a.npy", HEX, (5, 28, 28)),
    ConcatSet((FileSet("/data/x", HEX, 3), ArraySet("/data/a.npy", HEX, (5, 8, 9, 3)))),
]


FINGERPRINTS = [  # a host and an engine of two different versions must agree on them
    "0a880c14fe1b1d1ce0dd8e85bae6b695", "c3e050045affd0650d6edad5f961f858", "fec9112f238f80a2afaa7b509cd5686a",
]  # fmt: skip


@pytest.mark.parametrize("dataset", SETS)
def test_descriptions_travel(dataset):
    assert parse_dataset(dataset.to_data()) == dataset
    assert [fingerprint(one) for one in SETS] == FINGERPRINTS
    assert needed_files(SETS[2], "/spool/arrays") == [(MANIFEST, HEX)] and len(SETS[2]) == 8


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"type": "files"},
        {"type": "other"},
        {**SETS[0].to_data(), "root": "data"},
        {**SETS[0].to_data(), "root": "/data/../etc"},
        {**SETS[0].to_data(), "root": "/a\0"},
        {**SETS[0].to_data(), "count": -1},
        {**SETS[0].to_data(), "count": True},
        {**SETS[0].to_data(), "manifest": "../../x"},
        {**SETS[0].to_data(), "more": 1},
        {**SETS[1].to_data(), "shape": [5, 28]},
        {**SETS[1].to_data(), "shape": [5, 28, 28, 4]},
        {**SETS[1].to_data(), "shape": [5, 0, 28]},
        {"type": "concat", "parts": []},
        {"type": "concat", "parts": [SETS[2].to_data()]},
    ],
)
def test_hostile_descriptions_are_refused(data):
    with pytest.raises(DatasetError):
        parse_dataset(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (FileSet("/data/x", HEX, 1 << 31), "2147483648 files"),
        (ArraySet("/data/a.npy", HEX, (1 << 40, 1, 1)), "1099511627776 bytes"),
        (ArraySet("/data/a.npy", HEX, (1 << 15, 256, 256)), "too large to map"),  # 2 GiB: np.memmap's arithmetic overflows
        (ConcatSet((FileSet("/data/x", HEX, (1 << 31) - 1), FileSet("/data/y", HEX, 1))), "2147483648 samples"),
    ],
)
def test_what_32_bits_cannot_count_or_map_is_refused_there(monkeypatch, data, said):
    assert parse_dataset(data.to_data()) == data
    monkeypatch.setattr(checks, "_MOST", (1 << 31) - 1)
    with pytest.raises(DatasetError, match=f"{said}.*on this 32-bit computer"):
        parse_dataset(data.to_data())


def test_a_refusal_looks_at_no_more_of_a_long_value_than_it_quotes():
    """The engine's service makes the message, and all hosts wait meanwhile."""
    looked = []

    class Part:
        def __repr__(self):
            looked.append(1)
            return "part"

    for field in ({"type": "concat"}, {"type": "files", "manifest": HEX, "count": 1}):
        name = "parts" if field["type"] == "concat" else "root"
        with pytest.raises(DatasetError):
            parse_dataset({**field, name: [Part()] * 10_000})
    with pytest.raises(EngineError, match="layout"):
        Layout.parse({"batch": [Part()] * 10_000, "height": 1, "width": 1, "channels": 1, "boxes": 0})
    assert len(looked) < 100


def test_arrays_are_read_and_checked(tmp_path):
    rows = np.random.default_rng(1).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "grey.npy", rows[..., 0])
    reader = open_reader(ArraySet(str(tmp_path / "a.npy"), HEX, (4, 6, 5, 3)), str, str)
    grey = open_reader(ArraySet(str(tmp_path / "grey.npy"), HEX, (4, 6, 5)), str, str)
    assert reader.image(2).mode == "RGB" and np.array_equal(np.asarray(reader.image(2)), rows[2])
    assert grey.image(3).mode == "L" and np.array_equal(np.asarray(grey.image(3)), rows[3, ..., 0])
    with pytest.raises(IndexError):
        reader.image(4)
    both = ConcatSet(
        (ArraySet(str(tmp_path / "a.npy"), HEX, (4, 6, 5, 3)), ArraySet(str(tmp_path / "grey.npy"), HEX, (4, 6, 5)))
    )
    concat = open_reader(both, str, str)
    assert len(concat) == 8 and concat.image(3).mode == "RGB" and concat.image(4).mode == "L"
    for wrong in ((4, 5, 6, 3), (4, 6, 5)):
        with pytest.raises(DatasetError, match="expected"):
            open_reader(ArraySet(str(tmp_path / "a.npy"), HEX, wrong), str, str)
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    for name in ("pickled.npy", "cut.npy", "missing.npy"):
        with pytest.raises(DatasetError):
            open_reader(ArraySet(str(tmp_path / name), HEX, (4, 6, 5, 3)), str, str)


@pytest.mark.parametrize(
    "text",
    [
        b"{'descr': (((", b"(" * 3000, b"-" * 4000 + b"1", b"{" * 50_000,
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (9" * 2,
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (" + b"9" * 4000 + b",)}", b"\0" * 100, b"",
        b"{'descr': [('a', [('b', '|u1')])], 'fortran_order': 1, 'shape': 'x'}", b"lambda: 0", b"'\xff\xfe'",
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", [1, 3])
def test_a_hostile_header_of_an_array_is_a_bad_data_set(tmp_path, text, version):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text)
    with pytest.raises(DatasetError, match="cannot be used"):
        open_reader(ArraySet(str(path), HEX, (4, 6, 5, 3)), str, str)


def test_where_the_files_of_a_batch_lie(jpegs, tmp_path):
    root, names = jpegs
    write_manifest(tmp_path / "m", names)
    np.save(tmp_path / "a.npy", np.zeros((4, 6, 5, 3), np.uint8))
    files, array = FileSet(str(root), HEX, len(names)), ArraySet(str(tmp_path / "a.npy"), HEX, (4, 6, 5, 3))
    n, wanted = len(names), [str(root / name) for name in names]
    reader = open_reader(files, str, lambda _: tmp_path / "m")
    twice = open_reader(ConcatSet((files, files)), str, lambda _: tmp_path / "m")
    mixed = open_reader(ConcatSet((files, array)), str, lambda _: tmp_path / "m")
    assert reader.places([3, 0, 3]) == Places([wanted[3], wanted[0], wanted[3]]) and reader.places([]) == Places([])
    assert twice.places([n + 1, 2]) == Places([wanted[1], wanted[2]])
    assert mixed.places([1]) == Places([wanted[1]]) and mixed.places([1, n]) is None
    assert open_reader(array, str, str).places([0]) is None
    for one, index in ((reader, n), (twice, 2 * n)):
        with pytest.raises(IndexError):
            one.places([0, index])


def test_bad_samples_name_their_file(jpegs, tmp_path, capfd, monkeypatch):
    good = (jpegs[0] / jpegs[1][0]).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(good[: len(good) // 2])
    (tmp_path / "text.jpg").write_bytes(b"hello")
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "bomb.png").write_bytes(good)
    names = ["cut.jpg", "text.jpg", "fifo.jpg", "folder.jpg", "bomb.png", "missing.jpg"]
    write_manifest(tmp_path / "m", names)
    reader = open_reader(FileSet(str(tmp_path), HEX, len(names)), str, lambda _: tmp_path / "m")
    out = np.zeros((32, 32, 3), np.uint8)
    for index, name in enumerate(names):
        if name == "bomb.png":
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(SampleError, match=name) as caught:
            prepare_sample(reader, pipeline(), (index, 0), 1, 1, out)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.where, again.why) == (caught.value.where, caught.value.why) and str(again) == str(caught.value)
    with pytest.raises(SampleError, match="99"):
        prepare_sample(reader, pipeline(), (99, 0), 1, 1, out)
    assert capfd.readouterr().err == ""


def test_roots(tmp_path):
    (tmp_path / "real").mkdir()
    roots = Roots.parse([f"/data={tmp_path}/real", "/"])
    assert roots.resolve("/data/x") == f"{tmp_path}/real/x" and roots.resolve("/data/") == f"{tmp_path}/real"
    only = Roots.parse([f"/data={tmp_path}/real"])
    for path in ("/database", "/data/../etc", "/", "data", "/etc"):
        with pytest.raises(RootNotAllowed, match="--root"):
            only.resolve(path)
    assert Roots((), trust=True).resolve("/any/where") == "/any/where"
    assert Roots.from_data(only.to_data()) == only
