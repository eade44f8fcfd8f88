"""Files that hosts send: received in parts, verified, cached, with little memory."""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from pathlib import Path
from queue import SimpleQueue

import pytest

from csd_engine.batchfile.reader import Layout
from csd_engine.data.base import ARRAY, MANIFEST
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.errors import DatasetError, SpoolError
from csd_engine.machine.directory import Directory
from csd_engine.protocol.codec import MAX_PART_BYTES
from csd_engine.service import uploads
from csd_engine.service.uploads import FileCache, pack, read_part
from tests.engine_process import Recipe, until


def receive(cache, path, fingerprint, source="host", in_use=(), kind=MANIFEST, host=None):
    """Send a file to the cache part by part. Without `host`, each file comes from another host."""
    offset = 0
    while offset is not None:
        assert cache.wanted(source, fingerprint) == offset
        part, total = read_part(path, offset)
        offset = cache.add(source, fingerprint, offset, total, pack(kind, part), lambda: in_use, host or fingerprint)


def cache_of(directory, kind=MANIFEST, limit_bytes=1 << 30, room_bytes=1 << 40):
    def open_directory():
        directory.mkdir(exist_ok=True)
        return Directory(str(directory))

    return FileCache(open_directory, kind, limit_bytes, lambda: room_bytes)


def test_parts_make_the_manifest(tmp_path):
    path = tmp_path / "m"
    fingerprint = write_manifest(path, (f"class{number % 7}/{number:050d}" for number in range(40000)))
    assert path.stat().st_size > 2 * MAX_PART_BYTES
    cache = cache_of(tmp_path / "c")
    assert not cache.has(fingerprint, "host")
    receive(cache, path, fingerprint)
    assert cache.has(fingerprint, "host") and cache.path(fingerprint).read_bytes() == path.read_bytes()
    assert os.listdir(tmp_path / "c") == [fingerprint]


def test_a_directory_that_is_removed_is_made_again(tmp_path):
    """A user clears the spool while the engine runs."""
    cache = cache_of(tmp_path / "c")
    first, second = (write_manifest(tmp_path / name, [name]) for name in ("a", "b"))
    receive(cache, tmp_path / "a", first)
    shutil.rmtree(tmp_path / "c")
    assert not cache.has(first, "host")
    receive(cache, tmp_path / "b", second)
    receive(cache, tmp_path / "a", first)
    assert sorted(os.listdir(tmp_path / "c")) == sorted([first, second])


def test_what_is_not_the_manifest_is_dropped(tmp_path):
    path = tmp_path / "m"
    fingerprint = write_manifest(path, ["a", "b"])
    cache = cache_of(tmp_path / "c")
    plain, total = read_part(path, 0)
    part = pack(MANIFEST, plain)
    bomb = zlib.compress(bytes(10 << 20))
    for key, size, content in (
        ("0" * 32, total, part),
        (fingerprint, total, bomb),
        (fingerprint, total, b"junk"),
        (fingerprint, total, part[:-9]),
        (fingerprint, total - 1, part),
        (fingerprint, 1 << 40, part),
        (fingerprint, 0, part),
    ):
        with pytest.raises((DatasetError, SpoolError)):
            cache.add("host", key, 0, size, content, tuple, "host")
        assert os.listdir(tmp_path / "c") == []
    receive(cache, path, fingerprint)


def test_the_cache_is_limited_and_spares_what_is_used(tmp_path):
    cache = cache_of(tmp_path / "c", limit_bytes=500)
    prints = []
    for number in range(5):
        prints.append(write_manifest(tmp_path / "m", [f"{number}" * 100]))
        receive(cache, tmp_path / "m", prints[-1], in_use=prints[:1])
        os.utime(cache.path(prints[-1]), (number, number))
    assert cache.has(prints[0], "host") and cache.has(prints[4], "host") and not cache.has(prints[1], "host")


def array_file(path, number, size):
    path.write_bytes(bytes([number]) * size)
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def test_arrays_come_unpacked_and_keep_to_their_limits(tmp_path):
    """The cache keeps its size limit and leaves disk space free. Files that jobs use stay, and files on their way count."""
    names = [array_file(tmp_path / str(number), number, 2 * MAX_PART_BYTES + number) for number in range(4)]
    room = [1 << 40]
    (tmp_path / "c").mkdir()
    cache = FileCache(lambda: Directory(str(tmp_path / "c")), ARRAY, 5 * MAX_PART_BYTES, lambda: room[0])
    for number in (0, 1):
        receive(cache, tmp_path / str(number), names[number], kind=ARRAY)
        os.utime(cache.path(names[number]), (number, number))
    assert cache.path(names[1]).name == f"{names[1]}.npy"
    receive(cache, tmp_path / "2", names[2], in_use=names[:1], kind=ARRAY)
    assert [cache.has(name, "host") for name in names] == [True, False, True, False]
    with pytest.raises(SpoolError, match="--upload-bytes"):
        receive(cache, tmp_path / "3", names[3], in_use=names[:3], kind=ARRAY)
    room[0] = MAX_PART_BYTES // 2
    with pytest.raises(SpoolError, match="missing on its disk"):
        receive(cache, tmp_path / "3", names[3], in_use=names[:3], kind=ARRAY)
    room[0] = 1 << 40
    part, total = read_part(tmp_path / "3", 0)
    assert cache.add("slow host", names[3], 0, total, part, tuple, "slow host") == MAX_PART_BYTES
    with pytest.raises(SpoolError):  # the bytes that came from the slow host count
        receive(cache, tmp_path / "1", names[1], in_use=names[2:3], kind=ARRAY)
    cache.forget("slow host", names[3:])
    assert cache.wanted("slow host", names[3]) == MAX_PART_BYTES
    cache.forget("slow host")
    receive(cache, tmp_path / "1", names[1], in_use=names[2:3], kind=ARRAY)
    with pytest.raises(DatasetError, match="received is"):
        receive(cache, tmp_path / "0", "0" * 32, kind=ARRAY)
    assert not list((tmp_path / "c").glob("*.part"))


def test_a_host_has_its_share_and_an_announced_file_takes_nothing(tmp_path):
    names = [array_file(tmp_path / str(number), number, MAX_PART_BYTES + 1 + number) for number in range(6)]
    cache = cache_of(tmp_path / "c", ARRAY, 5 * MAX_PART_BYTES)
    for number in range(5):  # each host announces two parts and sends one
        part, total = read_part(tmp_path / str(number), 0)
        kept = f"hostile {number % 2}"
        if number < 4:
            assert cache.add(("silent", number), names[number], 0, total, part, tuple, kept) == MAX_PART_BYTES
        else:
            with pytest.raises(SpoolError, match=f"this host's files in use take {2 * MAX_PART_BYTES} bytes, and one host may"):
                cache.add(("silent", number), names[number], 0, total, part, tuple, kept)
    for number in range(4):
        cache.forget(("silent", number))
    for number in range(3):
        receive(cache, tmp_path / str(number), names[number], kind=ARRAY, host="hostile")
        os.utime(cache.path(names[number]), (number, number))
    assert [cache.path(name).exists() for name in names[:3]] == [False, True, True]  # its own file was removed, the oldest
    with pytest.raises(SpoolError, match="one host may"):
        receive(cache, tmp_path / "0", names[0], kind=ARRAY, host="hostile", in_use=names[1:3])
    for number in (3, 4):
        receive(cache, tmp_path / str(number), names[number], kind=ARRAY, host="honest", in_use=names[1:3])
    assert [cache.path(name).exists() for name in names[1:5]] == [True] * 4
    again = cache_of(tmp_path / "c", ARRAY, 5 * MAX_PART_BYTES)  # after a restart, a file belongs to the host that uses it
    assert again.has(names[1], "hostile") and again.has(names[2], "hostile")
    with pytest.raises(SpoolError, match="one host may"):
        receive(again, tmp_path / "0", names[0], kind=ARRAY, host="hostile", in_use=names[1:3])


def test_a_quarter_of_the_disk_stays_for_batches(tmp_path):
    room = [4 * MAX_PART_BYTES]
    (tmp_path / "c").mkdir()
    cache = FileCache(lambda: Directory(str(tmp_path / "c")), ARRAY, 1 << 40, lambda: room[0] - held())
    names = [array_file(tmp_path / str(number), number, MAX_PART_BYTES - 1) for number in range(4)]

    def held():
        return sum(path.stat().st_size for path in (tmp_path / "c").iterdir())

    for number in range(3):
        receive(cache, tmp_path / str(number), names[number], kind=ARRAY)
        os.utime(cache.path(names[number]), (number, number))
    with pytest.raises(SpoolError, match="quarter for batches"):
        receive(cache, tmp_path / "3", names[3], kind=ARRAY, in_use=names)
    receive(cache, tmp_path / "3", names[3], kind=ARRAY)
    assert [cache.path(name).exists() for name in names] == [False, True, True, True]


def test_the_number_of_files_is_limited(tmp_path, monkeypatch):
    """Small files cost more than their bytes: names, blocks, time to look through them."""
    monkeypatch.setattr(uploads, "_MAX_FILES", 6)
    cache, kept = cache_of(tmp_path / "c", ARRAY), []
    for number in range(5):
        kept.append(array_file(tmp_path / "a", number, 1))
        receive(cache, tmp_path / "a", kept[-1], kind=ARRAY, host="hostile")
        os.utime(cache.path(kept[-1]), (number, number))
    assert [cache.path(name).exists() for name in kept] == [False, False, True, True, True]


@pytest.mark.parametrize("kind", [MANIFEST, ARRAY])
def test_what_is_not_the_caches_stays_and_takes_no_room(tmp_path, kind):
    """A user's directory of the same name, with old, large files whose names look like the cache's."""
    directory, source, names = tmp_path / "c", tmp_path / "source", []
    directory.mkdir()
    other = "1" * 32 + (".npy" if kind == MANIFEST else "")
    foreign = ["film.part", "0" * 32 + ".part", "0" * 31 + ".1.part", "weights.npy", "notes", "0" * 33, "A" * 32, other]
    for name in foreign:
        (directory / name).write_bytes(bytes(5000))
        os.utime(directory / name, (1, 1))
    (directory / ("0" * 32 + ".7.part")).touch()  # a killed engine left it
    cache = cache_of(directory, kind, limit_bytes=1500)
    assert sorted(os.listdir(directory)) == sorted(foreign)
    for number in range(1, 4):
        if kind == MANIFEST:
            names.append(write_manifest(source, [f"{number}" * 600]))
        else:
            names.append(array_file(source, number, 600))
        receive(cache, source, names[-1], kind=kind)
    assert sorted(os.listdir(directory)) == sorted([*foreign, *(cache.path(name).name for name in names[1:])])


def private_dirty_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def test_imagenets_names_cost_little_and_a_second_job_starts_at_once(start, recipe, tmp_path):
    paths = [f"n{number // 1281:08d}/n{number // 1281:08d}_{number}.JPEG" for number in range(1_281_167)]
    manifest = tmp_path / "imagenet"
    dataset = FileSet(str(recipe.root), write_manifest(manifest, paths), len(paths))
    engine = start("--root", str(recipe.root))
    link = engine.link()
    small = recipe.open(link, SimpleQueue())
    small.probe(1, 1, [(0, 0)])  # decoders are loaded and everything runs

    def memory():
        return sum(map(private_dirty_kib, [engine.process.pid, *engine.children()]))

    before = memory()
    job = link.open_job(recipe.pipeline, dataset, Layout(8, 32, 32, 3), lambda _: manifest, print)
    answers = job.probe(1, 1, [(number, 0) for number in range(0, len(paths), 10007)])
    assert all("_" in answer.error and "No such file" in answer.error for answer in answers)
    assert memory() - before < 20 << 10
    # The names are there: nobody asks for them again.
    second = link.open_job(recipe.pipeline, dataset, Layout(8, 32, 32, 3), lambda _: pytest.fail("sent twice"), print)
    assert "No such file" in second.probe(1, 1, [(len(paths) - 1, 0)])[0].error
    print("private KiB", before, memory())
    link.close()
    until(lambda: not list(engine.spool.glob("job-*")))


def test_a_second_engine_finds_the_manifests_of_the_first(start, recipe):
    engine = start("--root", str(recipe.root))
    link = engine.link()
    recipe.open(link, SimpleQueue())
    link.close()
    engine.end()
    again = start("--root", str(recipe.root), keys=engine.keys)
    link = again.link()
    recipe.manifest.unlink()
    assert isinstance(recipe, Recipe)
    recipe.open(link, SimpleQueue())
    link.close()
