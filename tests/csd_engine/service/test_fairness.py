"""Two hosts on one engine, over real connections: the engine tells by its key which host a connection belongs to."""

from __future__ import annotations

from collections import Counter
from functools import partial
from queue import SimpleQueue

import pytest

from csd_engine.protocol import codec as say
from csd_engine.protocol.aead import ciphers
from tests.at_once import at_once
from tests.engine_process import Recipe, wait_for
from tests.hostile_client import HostileClient, list_client, sealed_parts


def test_a_host_with_four_connections_gets_no_more_than_one_with_one(start, recipe, monkeypatch):
    monkeypatch.setenv("DDLP_KERNEL", "off")  # batches must take longer than all jobs' requests
    engine = start("--root", str(recipe.root), "--slowdown", "5", listen="tcp://127.0.0.1:*")
    other = list_client(engine.keys, "other")
    events = SimpleQueue()

    def note(host, event):
        if isinstance(event, say.Published):
            events.put((host, event))

    links, jobs = [], []
    for host in ("many", "many", "many", "many", "one"):
        links.append(engine.link(other if host == "one" else None))
        dataset = (recipe.pipeline, recipe.dataset, recipe.layout, lambda _: recipe.manifest)
        jobs.append(links[-1].open_job(*dataset, partial(note, host)))
    for job in jobs:
        for number in range(40):
            recipe.lease(job, number, number)
    hosts = [wait_for(events, tuple)[0] for _ in range(50)][10:]  # the first ones began before every host had asked
    assert 16 <= hosts.count("one") <= 24, hosts
    for link in links:
        link.close()


@pytest.mark.skipif(not ciphers(), reason="no cipher for sealed parts")
def test_a_host_with_many_connections_for_parts_gets_no_more_than_one_with_one(start, jpegs, tmp_path):
    """A part is a turn. Each of many connections was served once before the only one of the other host was looked at again."""
    engine = start("--root", str(jpegs[0]), listen="tcp://127.0.0.1:*")
    recipe = Recipe(*jpegs, tmp_path / "large", batch=24, size=224)
    data = (recipe.pipeline.to_data(), recipe.dataset.to_data(), recipe.layout.to_data(), [recipe.manifest.read_bytes()])
    other, batches = list_client(engine.keys, "other"), Counter()

    def fetch(host):
        def another():
            if batches["many"] >= 12:  # all have begun
                batches["one, beside"] += host == "one"
                batches["many, beside"] += host == "many"
            batches[host] += 1
            return batches["one, beside"] + batches["many, beside"] < 120

        with HostileClient(engine.address, engine.keys, other if host == "one" else None) as client:
            sealed_parts(client, data, another)

    at_once(lambda number: fetch("many" if number else "one"), 13)
    assert batches["one, beside"] >= 40, batches  # half of 120 is its share
