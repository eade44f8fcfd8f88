"""Known answers: these numbers decide every sample's content, so they may never change."""

import math
import random

import numpy as np
import pytest

from csd_engine.arithmetic.keyed import Keyed, KeyedRows, exp, log

KNOWN = [
    "554677b2b0df4404",
    "cf1daf673435d5e4",
    "23bc14e1aaddf46c",
    "ac67f50cd93e6b8b",
    "ca1f23b716cdf8f3",
    "0cbcd83ae75d0f81",
    "15b9b0a82ed17bcd",
    "d7c29a7e03d3db83",
    "f49cbb563c3a7cfe",
    "f739054ba3cb9333",
]
EXP = [
    (-0.2876820724517809, "0x1.8000000000000p-1"),
    (0.28768207245178085, "0x1.5555555555555p+0"),
    (1.0, "0x1.5bf0a8b14576ap+1"),
    (-37.5, "0x1.dd5c566301ec8p-55"),
    (0.001, "0x1.0041919b7ee34p+0"),
    (500.25, "0x1.a23df509d4747p+721"),
    (-740.0, "0x0.0000000000055p-1022"),
]
NORMAL = ["0x1.4e2d350c94e25p-2", "-0x1.03bf0672e3630p-2"]
LOG = [
    (0.75, "-0x1.269621134db92p-2"),
    (1.3333333333333333, "0x1.269621134db92p-2"),
    (0.3, "-0x1.34378fcbda721p+0"),
    (3.3, "0x1.31a4e7240c777p+0"),
    (1e-06, "-0x1.ba18a998fffa0p+3"),
    (12345.678, "0x1.2d79559791e31p+3"),
]


def test_stream_known_answer():
    keyed = Keyed(1, 2, 3, 4)
    assert [keyed.u64() for _ in range(10)] == [int(n, 16) for n in KNOWN]


def test_every_part_of_the_key_counts():
    firsts = {Keyed(*key).u64() for key in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]}
    assert len(firsts) == 5
    assert Keyed(-1, 0, 0, 0).u64() == Keyed(2**64 - 1, 0, 0, 0).u64()


def test_uniform_and_below_are_the_documented_functions_of_u64():
    numbers, keyed = Keyed(5, 0, 7, 0), Keyed(5, 0, 7, 0)
    assert keyed.uniform() == (numbers.u64() >> 11) * 2.0**-53
    assert keyed.below(1000) == numbers.u64() * 1000 >> 64
    assert keyed.uniform(-2.0, 6.0) == -2.0 + 8.0 * ((numbers.u64() >> 11) * 2.0**-53)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        keyed.below(0)


@pytest.mark.parametrize("x, bits", EXP)
def test_exp_known_answer(x, bits):
    assert exp(x).hex() == bits


@pytest.mark.parametrize("x, bits", LOG)
def test_log_known_answer(x, bits):
    assert log(x).hex() == bits


def test_exp_and_log_are_accurate():
    numbers = random.Random(3)
    for _ in range(5000):
        x = numbers.uniform(-700, 700)
        assert abs(exp(x) / math.exp(x) - 1) < 1e-15
        y = math.exp(numbers.uniform(-50, 50))
        assert abs(log(y) - math.log(y)) <= 1e-15 * abs(math.log(y))
    assert exp(-1e6) == 0.0 and exp(0.0) == 1.0 and log(1.0) == 0.0


def test_exp_and_log_refuse_what_has_no_answer():
    with pytest.raises(OverflowError):
        exp(710.0)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError):
            log(bad)
    with pytest.raises(ValueError):
        exp(math.nan)


@pytest.mark.parametrize("way", ["kernel", "hashlib"])
@pytest.mark.parametrize("together_until", [0, 5, 20])  # the number of steps in which all rows draw, before only some do
def test_rows_draw_what_each_draws_by_itself(way, together_until, monkeypatch, request):
    if way == "kernel":
        request.getfixturevalue("need_kernel")
    else:
        monkeypatch.setattr("csd_engine.arithmetic.keyed.kernel", lambda: None)
    generator = random.Random(1)
    indices, occurrences = np.array([3, 7, 2**40, 0, 3]), np.array([4, 0, 1, 2**33, 4])
    alone = [Keyed(-1, 2, int(i), int(o)) for i, o in zip(indices, occurrences)]
    together = KeyedRows(-1, 2, indices, occurrences)
    for step in range(60):
        rows = np.array(sorted(generator.sample(range(5), generator.randint(0, 5))), dtype=np.int64)
        who = None if step % 3 == 0 or step < together_until else rows
        chosen = alone if who is None else [alone[k] for k in rows]
        bounds = np.array([generator.choice([1, 2, 3, 1000, 2**32 - 1, 4_000_000_007]) for _ in chosen], dtype=np.int64)
        kind = step % 4
        if kind == 0:
            assert together.u64(who).tolist() == [one.u64() for one in chosen]
        elif kind == 1:
            assert together.uniform(-2.0, 6.5, rows=who).tolist() == [one.uniform(-2.0, 6.5) for one in chosen]
        elif kind == 2:
            assert together.below(bounds, rows=who).tolist() == [one.below(int(n)) for one, n in zip(chosen, bounds)]
        else:
            assert together.below(9, rows=who).tolist() == [one.below(9) for one in chosen]
    assert [int(n) for n in KeyedRows(1, 2, np.array([3]), np.array([4])).u64()] == [int(KNOWN[0], 16)]


@pytest.mark.parametrize("bound", [0, -1, 2**32, np.array([3, 0])])
def test_rows_refuse_bounds_that_they_cannot_take(bound):
    with pytest.raises(ValueError, match="bounds from 1 to"):
        KeyedRows(0, 0, np.zeros(2, np.int64), np.zeros(2, np.int64)).below(bound)


def test_normal_numbers():
    keyed = Keyed(1, 2, 3, 4)
    assert [keyed.normal().hex() for _ in range(2)] == NORMAL
