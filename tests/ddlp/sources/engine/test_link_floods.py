"""A hostile engine sends too much: this host's memory stays bounded, and the engine counts as lost."""

from __future__ import annotations

import os
from pathlib import Path
from queue import SimpleQueue

import pytest

from csd_engine.errors import EngineGone
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from ddlp.sources.engine.link import EngineLink
from tests.engine_memory import Peak
from tests.engine_process import Recipe, until
from tests.hostile_engine import flooding

LIMIT_BYTES = 200 << 20  # what a fast network brings in a second; without limits it would be a GiB and more

pytestmark = pytest.mark.usefixtures("hard_limit")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("large frames", "broken off"),
        ("many frames", "no end"),
        ("files", "asks for"),
        ("answers", "answered the probe"),
        ("parts", "bytes from 0 of fetch 0"),
    ],
)
@pytest.mark.some(2)
def test_memory_stays_bounded(tmp_path: Path, kind: str, said: str) -> None:
    keys = make_keys(tmp_path / "keys")
    names = [f"{os.urandom(500).hex()}.jpg" for _ in range(17_000 if kind == "files" else 10)]  # hardly compressible
    recipe = Recipe(tmp_path, names, tmp_path / "manifest")
    pair = load_pair(keys / "host.key_secret")
    with flooding(keys, kind) as address, Peak(lambda: [os.getpid()]) as peak:
        link = EngineLink(address, load_public(keys / "server.key"), pair.public, pair.secret)
        until(lambda: peak.resident)
        before = peak.resident
        try:
            with pytest.raises(EngineGone, match=said):
                recipe.open(link, SimpleQueue()).probe(0, 0, [(0, 0)], 30.0)
        finally:
            link.close()
    assert peak.resident - before < LIMIT_BYTES
