"""Sine, cosine, tangent and arctangent of doubles, correctly rounded, so every platform gives the same bits.

A C library's own functions differ in the last bit between platforms: glibc rounds one to three of a thousand angles to the
other neighbour. Here the series are summed in integers, with more bits than a double has and a bound on the error. The result
is rounded only where all numbers within that bound round to the same double; otherwise more bits are taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Tuple

__all__ = ["arctangent", "sine_cosine", "tangent"]

_PI_BITS = 512
_PI = int(  # floor(pi * 2**512)
    "3243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89"
    "452821e638d01377be5466cf34e90c6cc0ac29b7c97c50dd3f84d5b5b5470917", 16
)  # fmt: skip
_TINY = 2.0**-27  # below it the second term of each series is less than half a last bit
_FARTHEST = 1e6  # radians
_INVERSE_HALF_PI = 2 / math.pi
_PRECISIONS = range(88, _PI_BITS, 64)  # in bits; three digits of a Python integer suffice for nearly every angle


def sine_cosine(x: float) -> Tuple[float, float]:
    """Sine and cosine of x radians, correctly rounded. ValueError beyond 1e6 radians, and for NaN."""
    if -_TINY < x < _TINY:
        return x, 1.0
    for bits in _PRECISIONS:
        sine, cosine, error = _bounded(x, bits)
        least, other = float(sine - error), float(cosine - error)
        if least == float(sine + error) and other == float(cosine + error):
            return math.ldexp(least, -bits), math.ldexp(other, -bits)
    raise _undecided(x)


def tangent(x: float) -> float:
    """Tangent of x radians, correctly rounded. ValueError beyond 1e6 radians, and for NaN."""
    if -_TINY < x < _TINY:
        return x
    for bits in _PRECISIONS:
        sine, cosine, error = _bounded(x, bits)
        if abs(cosine) > error:
            least = (abs(sine) - error) / (abs(cosine) + error)  # Python divides integers with correct rounding
            if least == (abs(sine) + error) / (abs(cosine) - error):
                return least if (sine < 0) == (cosine < 0) else -least
    raise _undecided(x)


def arctangent(x: float) -> float:
    """The angle in radians whose tangent is x, correctly rounded. ValueError unless x is finite."""
    if not -math.inf < x < math.inf:
        raise ValueError(f"arctangent takes finite numbers, got {x!r}; check the caller's parameters")
    if -_TINY < x < _TINY:
        return x
    up, down = x.as_integer_ratio()
    near = math.atan(x)  # the C library's, which may differ in its last bits
    for bits in _PRECISIONS:
        sine, cosine, error = _bounded(near, bits)
        rest = (up * cosine - down * sine << bits) // (down * cosine + up * sine)  # the tangent of what is missing there
        angle, error = int(math.ldexp(near, bits)) + rest, 2 * error + 4 + (abs(rest) ** 3 >> 2 * bits)
        if float(angle - error) == float(angle + error):
            return math.ldexp(float(angle - error), -bits)
    raise _undecided(x)


@functools.lru_cache(maxsize=None)
def _series(bits: int) -> Tuple[int, Tuple[Tuple[int, int], ...]]:
    """pi / 2, and 1 / (2k + 1)! and 1 / (2k)! from the last k to 0, as multiples of 2**-bits, rounded down."""
    terms, factorial = [], 1
    for n in itertools.count(1, 2):
        terms.append(((1 << bits) // (factorial * n), (1 << bits) // factorial))
        factorial *= n * (n + 1)
        if not terms[-1][1]:
            return _PI >> (_PI_BITS + 1 - bits), tuple(reversed(terms))
    raise AssertionError("unreachable")


def _bounded(x: float, bits: int) -> Tuple[int, int, int]:
    """Sine and cosine of x radians, and the bound on their errors, as multiples of 2**-bits."""
    if not -_FARTHEST <= x <= _FARTHEST:
        raise ValueError(f"angles may have up to {_FARTHEST:.0e} radians, got {x!r}; check the caller's parameters")
    half_pi, terms = _series(bits)
    quarters = math.floor(x * _INVERSE_HALF_PI + 0.5)
    rest = int(math.ldexp(x, bits)) - quarters * half_pi
    square = rest * rest >> bits
    sine = cosine = 0
    for of_sine, of_cosine in terms:
        sine = of_sine - (sine * square >> bits)
        cosine = of_cosine - (cosine * square >> bits)
    sine = rest * sine >> bits
    quarter = quarters & 3
    if quarter & 1:
        sine, cosine = cosine, -sine
    if quarter & 2:
        sine, cosine = -sine, -cosine
    # `rest` is off by one for x and by one for each quarter. Each sum is off by three for each step (the term, the shift, the
    # square), of which the next step takes less than two thirds: together by less than nine.
    return sine, cosine, abs(quarters) + 16


def _undecided(x: float) -> AssertionError:
    return AssertionError(f"{x!r} lies nearer to a boundary of rounding than any double can; please report this")
