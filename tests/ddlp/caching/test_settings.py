"""How many bytes a cache may have."""

from __future__ import annotations

from typing import Any

import pytest

from ddlp import Cache


@pytest.mark.parametrize(
    "size, wanted",
    (
        (0, 0), (12345, 12345), ("12345", 12345), ("10K", 10240), ("1.5 GiB", 3 << 29), ("200G", 200 << 30), ("2t", 2 << 40),
        ("500 MB", 500 << 20),
    ),
)  # fmt: skip
def test_sizes(size: int | str, wanted: int) -> None:
    assert Cache("/nowhere", size).bytes == wanted


@pytest.mark.parametrize("size", ("", "G", "-5G", "5 bananas", "1e9", -1, 1.5, None, True))
def test_what_is_no_size(size: Any) -> None:
    with pytest.raises(ValueError, match="size="):
        Cache("/nowhere", size)


@pytest.mark.parametrize("keeps", ("indexes", "", None, True))
def test_what_cannot_be_kept(keeps: Any) -> None:
    with pytest.raises(ValueError, match="keeps="):
        Cache("/nowhere", "1G", keeps)


@pytest.mark.parametrize("epochs", (0, -1, 1.5, "10"))
def test_what_is_no_number_of_epochs(epochs: Any) -> None:
    with pytest.raises(ValueError, match="epochs="):
        Cache("/nowhere", "1G", epochs=epochs)
