from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddlp import decode


@pytest.fixture
def installed(need_kernel: None) -> Iterator[None]:
    """Postpone images in this process until the test ends."""
    assert decode.install(), decode.why_not()
    yield
    decode.uninstall()
