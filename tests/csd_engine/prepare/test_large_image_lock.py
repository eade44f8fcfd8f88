"""Only one large image at a time is decoded, also if the process that holds the lock dies."""

from __future__ import annotations

import select
import subprocess
import sys

import pytest

from csd_engine.errors import LeftToHost
from csd_engine.prepare.large_image_lock import LargeImageLock, large_bytes, most_bytes

INSIDE = """
import sys
from csd_engine.prepare.large_image_lock import LargeImageLock
t = LargeImageLock(sys.argv[1], 4000, 9000)
t.acquire(4000)
print(1, flush=True)
"""


def entered(path, script=INSIDE + "input()"):
    return subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=-1, stdout=-1)


def test_a_second_one_waits_until_the_first_is_through_or_dead(tmp_path):
    path = tmp_path / "lock"
    for end in (lambda one: one.communicate(b"\n"), lambda one: one.kill()):
        first = entered(path)
        assert first.stdout.readline()
        second = entered(path, INSIDE.replace("t.acquire", "print(0, flush=True); t.acquire") + "t.release(); t.release()")
        assert second.stdout.readline() == b"0\n"
        small = LargeImageLock(str(path), 4000, 9000)
        small.acquire(3999)  # not large: it does not wait
        small.release()
        assert not select.select([second.stdout], [], [], 0.5)[0] and first.poll() is None
        end(first)
        assert second.stdout.read() == b"1\n" and second.wait() == 0
        first.wait()


def test_without_a_lock_nobody_waits(tmp_path):
    for path in ("", str(tmp_path / "missing" / "lock")):
        for one in (LargeImageLock(path, 1, 400), LargeImageLock(path, 1, 400)):
            one.acquire(400)


def test_what_is_large_follows_from_the_memory():
    assert large_bytes(512 << 20, 2) == 32 << 20
    assert large_bytes(512 << 20, 64) == large_bytes(0, 1) == 16 << 20
    assert large_bytes(16 << 30, 16) == 128 << 20  # photographs of 12 megapixels are not large there
    assert most_bytes(512 << 20) == most_bytes(0) == 192 << 20 and most_bytes(16 << 30) == 4 << 30


def test_an_excessive_image_is_refused(tmp_path):
    lock = LargeImageLock(str(tmp_path / "lock"), 4000, 9000)
    lock.acquire(9000)
    with pytest.raises(LeftToHost, match="engine allows 8.79 KiB"):
        lock.acquire(9001)
