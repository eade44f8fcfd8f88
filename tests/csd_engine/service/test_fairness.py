"""Two hosts on one engine, over real connections: the engine tells by its key which host a connection belongs to."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue

from csd_engine.protocol.keys import load_pair, load_public, make_keys
from ddlp.sources.engine.events import LeasePublished
from ddlp.sources.engine.link import EngineLink
from tests.engine_process import wait_for


def test_a_host_with_four_connections_gets_no_more_than_one_with_one(start, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("DDLP_KERNEL", "off")  # batches must take longer than all jobs' requests
    engine = start("--root", str(recipe.root), "--slowdown", "5", listen="tcp://127.0.0.1:*")
    other = make_keys(tmp_path / "other")
    (engine.keys / "clients" / "other.key").write_bytes((other / "host.key").read_bytes())
    server = load_public(engine.keys / "server.key")
    pairs = [load_pair(keys / "host.key_secret") for keys in (engine.keys, other)]
    events = SimpleQueue()

    def note(host, event):
        if isinstance(event, LeasePublished):
            events.put((host, event))

    links, jobs = [], []
    for host in ("many", "many", "many", "many", "one"):
        pair = pairs[host == "one"]
        links.append(EngineLink(engine.address, server, pair.public, pair.secret))
        dataset = (recipe.pipeline, recipe.dataset, recipe.layout, lambda _: recipe.manifest)
        jobs.append(links[-1].open_job(*dataset, partial(note, host)))
    for job in jobs:
        for number in range(40):
            recipe.lease(job, number, number)
    hosts = [wait_for(events, tuple)[0] for _ in range(50)][10:]  # the first ones began before every host had asked
    assert 16 <= hosts.count("one") <= 24, hosts
    for link in links:
        link.close()
