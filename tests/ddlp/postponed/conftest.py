from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddlp import postponed


@pytest.fixture
def installed(need_kernel: None) -> Iterator[None]:
    """Postponed images in this process, until the test is over."""
    assert postponed.install(), postponed.why_not()
    yield
    postponed.uninstall()
