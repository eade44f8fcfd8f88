"""Known answers: these numbers decide what users' operators make of each sample, so they may never change."""

import hashlib

import numpy as np
import pytest

from csd_engine.arithmetic.rng import Rng, _quantiles

KEY = 0x0123456789ABCDEF
MASK = (1 << 64) - 1
KNOWN = [0.8552359210631292, -0.24777340334691011, 151, -1.3521291471741226, "f"]
KNOWN_ORDER = [1, 3, 0, 2, 4, 5]


def philox(key, count):
    """Philox4x64-10 (Salmon and others, SC11) with Python's integers. The counter begins at 1, as in numpy."""
    numbers = []
    for counter in range(1, count // 4 + 2):
        c, k = [counter, 0, 0, 0], [key, 0]
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(b >> 64) ^ c[1] ^ k[0], b & MASK, (a >> 64) ^ c[3] ^ k[1], a & MASK]
            k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
        numbers += c
    return numbers[:count]


@pytest.mark.parametrize("key", [0, KEY, MASK])
def test_the_bits_are_philoxs(key):
    u64 = philox(key, 11)
    assert Rng(key).random(11).tolist() == [(n >> 11) * 2.0**-53 for n in u64]
    assert Rng(key).integers(10, 1010, 11).tolist() == [10 + ((n >> 32) * 1000 >> 32) for n in u64]


def test_known_answers():
    rng = Rng(KEY)
    drawn = [rng.random(), rng.uniform(-2, 6), rng.integers(1000), rng.normal(), rng.choice("abcdefgh")]
    assert drawn == KNOWN
    assert rng.permutation(6).tolist() == KNOWN_ORDER


def test_the_quantiles_are_the_same_integers_everywhere():
    table = _quantiles()
    assert hashlib.blake2b(table.astype("<i8").tobytes(), digest_size=16).hexdigest() == "40636c539484cb21dde5f6a28ce3f0b8"
    assert (table == -table[::-1]).all() and (np.diff(table) > 0).all()


def test_five_draws_are_one_draw_of_five():
    for name, arguments in [("random", ()), ("uniform", (3, 4)), ("integers", (-5, 5)), ("normal", (1.0, 2.0))]:
        one, five = Rng(KEY), Rng(KEY)
        singly = [getattr(one, name)(*arguments) for _ in range(5)]
        assert singly == getattr(five, name)(*arguments, size=5).tolist()
        assert type(singly[0]) is (int if name == "integers" else float)
        assert getattr(Rng(KEY), name)(*arguments, size=(5, 1)).shape == (5, 1)
        assert one.random() == five.random()


@pytest.mark.parametrize("arguments", [(0,), (3, 3), (0, 2**32 + 1)])
def test_empty_and_huge_ranges_are_refused(arguments):
    with pytest.raises(ValueError, match="must hold 1 to"):
        Rng(KEY).integers(*arguments)
