"""Random numbers that depend on (seed, epoch, sample index, occurrence) alone, the same on every platform.

Python's and numpy's generators may change between versions and a libm's exp and log between platforms, so neither is
used: blake2b in counter mode gives the bits, and ``exp`` and ``log`` are made of IEEE operations that round correctly
everywhere.
"""

from __future__ import annotations

import functools
import math
import struct
from hashlib import blake2b
from typing import List, Optional, Sequence, Union

import numpy as np

from csd_engine.arithmetic.angles import sine_cosine
from csd_engine.kernels import kernel

__all__ = ["Keyed", "KeyedRows", "exp", "log", "single", "single_exp", "single_log"]

_MASK = (1 << 64) - 1
_KEY = struct.Struct("<5Q")
_NUMBERS = struct.Struct("<8Q")
_SINGLE = struct.Struct("<f")
_PERSON = b"ddlp keyed 1"

# ln 2 in two parts; the high part ends in zeros, so that k * _LN2_HIGH is exact for every exponent k of a double.
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_INVERSE_LN2 = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_EXP_TERMS = tuple(float(n) for n in range(14, 0, -1))  # |r| <= ln(2) / 2: r**15 / 15! < 1e-19
_LOG_TERMS = 12  # |t| <= 0.1716: t**24 / 25 < 1e-19


class Keyed:
    """The stream of random numbers of one sample.

    Args:
        seed: the loader's seed; any integer, taken modulo 2**64.
        epoch: the epoch's number, likewise.
        index: the sample's source index, likewise.
        occurrence: how often that index came before in this epoch, likewise.
    """

    __slots__ = ("_key", "_counter", "_numbers")

    def __init__(self, seed: int, epoch: int, index: int, occurrence: int) -> None:
        self._key = (seed & _MASK, epoch & _MASK, index & _MASK, occurrence & _MASK)
        self._counter = 0
        self._numbers: List[int] = []

    def view(self, views: int) -> int:
        """Which of the ``views`` views of its sample this stream is for. Views of one sample have consecutive occurrences."""
        return self._key[3] % views

    def of_view(self, view: int, views: int) -> Keyed:
        """Return a new stream, that of one of the ``views`` views of this stream's sample."""
        seed, epoch, index, occurrence = self._key
        return Keyed(seed, epoch, index, occurrence * views + view)

    def u64(self) -> int:
        """Next integer, uniform in [0, 2**64)."""
        if not self._numbers:
            block = blake2b(_KEY.pack(*self._key, self._counter), digest_size=64, person=_PERSON)
            self._numbers = list(_NUMBERS.unpack(block.digest()))
            self._numbers.reverse()
            self._counter += 1
        return self._numbers.pop()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Next number, uniform in [low, high) with 53 bits."""
        unit = (self.u64() >> 11) * 2.0**-53
        return low + (high - low) * unit

    def single(self, low: float, high: float) -> float:
        """Next number, uniform in [low, high], in single precision as the numbers of torch's ``uniform_(low, high)``."""
        return single(self.uniform(low, high))

    def normal(self) -> float:
        """Next number of a standard normal distribution, by Box and Muller's method."""
        radius = math.sqrt(-2.0 * _log(1.0 - self.uniform()))
        return radius * sine_cosine(2.0 * math.pi * self.uniform())[1]

    def below(self, n: int) -> int:
        """Next integer, uniform in [0, n) (to within n / 2**64); ValueError unless n is at least 1."""
        if n < 1:
            raise ValueError(f"Keyed.below needs a bound of at least 1, got {n!r}; check the caller's range")
        return (self.u64() * n) >> 64

    def weighted(self, weights: Sequence[float]) -> int:
        """Next index of a weight, as likely as the weight's share of their sum; ValueError unless one is positive."""
        left = self.uniform() * sum(weights)
        for i, weight in enumerate(weights):
            if left < weight:
                return i
            left -= weight
        return max(i for i, weight in enumerate(weights) if weight > 0.0)  # rounding used up the sum

    def permutation(self, n: int) -> List[int]:
        """Next order of 0 .. n - 1, all equally likely; Fisher-Yates from the end."""
        order = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order


class KeyedRows:
    """The streams of many samples side by side: row k gives what ``Keyed(seed, epoch, indices[k], occurrences[k])`` gives.

    Each method takes ``rows``: the positions (int64) of the streams to draw from, each at most once; None for all. It returns
    one number for each of them. The other streams stay where they are.

    Args:
        seed, epoch: as Keyed's.
        indices, occurrences: int64 (n,), as Keyed's.
    """

    def __init__(self, seed: int, epoch: int, indices: np.ndarray, occurrences: np.ndarray) -> None:
        self._seed, self._epoch = seed & _MASK, epoch & _MASK
        self._keys = np.zeros((len(indices), 3), dtype=np.uint64)
        self._keys[:, 0] = indices
        self._keys[:, 1] = occurrences
        self._numbers = np.zeros((len(indices), 8), dtype=np.uint64)
        self._all = np.arange(len(indices))
        self._used = 0  # numbers that each row has drawn, while all rows have drawn equally many
        self._used_each: Optional[np.ndarray] = None  # int64 (n,): the count of each row, once they differ

    def __len__(self) -> int:
        return len(self._all)

    def _drawn(self, keys: np.ndarray) -> np.ndarray:
        """The next eight numbers of streams, uint64 (n, 8); keys uint64 (n, 3): index, occurrence, eights drawn before."""
        fast = kernel()
        if fast is None:
            return self._hashed(keys)
        numbers = np.empty((len(keys), 8), dtype=np.uint64)
        fast.keyed(self._seed, self._epoch, keys, numbers)
        return numbers

    def _hashed(self, keys: np.ndarray) -> np.ndarray:
        """Do what the kernel's `keyed` does, without a kernel."""
        # All rows' keys begin alike: that part is hashed once.
        begun = blake2b(struct.pack("<2Q", self._seed, self._epoch), digest_size=64, person=_PERSON)
        packed, copy, digests = keys.astype("<u8", copy=False).tobytes(), begun.copy, []
        for at in range(0, len(packed), 24):
            block = copy()
            block.update(packed[at : at + 24])
            digests.append(block.digest())
        return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 8)

    def u64(self, rows: Optional[np.ndarray] = None) -> np.ndarray:
        """Next integers, uint64, uniform in [0, 2**64). Not to be written to."""
        if rows is None and self._used_each is None:
            place = self._used & 7
            if place == 0:
                self._keys[:, 2] = self._used >> 3
                self._numbers = self._drawn(self._keys)
            self._used += 1
            return self._numbers[:, place]
        if self._used_each is None:
            self._used_each = np.full(len(self), self._used)
            self._numbers = self._numbers.copy()  # callers have views of it
        rows, used = self._all if rows is None else rows, self._used_each
        places = used[rows] & 7
        spent = rows[places == 0]
        if len(spent):
            keys = self._keys[spent]
            keys[:, 2] = used[spent] >> 3
            self._numbers[spent] = self._drawn(keys)
        used[rows] += 1
        numbers: np.ndarray = self._numbers[rows, places]
        return numbers

    def uniform(self, low: float = 0.0, high: float = 1.0, rows: Optional[np.ndarray] = None) -> np.ndarray:
        """Next numbers, float64, uniform in [low, high) with 53 bits."""
        unit = (self.u64(rows) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * unit

    def single(self, low: float, high: float, rows: Optional[np.ndarray] = None) -> np.ndarray:
        """Next numbers, float64, uniform in [low, high], each rounded to single precision."""
        return self.uniform(low, high, rows).astype(np.float32).astype(np.float64)

    def below(self, n: Union[int, np.ndarray], rows: Optional[np.ndarray] = None) -> np.ndarray:
        """Next integers, int64, uniform in [0, n); ``n`` for all or one each, from 1 to 2**32 - 1, else ValueError."""
        bounds = np.asarray(n, dtype=np.int64)
        least, most = (n, n) if isinstance(n, int) else (int(bounds.min()), int(bounds.max())) if bounds.size else (1, 1)
        if not 1 <= least <= most < 1 << 32:
            raise ValueError(f"KeyedRows.below needs bounds from 1 to 2**32 - 1, got {n!r}; check the caller's range")
        number, half = self.u64(rows), np.uint64(32)
        bound = bounds.astype(np.uint64)
        low = (number & np.uint64(0xFFFFFFFF)) * bound >> half
        return (((number >> half) * bound + low) >> half).astype(np.int64)  # (number * bound) >> 64, in halves


def single(x: float) -> float:
    """x rounded to single precision. OverflowError beyond its range."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(x))[0]  # in a third of the time that numpy's float32 takes
    return rounded


def single_exp(x: float) -> float:
    """`exp`, rounded to single precision."""
    return single(exp(x))


@functools.lru_cache(maxsize=256)  # as `log`
def single_log(x: float) -> float:
    """The natural logarithm of x in single precision, rounded likewise; ValueError as `log`."""
    return single(log(single(x)))


def exp(x: float) -> float:
    """e**x by +, -, * and ldexp only: the same bits on every platform, relative error below 1e-15.

    Raises OverflowError above 709.78 as ``math.exp`` does, and ValueError for NaN.
    """
    if x != x:
        raise ValueError("exp of NaN; check the caller's parameters")
    if x < -745.2:
        return 0.0
    k = math.floor(min(x, 800.0) * _INVERSE_LN2 + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = 1.0
    for n in _EXP_TERMS:
        total = 1.0 + r * total / n
    return math.ldexp(total, k)


@functools.lru_cache(maxsize=256)  # its arguments are operators' parameters: the same ones for every sample
def log(x: float) -> float:
    """Natural logarithm by +, -, *, / and frexp only: the same bits on every platform, error below 1e-15 relative.

    Raises ValueError unless x is positive and finite.
    """
    return _log(x)


def _log(x: float) -> float:
    """`log` of any numbers: log(m) = 2 * atanh((m - 1) / (m + 1))."""
    if not 0.0 < x < math.inf:
        raise ValueError(f"log needs a positive finite number, got {x!r}; check the caller's parameters")
    mantissa, exponent = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa *= 2.0
        exponent -= 1
    t = (mantissa - 1.0) / (mantissa + 1.0)
    square = t * t
    total = 0.0
    for n in range(_LOG_TERMS, -1, -1):
        total = 1.0 / (2 * n + 1) + square * total
    return exponent * _LN2_HIGH + (2.0 * t * total + exponent * _LN2_LOW)
