"""The global generators: their states can be restored to the bit, and a key seeds them always alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ddlp.sampling import keyed_generators as seeding
from ddlp.sampling.keyed_generators import GENERATORS, keyed_globals, places

DRAWS = {
    "torch": [
        lambda: torch.rand(3).tolist(), lambda: torch.randn(()).item(), lambda: torch.randperm(7).tolist(),
        lambda: torch.randn((), dtype=torch.float64).item(),
    ],
    "numpy": [lambda: np.random.rand(3).tolist(), lambda: np.random.randn(), lambda: np.random.permutation(7).tolist()],
    "random": [random.random, lambda: random.gauss(0, 1), lambda: random.sample(range(9), 5)],
}
memory_of_torch = seeding._memory_of_torch.__wrapped__
EACH = [pytest.param(name, draw, id=f"{name}{k}") for name, draws in DRAWS.items() for k, draw in enumerate(draws)]


@pytest.fixture(autouse=True, params=["in memory", "by their functions"])
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test runs twice: with the generators' states read from memory, and read by the libraries' functions."""
    for words in ("_words_of_python", "_memory_of_torch", "_normal_of_numpy"):
        if request.param == "in memory":
            assert getattr(seeding, words)() is not None
        else:
            monkeypatch.setattr(seeding, words, lambda: None)
    before = {name: generator.state() for name, generator in GENERATORS.items()}
    yield
    for name, generator in GENERATORS.items():
        generator.put_back(before[name])


@pytest.mark.parametrize(("name", "draw"), EACH)
@pytest.mark.parametrize("drawn_before", ["nothing", "a normal", "the same"])
def test_each_draw_is_seen_and_taken_back(name: str, draw: Any, drawn_before: str) -> None:
    """Drawing a normal number leaves a second one. The next draw may take that without changing anything else in the state."""
    generator = GENERATORS[name]
    if drawn_before != "nothing":
        (DRAWS[name][1] if drawn_before == "a normal" else draw)()
    before = generator.state()
    first = draw(), draw()
    assert generator.state() != before
    generator.put_back(before)
    assert generator.state() == before
    assert (draw(), draw()) == first
    for other in GENERATORS.keys() - {name}:
        state = GENERATORS[other].state()
        draw()
        assert GENERATORS[other].state() == state


@pytest.mark.parametrize("name", GENERATORS)
def test_a_key_gives_the_same_numbers_whatever_was_drawn_before(name: str) -> None:
    generator, found = GENERATORS[name], []
    for key in (5 << 32 | 7, 5 << 32 | 7, 6 << 32 | 8):
        DRAWS[name][1]()
        generator.seed(key)
        found.append([draw() for draw in DRAWS[name]])
    assert found[0] == found[1] != found[2]


def test_torch_and_numpy_which_have_one_algorithm_draw_other_bits() -> None:
    GENERATORS["torch"].seed(5 << 32 | 7)
    GENERATORS["numpy"].seed(5 << 32 | 7)
    assert torch.randint(2**32, (4,)).tolist() != np.random.randint(2**32, size=4, dtype=np.uint32).tolist()


def test_torchs_initial_seed_stays() -> None:
    for seed in (3, 2**63 - 1, -5):
        torch.manual_seed(seed)
        before = torch.initial_seed()
        GENERATORS["torch"].seed(2**64 - 1)
        assert torch.initial_seed() == before


def test_another_generator_in_numpys_place_is_left_alone() -> None:
    bits = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        with keyed_globals(7):
            found = [np.random.rand() for _ in range(2)]
        assert found == np.random.Generator(np.random.PCG64(3)).random(2).tolist()
    finally:
        np.random.set_bit_generator(bits)


def test_its_memory_is_found_where_tensors_are_made_on_another_device() -> None:
    with torch.device("meta"):
        assert memory_of_torch() is not None


def test_keyed_for_a_while() -> None:
    np.random.randn()  # leaves a second normal number
    states = [generator.state() for generator in GENERATORS.values()]
    found = []
    for _ in range(2):
        with keyed_globals(9):
            found.append([draw() for draws in DRAWS.values() for draw in draws])
        assert [generator.state() for generator in GENERATORS.values()] == states
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "draw"), EACH)
def test_each_draw_and_each_seed_changes_the_places(name: str, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "_windows", seeding._windows.__wrapped__)
    if seeding._words_of_python() is None:  # they are read by the libraries' functions
        assert places() is None
        return
    for _ in range(700):  # once around all of the words, and each of a pair of normals
        before = places()
        assert before is not None and before == places()
        draw()
        assert places() != before
    for key in range(20):
        before = places()
        GENERATORS[name].seed(key << 32 | key)  # numpy takes the upper half
        assert places() != before
