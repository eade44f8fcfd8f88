"""Comparing a device's data set with the host's: each difference is found, named and counted. Real trees, a real census."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_engine.tools.census import BROKEN, OUTSIDE, Entry, sort_key
from ddlp.deploy import census
from ddlp.deploy.census import CensusResult, compare, take_census

_NAME = st.text("ab-./", min_size=1, max_size=6).filter(lambda text: not {"", ".", ".."} & set(text.split("/")))
_TREE = st.dictionaries(_NAME.map(str.encode), st.tuples(st.integers(0, 2), st.sampled_from([b"0", b"1"])), max_size=12)


def entries(tree):
    return [Entry(path, size, 0, digest) for path, (size, digest) in sorted(tree.items(), key=lambda item: sort_key(item[0]))]


@settings(max_examples=100, deadline=None)
@given(_TREE, _TREE)
def test_a_merge_finds_what_sets_find(ours, theirs):
    result = CensusResult()
    same = list(compare(entries(ours), entries(theirs), result))
    both = ours.keys() & theirs.keys()
    sized = {path for path in both if ours[path][0] == theirs[path][0]}
    assert result.missing_there.count == len(ours.keys() - both)
    assert result.missing_here.count == len(theirs.keys() - both)
    assert result.sizes.count == len(both) - len(sized)
    assert result.contents.count == sum(ours[path][1] != theirs[path][1] for path in sized)
    assert {entry.path for entry in same} == sized and result.files == result.compared == len(sized)
    assert result.same == (not (ours.keys() - both) and ours == {path: theirs[path] for path in both})


@pytest.fixture
def trees(tmp_path):
    """Two copies of a tree of 600 files of 100 bytes, all with the same old time of change."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for number in range(600):
        path = ours / f"n{number // 100}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(100))
        os.utime(path, (1, 1))
    shutil.copytree(ours, theirs)
    return ours, theirs


def take(trees, **options):
    """The census of two trees. Another process lists the device's tree, one more makes its digests."""
    ours, theirs = map(str, trees)
    asked = []

    def ask(paths):
        asked.extend(paths)
        command = [sys.executable, "-m", "csd_engine.tools.census", theirs, "--digests"]
        done = subprocess.run(command, input=b"".join(path + b"\0" for path in paths), stdout=subprocess.PIPE, check=True)
        return done.stdout.split(b"\0")[:-1]

    verify = ["--verify"] if options.get("verify") else []
    skip = [f"--skip={os.fsdecode(path)}" for path in options.get("skip", ())]
    with subprocess.Popen(
        [sys.executable, "-m", "csd_engine.tools.census", theirs, *verify, *skip], stdout=subprocess.PIPE
    ) as process:
        result = take_census(ours, process.stdout.read, ask, **options)
    return result, asked


def test_the_same(trees):
    result, asked = take(trees)
    assert result.same and result.files == 600 and result.bytes == 60000
    assert result.compared == len(asked) == len(set(asked)) and census.SAMPLE <= result.compared < 300
    assert f"contents of {result.compared}" in result.coverage and "--verify" in result.coverage
    assert set(take(trees)[1]) != set(asked), "each call must draw another sample"
    assert set(take(trees, draw=random.Random(1))[1]) == set(take(trees, draw=random.Random(1))[1])
    verified, asked = take(trees, verify=True)
    assert verified.same and verified.compared == 600 and not asked and "all 600 files" in verified.coverage


def test_each_difference_is_named(trees):
    ours, theirs = trees
    (theirs / "n0/7.jpg").unlink()
    shutil.rmtree(theirs / "n1")
    (theirs / "n2/200.jpg").write_bytes(b"short")
    (theirs / "n2/more.jpg").write_bytes(b"more")
    (theirs / "n3/300.jpg").unlink()
    (theirs / "n3/300.jpg").symlink_to("/etc/hostname")
    (theirs / "n3/301.jpg").unlink()
    (theirs / "n3/301.jpg").symlink_to("nowhere")
    (ours / "n4/400.jpg").unlink()
    (ours / "n4/400.jpg").symlink_to("nowhere")
    result, _ = take(trees)
    assert not result.same
    assert result.missing_there.count == 101
    assert str(result.missing_there) == "n0/7.jpg, n1/100.jpg, n1/101.jpg, n1/102.jpg, n1/103.jpg and 96 more"
    assert (str(result.missing_here), str(result.sizes)) == ("n2/more.jpg", "n2/200.jpg")
    assert (str(result.refused), str(result.unreadable)) == ("n3/300.jpg", "n3/301.jpg")
    assert str(result.unreadable_here) == "n4/400.jpg" and result.files == 600 - 101 - 1 - 2 - 1


@pytest.mark.parametrize("at", ("theirs", "ours"))
def test_a_file_just_changed_is_always_in_the_sample(trees, at):
    changed = trees[at == "theirs"] / "n5/555.jpg"
    changed.write_bytes(b"y" * 100)
    for _ in range(3):
        result, _ = take(trees)
        assert str(result.contents) == "n5/555.jpg" and not result.same


def test_the_largest_file_is_always_in_the_sample(trees):
    for root, content in zip(trees, (b"a" * 5000, b"b" * 5000), strict=True):
        (root / "n0/50.jpg").write_bytes(content)
        os.utime(root / "n0/50.jpg", (0, 0))
        for number in range(census.SAMPLE):  # newer files, so that the largest file is not among the newest
            os.utime(root / f"n1/{100 + number % 100}.jpg", (2, 2))
    for seed in range(6):
        assert str(take(trees, draw=random.Random(seed))[0].contents) == "n0/50.jpg"


def test_a_silent_change_is_found_by_verify_only_for_sure(trees):
    (trees[1] / "n5/555.jpg").write_bytes(b"y" * 100)
    os.utime(trees[1] / "n5/555.jpg", (0, 0))
    assert str(take(trees, verify=True)[0].contents) == "n5/555.jpg"
    found = [take(trees, draw=random.Random(seed))[0].contents.count for seed in range(6)]
    assert set(found) == {0, 1}, "the sample holds the file about four times in ten"


def test_a_sample_has_its_limit(trees, monkeypatch):
    monkeypatch.setattr(census, "SAMPLE_BYTES", 1000)
    result, asked = take(trees)
    assert len(asked) == 10 and result.compared_bytes == 1000


def test_what_is_left_out_on_both_sides(trees):
    (trees[1] / "spool").mkdir()
    (trees[1] / "spool/x").write_bytes(b"")
    (trees[0] / "n0/1.jpg").unlink()
    result, _ = take(trees, skip=[b"spool", b"n0"])
    assert result.same and not result.missing_here.count and result.files == 500


def test_odd_names_are_shown_on_one_line(trees):
    for name in (b"new\nline", b"\xff", "späße".encode()):
        with open(os.path.join(os.fsencode(trees[0]), name), "wb"):
            pass
    assert take(trees)[0].missing_there.first == ["new\\nline", "späße", "\\xff"]


def test_special_sizes_in_a_merge():
    result = CensusResult()
    assert not list(compare([Entry(b"a", 1), Entry(b"b", BROKEN)], [Entry(b"a", OUTSIDE), Entry(b"b", 3)], result))
    assert (str(result.refused), str(result.unreadable_here)) == ("a", "b")
