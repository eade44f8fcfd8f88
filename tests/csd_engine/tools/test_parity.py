"""Test cases are sent as plain arrays and come back with their results; they run in another process, as on a device."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

from csd_engine.tools.parity import Case, pack_cases, read_results, run_cases

RANDOM = np.random.default_rng(3)
SOURCES = {"a": RANDOM.integers(0, 256, (40, 50, 3), np.uint8), "grey": RANDOM.integers(0, 256, (40, 50), np.uint8)}


def pipeline(*ops, mode="RGB", order="pillow13"):
    return {"format": 1, "order": order, "mode": mode, "ops": list(ops)}


RESIZE = {"op": "Resize", "size": [20, 20], "max_size": None, "interpolation": "bilinear"}
ERASE = {"op": "RandomErasing", "p": 1.0, "scale": [0.1, 0.2], "ratio": [1.0, 1.0]}
CASES = [
    Case("a", 0, pipeline()),
    Case("grey", 0, pipeline(RESIZE, mode="L")),
    Case("a", 5, pipeline(ERASE)),
    Case("a", 0, pipeline({"op": "CenterCrop", "size": [0, 1]})),
    Case("nowhere", 0, pipeline()),
    Case("a", 0, pipeline(RESIZE)),
]


def remote(expected):
    command = [sys.executable, "-m", "csd_engine.tools.parity"]
    done = subprocess.run(command, input=pack_cases(SOURCES, CASES, expected), stdout=subprocess.PIPE, check=True)
    return read_results(done.stdout)


def test_a_reply_is_what_the_cases_make_here():
    here, there = run_cases(SOURCES, CASES), remote([""] * len(CASES))
    assert here.versions == there.versions and here.errors == there.errors and set(here.errors) == {3, 4}
    assert here.pixels.keys() == there.pixels.keys() == {0, 1, 2, 5} and here.boxes.keys() == there.boxes.keys() == {2}
    for number, pixels in here.pixels.items():
        assert np.array_equal(pixels, there.pixels[number])
    assert np.array_equal(here.boxes[2], there.boxes[2]) and here.boxes[2].any()
    assert np.array_equal(here.pixels[0], SOURCES["a"]) and here.pixels[1].shape == (20, 20, 1)


def test_what_is_as_expected_stays_there():
    here = run_cases(SOURCES, CASES)
    expected = [here.digest(number) for number in range(len(CASES))]
    expected[1] = expected[0]
    there = remote(expected)
    assert there.same == {0, 2, 5} and there.pixels.keys() == {1} and not there.boxes and set(there.errors) == {3, 4}


@pytest.mark.parametrize("reply", (b"", b"bash: python3: command not found\n", b"PK\x03\x04 cut off"))
def test_what_is_no_reply_is_told(reply):
    with pytest.raises(ValueError):
        read_results(reply)


def test_a_reply_without_its_parts_is_told():
    out = io.BytesIO()
    np.savez(out, about=np.frombuffer(b'{"versions": {}}', np.uint8))
    with pytest.raises(ValueError, match="errors"):
        read_results(out.getvalue())
