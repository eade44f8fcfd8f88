"""A census of a directory lists every file once and in order, whatever its name, and nothing outside the root."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import sys
import tracemalloc
import zlib

import pytest

from csd_engine.tools.census import (
    BROKEN,
    NEWEST,
    OUTSIDE,
    CensusError,
    CensusReader,
    Entry,
    digests,
    hashed,
    sort_key,
    walk,
    write_census,
)

ODD_NAMES = (b"new\nline", b"\xff\xfe latin", "späße".encode(), b" leading and trailing ", b"=1 2 3", b"!x", b"-1  x", b"\x01")


def write(root, path, content=b"x"):
    full = os.path.join(os.fsencode(root), path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "wb") as stream:
        stream.write(content)


def run(*arguments, paths=()):
    command = [sys.executable, "-m", "csd_engine.tools.census", *map(str, arguments)]
    return subprocess.run(command, input=b"".join(path + b"\0" for path in paths), capture_output=True)


def test_order_is_that_of_sort_key(tmp_path):
    names = [
        b"a/x",
        b"a-b/x",
        b"a.jpg",
        b"a/b/c",
        b"a/b.c",
        b"b",
        b"a b/y",
        b"ab",
        *ODD_NAMES,
        *(b"a/" + odd for odd in ODD_NAMES),
    ]
    for name in names:
        write(tmp_path, name)
    assert [entry.path for entry in walk(str(tmp_path))] == sorted(names, key=sort_key)


def test_a_stream_is_the_walk(tmp_path):
    for number, name in enumerate([*ODD_NAMES, *(b"sub/" + odd for odd in ODD_NAMES), b"sub/deep/er/x", b"z"]):
        write(tmp_path, name, bytes(number))
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    reader = CensusReader(io.BytesIO(done.stdout).read)
    walked = list(walk(str(tmp_path)))
    assert list(reader) == [entry._replace(modified=0) for entry in walked] and len(walked) == 18


def test_digests_of_contents(tmp_path):
    contents = {b"empty": b"", b"new\nline": b"abc", b"large": bytes(range(256)) * 3000}
    for name, content in contents.items():
        write(tmp_path, name, content)
    expected = {name: hashlib.blake2b(content, digest_size=16).hexdigest().encode() for name, content in contents.items()}
    done = run(tmp_path, "--digests", paths=[*contents, b"missing"])
    assert done.stdout.split(b"\0") == [*expected.values(), b"!2", b""]
    verified = CensusReader(io.BytesIO(run(tmp_path, "--verify").stdout).read)
    assert {entry.path: entry.digest for entry in verified} == expected


def test_digests_of_more_files_than_are_read_at_once(tmp_path):
    for number in range(700):
        write(tmp_path, b"%d/%03d" % (number % 3, number), b"%d" % number)
    for entry in hashed(str(tmp_path), walk(str(tmp_path))):
        number = int(entry.path[2:])
        assert entry.digest == hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest().encode()


def test_links(tmp_path):
    root, beside = tmp_path / "root", tmp_path / "root beside"
    write(beside, b"secret", b"12345")
    write(root, b"sub/real", b"123")
    for name, target in {
        "file": "sub/real", "dir": "sub", "sub/loop": "..", "sub/self": ".", "gone": "nowhere", "out": "../root beside/secret",
        "outdir": "../root beside", "sub/top": str(root),
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    os.mkfifo(root / "fifo")
    expected = {
        b"sub/real": 3, b"file": 3, b"dir/real": 3, b"gone": BROKEN, b"out": OUTSIDE, b"outdir": OUTSIDE,
    }  # fmt: skip
    found = {entry.path: entry.size for entry in walk(str(root))}
    assert found == expected
    followed = {entry.path: entry.size for entry in walk(str(root), confined=False)}
    del expected[b"outdir"]
    assert followed == {**expected, b"out": 5, b"outdir/secret": 5}
    wanted = [b"file", b"out", b"outdir/secret", b"../root beside/secret", b"fifo"]
    assert [one[:1] == b"!" for one in digests(str(root), wanted)] == [False, True, True, True, True]


def test_what_is_left_out(tmp_path):
    for name in (b"lost+found/x", b"spool/job/1", b"train/1", b"train/spool/2", b"train/lost+found/3"):
        write(tmp_path, name)
    found = CensusReader(io.BytesIO(run(tmp_path, "--skip", "spool", "--skip", "train/1").stdout).read)
    assert [entry.path for entry in found] == [b"train/lost+found/3", b"train/spool/2"]


def test_the_newest_come_last(tmp_path):
    for number in range(100):
        write(tmp_path, b"%03d" % number)
        os.utime(tmp_path / f"{number:03d}", ns=(0, random.Random(number).getrandbits(40)))
    os.utime(tmp_path / "042", ns=(0, 1 << 41))
    reader = CensusReader(io.BytesIO(run(tmp_path).stdout).read)
    assert sum(1 for _ in reader) == 100
    newest = sorted(walk(str(tmp_path)), key=lambda entry: -entry.modified)[:NEWEST]
    assert newest[0].path == b"042" and [entry.path for entry in reader.newest] == [entry.path for entry in newest]


def test_a_broken_stream_is_told(tmp_path):
    out = io.BytesIO()
    write_census((Entry(b"a/%06d" % number, number) for number in range(5000)), out)
    whole = out.getvalue()
    assert len(list(CensusReader(io.BytesIO(whole).read))) == 5000
    for cut in (0, 1, len(whole) // 2, len(whole) - 7):
        with pytest.raises(CensusError, match="broke off"):
            list(CensusReader(io.BytesIO(whole[:cut]).read))
    with pytest.raises(CensusError, match="is no census"):
        list(CensusReader(io.BytesIO(b"bash: python: command not found").read))
    for record in (b"", b"something else\0", b"ddlp census 3\000nonsense\0"):
        with pytest.raises(CensusError, match="is no census"):
            list(CensusReader(io.BytesIO(zlib.compress(record)).read))
    damaged = bytearray(zlib.compress(b"ddlp census 3\0001  a\0", 0))
    damaged[-6] ^= 1  # a letter of the name
    with pytest.raises(CensusError, match="is no census"):
        list(CensusReader(io.BytesIO(damaged).read))


def test_no_such_root(tmp_path):
    done = run(tmp_path / "nowhere")
    assert done.returncode == 2 and b"nowhere can't be listed: No such file" in done.stderr and not done.stdout


def test_memory_does_not_grow_with_the_number_of_directories(tmp_path):
    def peak(directories):
        root = tmp_path / str(directories)
        for number in range(directories * 200):
            write(root, b"%04d/%050d" % (number // 200, number), b"")
        out = io.BytesIO()
        tracemalloc.start()
        try:
            write_census(walk(str(root)), out)
            written = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            out.seek(0)
            assert sum(1 for _ in CensusReader(out.read)) == directories * 200
            return max(written, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()

    few, many = peak(2), peak(32)
    assert many < few + 200_000, (few, many)  # bytes; the names alone are 400,000
