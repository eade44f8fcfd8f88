"""Emulated boards for tests: `board` is one ready 32-bit ARM board for a session; `make_board` makes more for one test.

They need root, Debian or Ubuntu, and a kernel that allows namespaces and mounts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.board.boards import Board, emulator, raise_board, state, take_down, why_not
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
    take_down(os.getpid())


@pytest.fixture(scope="session")
def board(needs_boards: None) -> Board:
    """One ready armhf board (Python, numpy, Pillow, pyzmq) for all tests of the session. Tests leave it as they found it."""
    return raise_board("s")


@pytest.fixture
def make_board(needs_boards: None) -> Iterator[Callable[..., Board]]:
    """make_board("--bare", "--memory", "256M", ...) -> Board: a board for this test alone, which is removed after it."""
    names: list[str] = []

    def make(*options: str) -> Board:
        board = raise_board(str(len(names)), *options)
        names.append(board.name)
        return board

    yield make
    for name in names:
        if (state() / name).exists():
            emulator("down", "--name", name)
