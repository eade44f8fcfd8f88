"""One embedded engine for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddlp.sources.engine.embedded import EmbeddedOptions
from ddlp.sources.engine.shared_engines import acquire


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The spool of an embedded engine for one file of tests. Loaders with this ``spool=`` share the engine."""
    spool = tmp_path_factory.mktemp("spool")
    held = acquire(EmbeddedOptions(spool=str(spool)))
    yield str(spool)
    held.release()
