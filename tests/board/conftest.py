"""Emulated boards for tests: `board` is one ready 32-bit ARM board for a session; `make_board` makes more for one test.

They need root, Debian or Ubuntu, and a kernel that allows namespaces and mounts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.board.boards import RAISED, Board, emulator, raise_board, state, why_not
from tests.ddlp.deploy.quick import quicken
from tests.needs import lacks


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(scope="session")
def needs_boards() -> Iterator[None]:
    reason = why_not()
    if reason is not None:
        lacks("emulated boards", reason)
    yield
    # After Ctrl-C during `up` or `down`: Python leaves those a quarter of a second before it kills them.
    for name in RAISED:
        if (state() / name).exists():
            emulator("down", "--name", name, check=False)


@pytest.fixture(scope="session")
def board(needs_boards: None) -> Iterator[Board]:
    """One ready armhf board (Python, numpy, Pillow, pyzmq) for all tests of the session. Tests leave it as they found it."""
    made = raise_board(f"s{os.getpid()}")
    yield made
    emulator("down", "--name", made.name, check=False)


@pytest.fixture
def make_board(needs_boards: None) -> Iterator[Callable[..., Board]]:
    """make_board("--bare", "--memory", "256M", ...) -> Board: a board for this test alone, which is removed after it."""
    names: list[str] = []

    def make(*options: str) -> Board:
        names.append(f"t{os.getpid()}-{len(names)}")
        return raise_board(names[-1], *options)

    yield make
    for name in names:
        if (state() / name).exists():
            emulator("down", "--name", name)
