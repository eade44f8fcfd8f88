"""The samples are those of tests/golden.json: `tests/golden_rows.py` says how they are loaded."""

from __future__ import annotations

import pytest

from tests import golden
from tests.golden_rows import Row, names

QUICK = ("crop", "pad, arrays", "RandAugment", "own step")


@pytest.mark.parametrize("parts", [QUICK, pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_the_samples_are_the_stored_ones(need_kernel, parts):
    if others := golden.other_versions():
        pytest.skip(f"tests/golden.json is of other versions: {others}. Compare with a commit: python -m tests.golden BASE")
    (rows,) = golden.load({"this tree": golden.ROOT}, parts)
    assert golden.differences_from_stored(rows, parts) == []
    assert sorted(rows) == sorted(names(*parts)) and len(rows) >= 4 * len(parts)
    assert sum(row.by_devices for row in rows.values()) > len(rows), "devices took hardly part"


def test_what_differs_is_named():
    same = Row("same", ["a", "b"], [0, 1])
    before = {"same": same, "pixel": Row("pixel", ["a", "b"]), "order": Row("order", ["a"], [0, 1]), "gone": Row("gone", [])}
    now = {"same": same, "pixel": Row("pixel", ["a", "c"]), "order": Row("order", ["a"], [1, 0]), "fails": Row("fails", [])}
    assert golden.differences(before, now) == [
        "pixel: 1 of 2 samples differ, at places 1",
        "order: batches come in the order [1, 0], and came in [0, 1]",
        "gone: there is none now",
        "fails: there is none in the other one",
    ]
    assert golden.differences({"same": same}, {"same": same}) == []
    failed = Row("same", [], error="KeyError: 1")
    assert golden.differences({"same": same}, {"same": failed}) == ["same: no error; now KeyError: 1"]
