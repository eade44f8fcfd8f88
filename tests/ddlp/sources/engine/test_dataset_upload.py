"""What a host tells a device about a data set."""

import errno
import os
import resource

import numpy as np
import pytest

from csd_engine.data.arrays import ArraySet
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import Manifest
from ddlp import ImageArrays, ImageFiles
from ddlp.errors import DDLPError
from ddlp.sources.engine.dataset_upload import DatasetUpload
from ddlp.translate.datasets import translate_dataset
from tests.open_files import open_below


@pytest.mark.parametrize(
    "paths, root, names",
    [
        (["/d/a/x.jpg", "/d/a/y.jpg"], "/d/a", ["x.jpg", "y.jpg"]),
        (["/d/ab/x.jpg", "/d/ac/y.jpg"], "/d", ["ab/x.jpg", "ac/y.jpg"]),
        (["/x.jpg", "/y/z.jpg"], "/", ["x.jpg", "y/z.jpg"]),
        (["/d/one.jpg"], "/d", ["one.jpg"]),
        (["/d/./a.jpg", "/d//b.jpg", "/d/e/../c.jpg"], "/d", ["a.jpg", "b.jpg", "c.jpg"]),
        (["/d/.hidden/a.jpg"], "/d/.hidden", ["a.jpg"]),
        ([], "/", []),
    ],
)
def test_root_and_names_of_files(tmp_path, paths, root, names):
    upload = DatasetUpload(tmp_path, tmp_path)
    told = upload.describe(translate_dataset(ImageFiles(paths, paths)))
    assert isinstance(told, FileSet) and told.root == root
    manifest = Manifest.open(upload.manifest(told.manifest))
    assert [manifest[k] for k in range(len(manifest))] == names


@pytest.mark.parametrize("dataset", [ImageFiles(["/d/a.jpg"], [0]), ImageArrays(np.zeros((1, 4, 4), np.uint8), [0])])
def test_a_directory_that_cannot_be_written_is_told(tmp_path, dataset):
    """As with a full disk."""
    upload = DatasetUpload(tmp_path / "gone", tmp_path)
    with pytest.raises(DDLPError, match=f"can't be written to {tmp_path / 'gone'}: No such file or directory. Free space"):
        upload.describe(translate_dataset(dataset))


def test_relative_paths_are_those_of_the_working_directory(tmp_path, monkeypatch):
    upload = DatasetUpload(tmp_path, tmp_path)
    dataset = translate_dataset(ImageFiles(["a.jpg", "b/c.jpg"], [0, 1]))
    roots = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        told = upload.describe(dataset)
        assert isinstance(told, FileSet)
        roots.append(told.root)
    assert roots == [os.path.join(os.path.realpath(tmp_path), name) for name in ("one", "two")]


def test_a_list_that_was_edited_is_described_anew(tmp_path):
    upload = DatasetUpload(tmp_path, tmp_path)
    paths = ["/d/a.jpg", "/d/b.jpg"]
    dataset = ImageFiles(paths, [0, 1])
    first, again = (upload.describe(translate_dataset(dataset)) for _ in range(2))
    paths[0] = "/d/c.jpg"
    changed = upload.describe(translate_dataset(dataset))
    assert first == again and isinstance(first, FileSet) and isinstance(changed, FileSet)
    assert changed.manifest != first.manifest


def test_arrays_are_written_once_and_known_by_their_content(tmp_path):
    upload = DatasetUpload(tmp_path / "here", tmp_path / "there")
    (tmp_path / "here").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    dataset = translate_dataset(ImageArrays(images, range(5)))
    first = upload.describe(dataset)
    assert isinstance(first, ArraySet) and first.path.startswith(str(tmp_path / "there"))
    written = list((tmp_path / "here").iterdir())
    assert upload.describe(dataset) == first and list((tmp_path / "here").iterdir()) == written
    assert np.array_equal(np.load(written[0]), images)
    images[2] = 0
    assert upload.describe(dataset) != first


def test_a_full_spool_leaves_nothing_open_and_nothing_behind(tmp_path):
    (tmp_path / "files").mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # makes each write fail, as on a full disk
    try:
        with pytest.raises(DDLPError, match="can't be written"):
            DatasetUpload.shared(tmp_path, "/spool")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not open_below(tmp_path) and not list((tmp_path / "files").iterdir())


@pytest.mark.parametrize("sent", [False, True])
def test_a_file_system_without_locks_leaves_nothing_open_and_nothing_behind(tmp_path, monkeypatch, sent):
    """As on some network file systems."""

    def no_lock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "files").mkdir()
    monkeypatch.setattr("ddlp.sources.engine.dataset_upload.fcntl.flock", no_lock)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "files"))
    with pytest.raises(OSError if sent else DDLPError, match="No locks available"):
        DatasetUpload.sent_to("/spool") if sent else DatasetUpload.shared(tmp_path, "/spool")
    assert not open_below(tmp_path) and not list((tmp_path / "files").iterdir())
