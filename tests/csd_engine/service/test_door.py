"""What peers do at the engine's door ends no engine: connections without a word, many of them, and keys that were withdrawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from csd_engine.protocol import codec as say
from tests.engine_process import EngineProcess, Recipe, until
from tests.hostile_client import HostileClient, list_client, silent_connections

FEW = ("sh", "-c", 'ulimit -n 150; exec "$@"', "few")  # the soft limit and the hard one


def test_silent_connections_end_no_engine_and_new_hosts_come_in(
    recipe: Recipe, start: Callable[..., EngineProcess], home: Path
) -> None:
    engine = start("--root", str(recipe.root), listen="tcp://127.0.0.1:0", within=FEW)
    pair = list_client(engine.keys, "second")
    with HostileClient(engine.address, engine.keys) as first, contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(silent_connections(engine.address, 100))
            first.ping()
        with HostileClient(engine.address, engine.keys, pair) as second:
            assert isinstance(second.ping(), say.Pong)
            manifest = recipe.manifest.read_bytes()
            parts = (recipe.pipeline.to_data(), recipe.dataset.to_data(), recipe.layout.to_data())
            assert isinstance(second.open_job("j", *parts, [manifest]), say.JobOpen)
        first.ping()
    assert engine.process.poll() is None
