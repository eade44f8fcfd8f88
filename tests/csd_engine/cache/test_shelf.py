"""A shelf gives back what was kept, and nothing that is stale, damaged or of somebody else."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from csd_engine.cache import shelf as shelf_file
from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import Found, Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Origins
from csd_engine.errors import CacheRefused
from tests.at_once import at_once

KEY, SAMPLES, SIDE = "ab" * 16, 200, 32
IMAGE_BYTES = SIDE * SIDE * 3
LONG_AGO = 10**18
ALL = np.arange(SAMPLES)


def origins(sources: np.ndarray, size: int = 77, mtime_ns: int = LONG_AGO) -> Origins:
    return Origins((sources + 1000).astype(np.uint64), np.full(len(sources), size), np.full(len(sources), mtime_ns))


def image(source: int) -> np.ndarray:
    return np.random.default_rng(source).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def pixels(shelf: Shelf, found: Found, k: int) -> np.ndarray:
    """The pixels of the k-th sample that was looked for."""
    read = shelf.read(found, [k])
    assert read is not None
    return read[0].reshape(int(found.height[k]), int(found.width[k]), 3)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Shelf]]:
    """Opens shelves in the directory "cache". Their warnings are in `told`."""
    those = []

    def one(quota: int = 1 << 30, key: str = KEY, told: list[str] | None = None, samples: int = SAMPLES) -> Shelf:
        shelves = Shelves(tmp_path / "cache", quota)
        those.append(Shelf(shelves, key, {"point": "test"}, samples, 3, ([] if told is None else told).append))
        return those[-1]

    yield one
    for shelf in those:
        shelf.close()


def fill(shelf: Shelf, sources: np.ndarray = ALL, mtime_ns: int = LONG_AGO) -> None:
    those = origins(sources, mtime_ns=mtime_ns)
    for k, source in enumerate(sources.tolist()):
        shelf.keep([Sample(source, those.one(k), image(source))], 0.01)
    shelf.flush()


def hits(shelf: Shelf, **changed: int) -> np.ndarray:
    """Look for all samples; each hit must be its sample."""
    found = shelf.find(ALL, origins(ALL, **changed))
    for k in np.flatnonzero(found.hit).tolist():
        assert np.array_equal(pixels(shelf, found, k), image(k)), k
    return found.hit


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / f"shelf-{KEY}").glob("*.safetensors*"))


def test_what_was_kept_is_found_here_and_by_the_next_process(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    one = opened()
    assert not hits(one).any()
    fill(one, ALL[::2])
    assert hits(one).tolist() == [True, False] * (SAMPLES // 2)
    assert (one.counts.hits, one.counts.misses) == (100, 300)
    assert one.counts.written_bytes == sum(file.stat().st_size for file in files(tmp_path))
    two = opened()
    assert hits(two).sum() == 100
    fill(two, ALL[1::2])
    assert hits(one).all()  # at once: the directory's time has changed
    one.begin()
    assert hits(one).all()
    assert one.counts.misses == 0


def test_a_repeated_sample_is_kept_once(opened: Callable[..., Shelf]) -> None:
    one = opened()
    fill(one, np.array([5, 5, 5, 7]))
    fill(one, np.array([5, 7]))
    one.keep([Sample(9, origins(ALL).one(9), image(9))] * 3, 0.01)
    one.flush()
    assert hits(one).sum() == 3
    assert sum(len(part.entries) for part in one._open if part is not None) == 3


@pytest.mark.parametrize("changed", ({"size": 78}, {"mtime_ns": LONG_AGO + 1}))
def test_nothing_stale_is_found(opened: Callable[..., Shelf], tmp_path: Path, changed: dict[str, int]) -> None:
    fill(opened())
    one = opened()
    assert hits(one).all()
    assert not hits(one, **changed).any()
    assert files(tmp_path) == []  # more than half of the file is stale: there is room for the new ones
    fill(one)
    assert hits(one).all()


def test_hits_beside_so_many_changes_that_the_file_goes(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    fill(opened())
    one = opened()
    assert hits(one).all()
    those = origins(ALL)
    those.mtimes_ns[:150] += 1
    found = one.find(ALL, those)
    assert files(tmp_path) == []
    gc.collect()
    for k in np.flatnonzero(found.hit).tolist():  # a file that was dropped stays open as long as it is used
        assert np.array_equal(pixels(one, found, k), image(k))
    assert found.hit.sum() == 50
    assert not one.find(ALL, those).hit.any()


def test_another_file_of_the_same_size_and_time_is_not_found(opened: Callable[..., Shelf]) -> None:
    one = opened()
    fill(one)
    assert not one.find(ALL[:-1], origins(ALL[1:])).hit.any()


def test_a_source_that_was_changed_just_now_is_not_kept(opened: Callable[..., Shelf]) -> None:
    one, now_ns = opened(), time.time_ns()
    fill(one, mtime_ns=now_ns)
    assert not hits(one, mtime_ns=now_ns).any()


def test_newer_entries_count(opened: Callable[..., Shelf]) -> None:
    fill(opened(), ALL)
    two = opened()
    assert hits(two).all()
    changed = origins(ALL[:50], mtime_ns=LONG_AGO + 5)
    assert not two.find(ALL[:50], changed).hit.any()
    time.sleep(0.02)  # file systems count time in steps
    for k in range(50):
        two.keep([Sample(k, changed.one(k), image(k))], 0.01)
    two.flush()
    three = opened()
    assert three.find(ALL[:50], changed).hit.all()
    assert three.find(ALL[50:], origins(ALL[50:])).hit.all()


def test_flipped_bits_are_found_and_made_again(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    fill(opened())
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    content[4096 + 77 * IMAGE_BYTES + 100] ^= 4
    file.write_bytes(content)
    told: list[str] = []
    one = opened(told=told)
    assert not hits(one).any()
    assert len(told) == 1
    assert "damaged" in told[0]
    assert files(tmp_path) == []
    fill(one)
    assert hits(opened()).all()


def test_who_closes_a_shelf_waits_for_its_file(
    opened: Callable[..., Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread ends it at that moment."""
    begun, publish = threading.Event(), shelf_file.SegmentWriter.publish

    def slowly(self: shelf_file.SegmentWriter) -> int:
        begun.set()
        time.sleep(0.3)
        return publish(self)

    monkeypatch.setattr(shelf_file.SegmentWriter, "publish", slowly)
    one = opened()
    one.keep([Sample(k, origins(ALL).one(k), image(k)) for k in range(SAMPLES)], 0.01)
    other = threading.Thread(target=one.flush)
    other.start()
    assert begun.wait(60)
    one.close()
    assert len(files(tmp_path)) == 1 and not list(tmp_path.rglob("*.part"))
    other.join()
    assert hits(opened()).all()


def test_a_broken_off_file_and_a_foreign_one(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    first = opened()
    fill(first)
    (file,) = files(tmp_path)
    os.truncate(file, file.stat().st_size - 8)
    foreign = [tmp_path / "cache" / "photo.jpg", file.parent / "notes.txt", file.parent / "mine.safetensors"]
    for one in foreign:
        one.write_text("mine")
    shelf = opened()
    assert not hits(shelf).any()
    assert not file.exists()
    shelf.close()
    assert not Shelves(tmp_path / "cache", 0).forget(KEY)  # the first one is still open
    first.close()
    assert Shelves(tmp_path / "cache", 0).forget(KEY)
    assert all(one.read_text() == "mine" for one in foreign)


def test_the_quota_holds_and_its_samples_stay(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    quota = SAMPLES * IMAGE_BYTES // 4
    one = opened(quota)
    fill(one)
    first = hits(one)
    assert 0.22 <= first.mean() <= 0.25  # 3 KiB of pixels each: the headers take a part
    for _ in range(2):
        fill(one)
        assert (hits(one) == first).all()
    two = opened(quota)
    fill(two)
    assert (hits(two) == first).all()
    assert sum(file.stat().st_size for file in files(tmp_path)) <= quota


def test_other_shelves_go_for_a_new_one_but_none_in_use(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    quota = SAMPLES * IMAGE_BYTES + (1 << 16)
    used, idle = opened(quota, key="11" * 16), opened(quota, key="22" * 16)
    fill(used, ALL[:60])
    fill(idle, ALL[:60])
    idle.close()
    new = opened(quota)
    fill(new)
    assert sorted(path.name[:8] for path in (tmp_path / "cache").glob("shelf-*")) == ["shelf-11", "shelf-ab"]
    assert hits(used).sum() == 60
    assert 100 < hits(new).sum() < SAMPLES


def test_the_least_useful_shelf_goes_first(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    quota = SAMPLES * IMAGE_BYTES
    for key, seconds in (("11" * 16, 0.5), ("22" * 16, 0.001), ("33" * 16, 0.5)):
        shelf = opened(quota, key=key)
        for source in range(60):
            shelf.keep([Sample(source, origins(ALL).one(source), image(source))], seconds)
        shelf.close()
    long_ago = time.time() - 100 * 3600
    os.utime(tmp_path / "cache" / f"shelf-{'11' * 16}" / "lock", (long_ago, long_ago))
    shelves = Shelves(tmp_path / "cache", quota)
    worth = {one.key[:2]: one.worth(time.time()) for one in shelves.summaries()}
    assert worth["33"] > worth["11"] > worth["22"]


def test_a_file_that_is_cut_off_while_it_is_used(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    """Somebody frees room with `truncate`. A mapping of the file would kill the process."""
    told: list[str] = []
    one = opened(told=told)
    fill(one)
    found = one.find(ALL, origins(ALL))
    assert found.hit.all() and np.array_equal(pixels(one, found, 150), image(150))
    (path,) = files(tmp_path)
    os.truncate(path, 4096 + 100 * IMAGE_BYTES + 1)
    assert np.array_equal(pixels(one, found, 99), image(99))
    assert one.read(found, [99, 100]) is None and one.read(found, [150]) is None
    assert len(told) == 1 and "it was cut off" in told[0] and files(tmp_path) == []
    assert not one.find(ALL, origins(ALL)).hit.any() and one.keeps
    fill(one)
    os.truncate(files(tmp_path)[0], 4096)
    other = opened()  # a header that promises more
    assert not other.find(ALL, origins(ALL)).hit.any()


def test_threads_write_and_read_at_once(opened: Callable[..., Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_file, "SEGMENT_BYTES", 10 * IMAGE_BYTES)
    monkeypatch.setattr(shelf_file, "_LEAST_IMAGES", 1)
    one = opened(quota=1 << 20)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(ALL)
        for part in np.array_split(order, 20):
            found = one.find(part, origins(part))
            for k, source in enumerate(part.tolist()):
                if found.hit[k]:
                    assert np.array_equal(pixels(one, found, k), image(source))
                else:
                    one.keep([Sample(source, origins(part).one(k), image(source))], 0.01)

    at_once(work, 4)
    one.flush()
    assert hits(one).all()
    assert hits(opened()).all()


WRITER = """
    import sys, time
    import numpy as np
    sys.path.insert(0, {root!r})
    from tests.csd_engine.cache.test_shelf import ALL, KEY, SAMPLES, Sample, image, origins
    from csd_engine.cache.shelf import Shelf
    from csd_engine.cache.shelves import Shelves
    shelf = Shelf(Shelves({directory!r}, 1 << 30), KEY, {{}}, SAMPLES, 3, print)
    order = np.random.default_rng({seed}).permutation(ALL)
    for n, source in enumerate(order.tolist()):
        shelf.keep([Sample(source, origins(ALL).one(source), image(source))], 0.01)
        if n % 50 == 49:
            shelf.flush()
        print(n, flush=True)
        if n == {stop}:
            time.sleep(60)
    shelf.close()
"""


def writer(tmp_path: Path, seed: int, stop: int = -1) -> subprocess.Popen[str]:
    script = textwrap.dedent(WRITER).format(
        root=str(Path(__file__).parents[3]), directory=str(tmp_path / "cache"), seed=seed, stop=stop
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_what_a_killed_writer_has_finished_counts(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    process = writer(tmp_path, 1, stop=120)
    assert process.stdout is not None
    while process.stdout.readline() != "120\n":
        pass
    assert [file.suffix for file in files(tmp_path)].count(".part") == 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    one = opened()
    assert hits(one).sum() == 100
    fill(one)
    assert hits(one).all()
    assert {file.suffix for file in files(tmp_path)} == {".safetensors"}  # the killed one's file is gone


def test_two_writers(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    both = [writer(tmp_path, seed) for seed in (1, 2)]
    for process in both:
        process.communicate()
        assert process.returncode == 0
    assert hits(opened()).all()


def test_a_full_disk_ends_the_writing_alone(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    # A limit of the process takes the place of a full disk.
    script = textwrap.dedent(
        f"""
        import resource, sys
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from tests.csd_engine.cache.test_shelf import *
        told = []
        shelf = Shelf(Shelves({str(tmp_path / "cache")!r}, 1 << 20), KEY, {{}}, SAMPLES, 3, told.append)
        fill(shelf, ALL[:20])
        those = origins(ALL)
        for k in range(20, SAMPLES):
            shelf.keep([Sample(k, those.one(k), image(k))], 0.01)
            if k == 60:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + 41 * IMAGE_BYTES + 100, resource.RLIM_INFINITY))
        shelf.flush()
        print(hits(shelf).sum(), len(told), told)
        """
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    count, lines = made.stdout.split()[:2]
    assert (int(count), lines) == (20, "1"), made.stdout
    assert "takes no more samples: File too large" in made.stdout
    assert hits(opened()).sum() == 20


def test_a_process_that_is_short_of_descriptors_removes_no_good_file(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    one = opened()
    for k in range(0, SAMPLES, 10):
        fill(one, ALL[k : k + 10])
    script = textwrap.dedent(
        f"""
        import resource, sys
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from tests.csd_engine.cache.test_shelf import *
        told = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        shelf = Shelf(Shelves({str(tmp_path / "cache")!r}, 1 << 30), KEY, {{}}, SAMPLES, 3, told.append)
        print(0 < hits(shelf).sum() < SAMPLES, told)
        """
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert made.stdout.startswith("True") and "is used in part: Too many open files" in made.stdout, made.stdout + made.stderr
    assert len(files(tmp_path)) == SAMPLES // 10


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(CacheRefused, match="chmod go-w"):
        Shelves(tmp_path / "cache", 1)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheRefused, match="file/cache"):
        Shelves(tmp_path / "file" / "cache", 1)


def test_verify_and_forget(opened: Callable[..., Shelf], tmp_path: Path) -> None:
    one = opened()
    fill(one, ALL[:50])
    fill(one, ALL[50:])
    shelves = Shelves(tmp_path / "cache", 0)
    (summary,) = shelves.summaries()
    assert (summary.key, summary.samples, summary.segments, summary.in_use) == (KEY, SAMPLES, 2, True)
    assert summary.seconds == pytest.approx(2.0)
    assert summary.about == {"point": "test"}
    assert [why for _, _, why in shelves.verify(KEY)] == ["", ""]
    file = files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    assert sorted(bool(why) for _, _, why in shelves.verify(KEY)) == [False, True]
    assert not file.exists()
    assert not shelves.forget(KEY)
    one.close()
    assert shelves.forget(KEY)
    assert not (tmp_path / "cache" / f"shelf-{KEY}").exists()
