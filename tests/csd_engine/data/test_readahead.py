"""Files opened before their turn: once each, in order, and closed whatever happens."""

from __future__ import annotations

import os

import numpy as np
import pytest

from csd_engine.data.base import Reader, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.data.readahead import AHEAD, ReadAhead
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import SampleError
from tests.open_files import few_descriptors, open_files, opened_since

COUNT = 30


@pytest.fixture
def reader(tmp_path):
    names = [f"{k}.jpg" for k in range(COUNT)]
    for k, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes([k]) * (k + 1))
    write_manifest(tmp_path / "m", names)
    return open_reader(FileSet(str(tmp_path), "0" * 32, COUNT), str, lambda _: tmp_path / "m")


def read(source):
    with open(source.descriptor, "rb") as stream:
        return stream.read()


def test_it_gives_what_the_reader_gives_and_opens_each_once(reader, monkeypatch):
    opened = []
    right = os.open
    monkeypatch.setattr(os, "open", lambda path, *more: opened.append(path) or right(path, *more))
    order = [int(k) for k in np.random.default_rng(1).permutation(COUNT)] + [3, 3, 4]
    before = open_files()
    with ReadAhead(reader, order) as ahead:
        for turn, index in enumerate(order):
            source = ahead.open(index)
            assert len(opened) == min(turn + 1 + AHEAD, len(order))
            assert read(source) == bytes([index]) * (index + 1) and source.size == index + 1
            assert ahead.where(index) == reader.where(index)
    assert len(opened) == len(order) == len(ahead) + 3 and opened_since(before) == []


@pytest.mark.parametrize("taken", [0, 1, 5, COUNT])
def test_nothing_stays_open_when_a_batch_is_broken_off(reader, taken):
    before = open_files()
    with pytest.raises(KeyboardInterrupt):
        with ReadAhead(reader, range(COUNT)) as ahead:
            for index in range(taken):
                read(ahead.open(index))
            if 0 < taken < COUNT:
                assert len(opened_since(before)) == AHEAD
            raise KeyboardInterrupt
    assert opened_since(before) == []
    ahead.close()


def test_a_missing_file_is_told_at_its_turn(reader, tmp_path):
    os.unlink(tmp_path / "5.jpg")
    before = open_files()
    with ReadAhead(reader, range(COUNT)) as ahead:
        for index in range(COUNT):
            if index == 5:
                with pytest.raises(SampleError, match=r"5\.jpg"):
                    ahead.open(index)
            else:
                assert read(ahead.open(index)) == bytes([index]) * (index + 1)
    assert opened_since(before) == []


@pytest.mark.parametrize("free", [1, 2, 3, AHEAD])
def test_the_last_descriptors_go_to_the_files_that_come_next(reader, free):
    with few_descriptors(free), ReadAhead(reader, range(COUNT)) as ahead:
        for index in range(COUNT):
            assert read(ahead.open(index)) == bytes([index]) * (index + 1)


def test_samples_out_of_order_are_opened_as_they_come(reader):
    before = open_files()
    with ReadAhead(reader, range(COUNT)) as ahead:
        for index in (0, 7, 1, 2):
            assert read(ahead.open(index)) == bytes([index]) * (index + 1)
    assert opened_since(before) == []


class Rows(Reader):
    def open(self, index):
        return np.full((2, 2), index, np.uint8)


def test_arrays_pass_through():
    with ReadAhead(Rows(), range(20)) as ahead:
        assert [int(ahead.open(index)[0, 0]) for index in range(20)] == list(range(20))
    assert not isinstance(Rows().open(0), OpenFile)
