"""Random numbers for a user's operators: named as numpy's Generator names them, the same bits on every platform.

numpy promises the bits of its bit generators, not those of its distributions, and a libm's log and cos differ between
platforms. So Philox gives the bits (numpy's, one 64-bit number a draw) and integers and IEEE operations do the rest.
"""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence, Tuple, Union

import numpy as np

__all__ = ["Rng"]

Size = Union[None, int, Tuple[int, ...]]

_UNIT = 2.0**-53
_QUANTILE_BITS = 16
_QUANTILE_ONE = 2.0**24  # the quantiles' unit; a libm's rounding changes a ten millionth of it
_NORMAL = 0.7071067811865476 / _QUANTILE_ONE  # the square root of a half


class Rng:
    """The draws of one call of an operator.

    Each number takes one 64-bit number of the stream, so five draws give what one draw of five gives. ``size`` is None
    for a Python number, or an array's shape.

    Args:
        key: 64 bits, which decide all draws.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._stream: Any = None

    def _u64(self, size: Size) -> np.ndarray:
        if self._stream is None:  # 30 us that a call without draws saves
            self._stream = np.random.Philox(key=self._key)
        shape = () if size is None else (size,) if isinstance(size, int) else tuple(size)
        count = 1
        for length in shape:
            count *= int(length)
        numbers: np.ndarray = self._stream.random_raw(count)
        return numbers.reshape(shape)

    def random(self, size: Size = None) -> Any:
        """Uniform in [0, 1), 53 bits."""
        values = (self._u64(size) >> np.uint64(11)).astype(np.float64) * _UNIT
        return float(values) if size is None else values

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Size = None) -> Any:
        """Uniform in [low, high)."""
        return low + (high - low) * self.random(size)

    def integers(self, low: int, high: Optional[int] = None, size: Size = None) -> Any:
        """Uniform int64 in [low, high), or in [0, low) without ``high``; ValueError unless there are 1 to 2**32 of them."""
        first, end = (0, low) if high is None else (low, high)
        count = int(end) - int(first)
        if not 1 <= count <= 2**32:
            raise ValueError(f"integers from {first} to {end}: the range must hold 1 to 2**32 integers")
        upper = self._u64(size) >> np.uint64(32)
        values = ((upper * np.uint64(count)) >> np.uint64(32)).astype(np.int64) + int(first)
        return int(values) if size is None else values

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Size = None) -> Any:
        """Normal: the sum of two of 65536 quantiles each, so nothing lies beyond 6 sigma."""
        numbers, quantiles = self._u64(size), _quantiles()
        first = quantiles[(numbers >> np.uint64(48)).astype(np.intp)]
        second = quantiles[((numbers >> np.uint64(32)) & np.uint64(0xFFFF)).astype(np.intp)]
        values = loc + scale * ((first + second) * _NORMAL)
        return float(values) if size is None else values

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.integers(len(options))]

    def permutation(self, n: int) -> np.ndarray:
        """The integers below n in a random order."""
        return np.argsort(self._u64(n), kind="stable").astype(np.int64)


@functools.lru_cache(maxsize=1)
def _quantiles() -> np.ndarray:
    """The middles of 65536 equal parts of the normal distribution, as integers: int64, antisymmetric."""
    import statistics  # imported here: it takes time at a worker's start, and memory; few jobs need it

    inverse = statistics.NormalDist().inv_cdf
    count = 1 << _QUANTILE_BITS
    upper = [round(inverse((k + 0.5) / count) * _QUANTILE_ONE) for k in range(count // 2, count)]
    return np.array([-value for value in reversed(upper)] + upper, dtype=np.int64)
