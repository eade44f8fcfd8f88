"""Two hosts on one engine, over real connections: the engine tells by its key which host a connection belongs to."""

from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest

from csd_engine.__main__ import main
from csd_engine.protocol import codec as say
from csd_engine.protocol.aead import ciphers
from csd_engine.protocol.keys import load_public, make_keys
from csd_engine.service import engine
from csd_engine.service.engine import Service
from tests.engine_process import wait_for
from tests.hostile_client import HostileClient, list_client, sealed_stream


def test_a_host_with_four_connections_gets_no_more_than_one_with_one(start, recipe, monkeypatch):
    monkeypatch.setenv("DDLP_KERNEL", "off")  # batches must take longer than all jobs' requests
    process = start("--root", str(recipe.root), "--slowdown", "5", listen="tcp://127.0.0.1:*")
    other = list_client(process.keys, "other")
    events = SimpleQueue()

    def note(host, event):
        if isinstance(event, say.Published):
            events.put((host, event))

    links, jobs = [], []
    for host in ("many", "many", "many", "many", "one"):
        links.append(process.link(other if host == "one" else None))
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
def test_a_host_with_many_connections_for_parts_gets_no_more_than_one_with_one(home, monkeypatch):
    """A part is a turn. Each of many connections was served once before the only one of the other host was looked at again.

    All hosts have asked before the first part is sent, and each turn costs the same: their threads and the load of the
    computer play no role. They ask for batches that the engine does not have. Its answer is a record as a part is.
    """
    keys = make_keys(home / "keys")
    other, turns = list_client(keys, "other"), []
    only = load_public(other.with_suffix(".key")).decode()

    def serve(service: Service, *_: object) -> None:
        """What the engine does instead of its loop."""
        with contextlib.ExitStack() as opened, ThreadPoolExecutor(1) as thread:
            hosts = thread.submit(connect, service.endpoint, opened)
            while not hosts.done():
                service._round(dict(service._poller.poll(10)))
            for client in hosts.result():
                for number in range(8):
                    client.send(say.FetchSealed(number, "none", 1, 1000))
            streams = service._streams
            while sum(len(stream.asked) for stream in streams._streams.values()) < 13 * 8:
                service._take_messages()
                service._serve_hosts()  # messages alone: nobody has looked which connections take a part
            send_part = streams.serve

            def count(key: str) -> bool:
                turns.append("one" if key == only else "many")
                return send_part(key)

            monkeypatch.setattr(streams, "serve", count)
            streams.look()
            service._serve_hosts()

    def connect(address: str, opened: contextlib.ExitStack) -> list[HostileClient]:
        clients = []
        for pair in (other, *[None] * 12):
            clients.append(opened.enter_context(HostileClient(address, keys, pair)))
            opened.enter_context(sealed_stream(clients[-1]))
        return clients

    monkeypatch.setattr(engine, "_spent_s", lambda began, ended: 0.001)
    monkeypatch.setattr(engine, "_SERVE_S", 60.0)
    monkeypatch.setattr(Service, "run", serve)
    root = ["--root", str(home), "--reserve-bytes", "0", "--workers", "1"]
    assert main(["--listen", "tcp://127.0.0.1:*", "--keys", str(keys), "--spool", str(home / "spool"), *root]) == 0
    assert Counter(turns[:16]) == {"one": 8, "many": 8}, turns
    assert Counter(turns[16:]) == {"many": 88}, turns
