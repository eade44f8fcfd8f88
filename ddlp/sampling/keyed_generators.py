"""The global generators of torch, numpy and random. They are seeded from a sample's key, watched for draws, and put back."""

from __future__ import annotations

import _random
import contextlib
import ctypes
import functools
import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

__all__ = ["GENERATORS", "GlobalGenerator", "keyed_globals", "places", "put_back", "restored_globals", "states"]

_MASK32 = (1 << 32) - 1
_MT19937_BYTES = 625 * 4  # numpy's mt19937_state: 624 words and the position
_INSTANCE: Any = random.random.__self__  # type: ignore[attr-defined]  # the functions of `random` are its methods


class GlobalGenerator(Protocol):
    """A generator that user code draws from."""

    def state(self) -> Any:
        """Return its state, from which its next numbers follow. Two states compare by ==."""

    def put_back(self, state: Any) -> None:
        """Put it back into a state that `state` returned."""

    def seed(self, key: int) -> None:
        """Seed it from a 64-bit key."""


class _Torch:
    """torch's default generator on the CPU.

    Its memory is compared first, which takes 0.3 us. ``get_state()`` as bytes takes 2.4 us.
    """

    def __init__(self) -> None:
        self._twin = torch.Generator("cpu")
        self._memory = b""
        self._content = b""  # its state when its memory was `_memory`

    def state(self) -> bytes:
        memory = _memory_of_torch()
        if memory is None or memory.raw != self._memory:
            self._memory = b"" if memory is None else memory.raw  # read before the state: a thread may draw in between
            self._content = torch.default_generator.get_state().numpy().tobytes()
        return self._content

    def put_back(self, state: bytes) -> None:
        torch.default_generator.set_state(torch.from_numpy(np.frombuffer(bytearray(state), np.uint8)))

    def seed(self, key: int) -> None:
        """Seed it. torch.initial_seed() does not change: in a worker it stays the seed from DataLoader."""
        state = self._twin.manual_seed(key & _MASK32).get_state()  # it uses only 32 bits of a seed
        state.numpy().view(np.uint64)[0] = torch.default_generator.initial_seed()
        torch.default_generator.set_state(state)


@functools.cache
def _memory_of_torch() -> Any:
    """The memory of torch's default generator, including the normals that it keeps; None if this torch has it elsewhere."""
    other: Any = torch.Generator("cpu")
    words = other.get_state().numpy()[24 : 24 + 8 * 16].view(np.uint64).astype(np.uint32)  # the first of 624, 64 bits each
    address: int | None = getattr(other, "_cdata", None)
    at = -1 if address is None else ctypes.string_at(address, 256).find(words.tobytes())  # the object has 2,600 bytes
    if address is None or at < 24:
        return None
    length = 4 * 624 + 28  # and two normals
    memory = (ctypes.c_char * (24 + length)).from_address(address + at - 24)
    seen = {memory.raw}
    for _ in range(4):  # each must change it: numbers, a normal, and the pair's second normal, for which nothing else changes
        torch.randn((), dtype=torch.float64, device="cpu", generator=other)
        seen.add(memory.raw)
    if len(seen) != 5:
        return None
    default: Any = torch.default_generator
    return (ctypes.c_char * (24 + length)).from_address(default._cdata + at - 24)


class _Numpy:
    """numpy's global generator. If it was replaced by another kind than MT19937, it is left alone.

    Its words are read in their place in memory, which `BitGenerator.ctypes` gives: ``np.random.get_state()`` takes 45 us. numpy
    draws normals in pairs, and keeps the second one elsewhere. The next normal may then come without a change of the words.
    """

    def __init__(self) -> None:
        self._bits: Any = None
        self._words: Any = None  # None: the generator is left alone

    def words(self) -> Any:
        """Return the memory of the generator of today, whose words they are; None if it is left alone."""
        bits = np.random.mtrand.get_bit_generator()
        if bits is not self._bits:
            known = type(bits) is np.random.MT19937
            self._words = (ctypes.c_char * _MT19937_BYTES).from_address(bits.ctypes.state_address) if known else None
            self._bits = bits
        return self._words

    def state(self) -> tuple[bytes, float | None]:
        if self.words() is None:
            return b"", None
        kept = _normal_of_numpy()
        if kept is not None:
            return self._words.raw, kept.normal if kept.there else None
        state: Any = np.random.get_state()
        return self._words.raw, state[4] if state[3] else None

    def put_back(self, state: tuple[bytes, float | None]) -> None:
        if self.words() is None:
            return
        words, normal = state
        kept = _normal_of_numpy()
        if kept is not None:
            self._words.raw, kept.there, kept.normal = words, normal is not None, normal or 0.0
        elif normal is None:
            np.random.seed(0)  # makes it forget a normal that it keeps
            self._words.raw = words
        else:
            numbers = np.frombuffer(words, np.uint32)
            np.random.set_state(("MT19937", numbers[:624], int(numbers[624]), 1, normal))

    def seed(self, key: int) -> None:
        if self.words() is not None:
            np.random.seed(key >> 32)  # not the bits that torch uses, since torch has the same algorithm


class _Normal(ctypes.Structure):
    """The normal that a RandomState keeps for the next call, as it lies in numpy's memory; ``there``: whether it keeps one."""

    _fields_ = (("there", ctypes.c_int), ("normal", ctypes.c_double))


@functools.cache
def _normal_of_numpy() -> Any:
    """The `_Normal` of numpy's global generator; None if this numpy has it elsewhere."""
    other, own = np.random.RandomState(0), getattr(np.random.get_state, "__self__", None)
    drawn = other.standard_normal(2)[1]
    other.seed(0)
    other.standard_normal()  # it keeps the second one
    at = ctypes.string_at(id(other), np.random.RandomState.__basicsize__).find(struct.pack("d", drawn))
    if type(own) is not np.random.RandomState or at - _Normal.normal.offset < object.__basicsize__:
        return None
    seen = _Normal.from_address(id(other) + at - _Normal.normal.offset)
    states = [(seen.there, seen.normal)]
    other.standard_normal()
    states.append((seen.there, 0.0))
    seen.there, seen.normal = 1, 0.25
    states.append((1, other.standard_normal()))
    agrees = states == [(1, drawn), (0, 0.0), (1, 0.25)]
    return _Normal.from_address(id(own) + at - _Normal.normal.offset) if agrees else None


class _Python:
    """The generator of the module ``random``.

    CPython has its words within the object. To read them there takes 0.1 us; ``random.getstate()`` takes 10 us.
    """

    def state(self) -> Any:
        words = _words_of_python()
        return random.getstate() if words is None else (words.raw, _INSTANCE.gauss_next)

    def put_back(self, state: Any) -> None:
        words = _words_of_python()
        if words is None:
            random.setstate(state)
        else:
            words.raw, _INSTANCE.gauss_next = state

    def seed(self, key: int) -> None:
        random.seed(key)


@functools.cache
def _words_of_python() -> Any:
    """The memory of random's generator; None if this interpreter has it elsewhere."""
    other = random.Random(0)
    words = _words_within(other)
    before = words.raw
    first, moved = other.random(), words.raw != before
    words.raw = before
    return _words_within(_INSTANCE) if moved and other.random() == first else None


def _words_within(generator: random.Random) -> Any:
    header = object.__basicsize__
    return (ctypes.c_char * (_random.Random.__basicsize__ - header)).from_address(id(generator) + header)


_NUMPY = _Numpy()
GENERATORS: Mapping[str, GlobalGenerator] = {"torch": _Torch(), "numpy": _NUMPY, "random": _Python()}


def places() -> tuple[Any, ...] | None:
    """Return what each draw from one of the three generators changes; None if that is not known here.

    It is where they are in their words, some of the words, and the normals that they keep. To compare it takes a fifth of the
    time of three calls of ``state``.
    """
    known = _windows()
    if known is None or known.numpys._bit_generator is not known.bits:  # it was replaced since
        return None
    head, tail, words, normal, python = known.read
    return head.raw, tail.raw, words.raw, normal.there, python.raw, _INSTANCE.gauss_next


class _Windows(NamedTuple):
    """The parts of memory that `places` reads, and numpy's bit generator, whose they are."""

    numpys: Any
    bits: Any
    read: tuple[Any, Any, Any, Any, Any]


@functools.cache
def _windows() -> _Windows | None:
    of_torch, words, normal, python = _memory_of_torch(), _NUMPY.words(), _normal_of_numpy(), _words_of_python()
    numpys: Any = getattr(np.random.get_state, "__self__", None)
    bits = getattr(numpys, "_bit_generator", None)
    if bits is not np.random.mtrand.get_bit_generator():
        return None
    if of_torch is None or words is None or normal is None or python is None:
        return None
    head, tail = _part(of_torch, 0, 40), _part(of_torch, len(of_torch) - 28, 28)  # the place; the two normals
    return _Windows(numpys, bits, (head, tail, _part(words, len(words) - 24, 24), normal, _part(python, 0, 24)))


def _part(memory: Any, first: int, size: int) -> Any:
    return (ctypes.c_char * size).from_buffer(memory, first)


def states() -> dict[str, Any]:
    """Return the states of the three generators."""
    return {name: generator.state() for name, generator in GENERATORS.items()}


def put_back(states: Mapping[str, Any]) -> None:
    """Put generators back into these states."""
    for name, state in states.items():
        GENERATORS[name].put_back(state)


@contextlib.contextmanager
def restored_globals() -> Iterator[None]:
    """Put the global generators back after a while."""
    before = states()
    try:
        yield
    finally:
        put_back(before)


@contextlib.contextmanager
def keyed_globals(key: int) -> Iterator[None]:
    """Seed the global generators for a while, then put them back."""
    with restored_globals():
        for generator in GENERATORS.values():
            generator.seed(key)
        yield
