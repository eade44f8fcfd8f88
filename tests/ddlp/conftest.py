"""One embedded engine for all tests of a file, and advice that is given anew in each test."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from ddlp.process import user_warnings
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice of an earlier test comes again."""
    monkeypatch.setattr(user_warnings, "SAID", set())


@pytest.fixture(params=["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def not_forked(request: pytest.FixtureRequest) -> str:
    """How processes start that are not forks of this one. The fork server has imported torch; spawned ones import it each."""
    multiprocessing.set_forkserver_preload(["torch", "torchvision"])
    return str(request.param)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The spool of an embedded engine for one file of tests. Loaders with this ``spool=`` share the engine."""
    spool = tmp_path_factory.mktemp("spool")
    held = acquire(EmbeddedOptions(spool=str(spool)))
    yield str(spool)
    held.release()
