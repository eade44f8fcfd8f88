"""A few small JPEG files and one embedded engine for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddlp.sources.engine.embedded import EmbeddedOptions
from ddlp.sources.engine.shared_engines import acquire
from tests.ddlp.dropin.small_sets import write_images


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The JPEG files, in three class directories."""
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The spool of an embedded engine. Loaders with this ``spool=`` share it. It ends when another directory's tests begin."""
    spool = tmp_path_factory.mktemp("spool")
    held = acquire(EmbeddedOptions(spool=str(spool)))
    yield str(spool)
    held.release()
