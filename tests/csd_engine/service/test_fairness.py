"""Two hosts on one engine, over real connections: the engine tells by its key which host a connection belongs to."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue

from csd_engine.protocol import codec as say
from tests.engine_process import wait_for
from tests.hostile_client import list_client


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
