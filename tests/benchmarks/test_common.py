"""What all benchmarks use: turns, processes, the machine, output."""

import argparse
import json
import mmap
import os
import time

import pytest

from benchmarks.common import Aim, BenchFailed, add_output, alternate, child, emit, machine_line, spread
from benchmarks.memory import held_bytes
from ddlp.process.machine import machine
from ddlp.tryout.rounds import ratios
from tests.benchmarks.bench import bench

MEGABYTE = 1 << 20


def test_each_round_begins_with_another_one():
    order = []
    turns = {name: lambda name=name: order.append(name) or float(len(order)) for name in "abc"}
    figures = alternate(turns, 4, lambda text: None)
    assert "".join(order) == "abc" "bca" "cab" "abc"
    assert figures == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2, 3] and spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 .. 3.0)"


def test_an_aim_says_whether_it_was_reached():
    assert Aim("x", 3.0, 3.2).text.endswith("reached") and "MISSED" in Aim("x", 3.0, 2.99).text
    assert "not measured" in Aim("x", 3.0, None).text


def test_a_child_that_fails_says_why():
    with pytest.raises(BenchFailed, match="no attribute 'turn'"):
        child("json", {"files": 1}, [min(os.sched_getaffinity(0))])


def test_memory_that_nobody_has_mapped_is_counted_once():
    before, unmapped = held_bytes([os.getpid()])
    descriptor = os.memfd_create("ddlp-test")
    try:
        os.write(descriptor, bytes(256 * MEGABYTE))
        other = os.dup(descriptor)
        held, now_unmapped = held_bytes([os.getpid()])
        assert now_unmapped - unmapped == 256 * MEGABYTE
        assert 200 * MEGABYTE < held - before < 312 * MEGABYTE
        with mmap.mmap(descriptor, 256 * MEGABYTE) as mapping:
            sum(mapping[:: mmap.PAGESIZE])
            held, now_unmapped = held_bytes([os.getpid()])
            assert now_unmapped == unmapped and 200 * MEGABYTE < held - before < 312 * MEGABYTE
        os.close(other)
    finally:
        os.close(descriptor)


def test_the_machine_is_described():
    found = machine()
    assert found["cores"] == len(os.sched_getaffinity(0)) and found["versions"]["torch"]
    assert found["date"].startswith(time.strftime("%Y")) and found["processor"] in machine_line(found)


def test_where_the_figures_can_t_go_is_said_before_anything_is_measured(tmp_path, capsys):
    assert bench(["transfer", "--save", str(tmp_path)]) == 1
    said = f"--save {tmp_path} can't be written: Is a directory. Name another file; nothing was run."
    assert capsys.readouterr() == ("", f"python -m benchmarks.transfer: {said}\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_figures_that_can_t_be_saved_in_the_end_are_printed(tmp_path, capsys, as_json):
    with pytest.raises(BenchFailed, match=f"--save {tmp_path} can't be written: Is a directory. The figures are above"):
        emit(argparse.Namespace(json=as_json, save=tmp_path, aims=False), Aim("fast", 1.0, 2.5), "the table")
    out = capsys.readouterr().out
    assert json.loads(out)["measured"] == 2.5 if as_json else out.endswith("\nthe table\n")


@pytest.mark.parametrize("asked", [False, True])
def test_aims_are_printed_for_who_asks(capsys, asked):
    options = argparse.ArgumentParser()
    add_output(options)
    emit(options.parse_args(["--aims"] if asked else []), Aim("fast", 1.0, 2.5), "the table", [Aim("fast", 1.0, 2.5)])
    assert ("aim 1, measured 2.5, reached" in capsys.readouterr().out) is asked
