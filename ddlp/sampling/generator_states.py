"""The states of random generators as plain data, which JSON can store, and a context that puts states back for a while."""

from __future__ import annotations

import base64
import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ddlp.sampling.sampler_order import default_device

States = dict[str, Any]
"""The state of each named torch generator, and of ``numpy`` and ``random`` if they are asked for."""


def capture(generators: Mapping[str, torch.Generator], python: bool) -> States:
    """Return the states of these torch generators; with ``python`` also those of numpy's and random's global ones."""
    states: States = {name: _encoded(generator.get_state()) for name, generator in generators.items()}
    if python:
        kind, keys, *rest = np.random.get_state()
        states["numpy"] = [kind, np.asarray(keys).tolist(), *rest]
        version, numbers, gauss = random.getstate()
        states["random"] = [version, list(numbers), gauss]
    return states


@contextlib.contextmanager
def restored(states: States, generators: Mapping[str, torch.Generator]) -> Iterator[None]:
    """Give the generators the captured ``states`` for a while, then their previous states again.

    Raises ValueError if a state is that of another kind of generator.
    """
    # One torch generator may have several names. All of its captured states are equal then.
    before = capture(generators, "random" in states)
    try:
        put(states, generators)
        yield
    finally:
        put(before, generators)


def draw_base_seed(generator: torch.Generator | None) -> int:
    """Draw the base seed as torch's iterators do, from this generator or torch's own."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def for_base_seed(seed: int) -> torch.Generator:
    """Return a new generator for torch's iterators to draw from, if the base seed that they want is known already.

    It is on torch's default device, since they draw there.
    """
    return torch.Generator(default_device()).manual_seed(seed % 2**63)


def put(states: States, generators: Mapping[str, torch.Generator]) -> None:
    """Give the generators the captured ``states``. Raises ValueError if a state is that of another kind of generator."""
    for name, generator in generators.items():
        if name in states:
            try:
                generator.set_state(_decoded(states[name]))
            except RuntimeError:
                raise ValueError(
                    f"the saved state of the generator {name!r} does not fit this loader's, on the {generator.device.type}. "
                    "Give the loader a generator on that device, or leave the state out and begin the epoch again "
                    "with set_epoch()"
                ) from None
    if "random" in states:
        kind, keys, *rest = states["numpy"]
        np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))
        version, numbers, gauss = states["random"]
        random.setstate((version, tuple(numbers), gauss))


def _encoded(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
