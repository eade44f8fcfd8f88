"""A few small JPEG files for all tests of this directory."""

from __future__ import annotations

import pytest

from tests.ddlp.dropin.small_sets import write_images


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The JPEG files, in three class directories."""
    return write_images(tmp_path_factory.mktemp("images"))
