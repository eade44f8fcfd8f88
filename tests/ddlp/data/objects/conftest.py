"""A server with a few small images, in two classes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.ddlp.dropin.small_sets import write_images
from tests.object_server import ObjectServer, files_below, index_of

pytest.importorskip("obstore")


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> dict[str, bytes]:
    """Images below ``train/``, by key."""
    root = tmp_path_factory.mktemp("images")
    write_images(root)
    return files_below(root, "train/")


@pytest.fixture
def server(images) -> Iterator[ObjectServer]:
    with ObjectServer(images) as one:
        one.objects["train/index.txt"] = index_of({key.removeprefix("train/"): body for key, body in images.items()})
        yield one
    until = time.monotonic() + 10
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("ddlp-objects")]:
        assert time.monotonic() < until, left
        time.sleep(0.01)
