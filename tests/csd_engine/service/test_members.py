"""A directory that several processes share; the last one removes it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from csd_engine.errors import SpoolError
from csd_engine.service.members import Members


def test_the_last_one_removes_it(tmp_path: Path) -> None:
    first, second = Members.join(tmp_path / "d"), Members.join(tmp_path / "d")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    (tmp_path / "d" / "file").touch()
    assert not first.remove() and (tmp_path / "d" / "file").exists()
    assert second.remove() and os.listdir(tmp_path) == []
    assert not second.remove() and not second.alone()


def test_an_observer_is_no_member(tmp_path: Path) -> None:
    one, watch = Members.join(tmp_path / "d"), Members.look_on(tmp_path / "d")
    assert not watch.alone()
    one.close()
    assert watch.alone() and watch.remove() and os.listdir(tmp_path) == []


def test_who_comes_in_while_it_is_removed_gets_a_new_one(tmp_path: Path) -> None:
    """It waits for the old lock file, and must not take it for the new one of the same name."""
    one, watch = Members.join(tmp_path / "d"), Members.look_on(tmp_path / "d")
    (tmp_path / "d" / "old").touch()
    one.close()
    assert watch.alone()
    came: list[Members] = []
    newcomer = threading.Thread(target=lambda: came.append(Members.join(tmp_path / "d")))
    newcomer.start()
    newcomer.join(0.3)
    assert not came
    assert watch.remove()
    newcomer.join(60)
    assert os.listdir(tmp_path) == ["d"] and os.listdir(tmp_path / "d") == ["lock"]
    late = Members.look_on(tmp_path / "d")
    assert not late.alone()
    late.close()
    assert came[0].remove()


def test_of_two_that_leave_one_is_the_last(tmp_path: Path) -> None:
    for _ in range(50):
        members = [Members.join(tmp_path / "d") for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            removed = list(threads.map(Members.remove, members))
        assert removed.count(True) == 1 and os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["open to others", "a file", "a link"])
def test_somebody_elses_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d"
    if kind == "open to others":
        path.mkdir(mode=0o755)
    elif kind == "a file":
        path.touch()
    else:
        (tmp_path / "target").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "target")
    with pytest.raises((SpoolError, FileExistsError)):
        Members.join(path)
