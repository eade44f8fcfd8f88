import numpy as np
import pytest

from csd_engine.keyed import KeyedRows


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 600])
def test_the_numbers_are_blake2bs(kernel, variant, count):
    random = np.random.RandomState(count)
    keys = random.randint(0, 2**63, (count, 3)).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    seed, epoch = 2**64 - 3, 2**40 + 1
    guarded = np.full((count + 2, 8), 7, dtype=np.uint64)
    kernel.keyed(seed, epoch, keys, guarded[1:-1])
    assert np.array_equal(guarded[1:-1], KeyedRows(seed, epoch, [], [])._hashed(keys) if count else guarded[1:-1])
    assert (guarded[0] == 7).all() and (guarded[-1] == 7).all()


@pytest.mark.parametrize(
    "keys, out",
    [(np.zeros((2, 3), np.int64), np.zeros((2, 8), np.uint64)), (np.zeros((2, 4), np.uint64), np.zeros((2, 8), np.uint64)),
     (np.zeros((2, 3), np.uint64), np.zeros((3, 8), np.uint64)),
     (np.zeros((4, 3), np.uint64)[::2], np.zeros((2, 8), np.uint64))],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(kernel, keys, out):
    with pytest.raises(ValueError, match="keys"):
        kernel.keyed(0, 0, keys, out)
