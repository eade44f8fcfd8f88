from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddlp import postponed


@pytest.fixture
def installed(need_kernel: None) -> Iterator[None]:
    """Postpone images in this process until the test ends."""
    assert postponed.install(), postponed.why_not()
    yield
    postponed.uninstall()
