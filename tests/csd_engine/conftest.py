"""Fixtures of the engine's tests: a small JPEG set, and engine processes that end with the test."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine_process import EngineProcess, Recipe, alive, make_jpegs, until


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A root and 24 relative paths of JPEG files of different sizes in 3 classes."""
    root = tmp_path_factory.mktemp("jpegs")
    return root, make_jpegs(root, np.random.default_rng(7))


@pytest.fixture
def recipe(jpegs: tuple[Path, list[str]], tmp_path: Path) -> Recipe:
    """Batches of 8 samples of 32x32 pixels of the JPEG set."""
    return Recipe(*jpegs, tmp_path / "manifest")


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path is short enough for a socket's."""
    path = Path(tempfile.mkdtemp(prefix="e-"))
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def engines(home: Path) -> Iterator[Callable[..., EngineProcess]]:
    """Start engines; afterwards each has ended cleanly, with its workers, socket and job directories gone."""
    started: list[EngineProcess] = []

    def begin(*arguments: str, **options: object) -> EngineProcess:
        engine = EngineProcess(home, *arguments, **options)  # type: ignore[arg-type]
        started.append(engine)
        return engine

    yield begin
    for engine in started:
        workers = engine.children()
        killed = engine.process.poll() is not None
        status = engine.end()
        until(lambda w=workers: not any(map(alive, w)), 30, "the end of its workers")
        if not killed:
            assert status == 0, engine.log
            assert not (home / "s").exists()
            assert not list(engine.spool.glob("job-*"))
            assert "Traceback" not in engine.log, engine.log


@pytest.fixture
def home() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., EngineProcess]]:
    """Starts engines of a test."""
    with engines(home) as begin:
        yield begin


@pytest.fixture(scope="module")
def module_start() -> Iterator[Callable[..., EngineProcess]]:
    """Starts an engine for the tests of a module that leave it as it was."""
    with short_directory() as path, engines(path) as begin:
        yield begin
