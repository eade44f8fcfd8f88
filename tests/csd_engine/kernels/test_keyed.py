import numpy as np
import pytest


@pytest.mark.parametrize(
    "keys, out",
    [(np.zeros((2, 3), np.int64), np.zeros((2, 8), np.uint64)), (np.zeros((2, 4), np.uint64), np.zeros((2, 8), np.uint64)),
     (np.zeros((2, 3), np.uint64), np.zeros((3, 8), np.uint64)),
     (np.zeros((4, 3), np.uint64)[::2], np.zeros((2, 8), np.uint64))],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(kernel, keys, out):
    with pytest.raises(ValueError, match="keys"):
        kernel.keyed(0, 0, keys, out)
