"""The connection to an engine: opened, refused, lost, and when it sends what."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from queue import SimpleQueue

import pytest

from csd_engine.errors import EngineGone, EngineRefused, EngineUnreachable
from csd_engine.protocol import codec as protocol
from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from ddlp.sources.engine.link import EngineLink
from tests.engine_process import alive, batch_files, until, wait_for


@pytest.fixture(scope="module")
def engine(module_start, jpegs):
    """For tests that leave it as it was."""
    return module_start("--root", str(jpegs[0]))


def test_a_link_that_is_closed_while_it_opens(engine, monkeypatch):
    link = engine.link()

    class Closed(threading.Thread):
        def start(self) -> None:
            link.close()  # closed by another thread at this moment
            super().start()

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Closed)
        with pytest.raises(EngineUnreachable):
            link.open()
    with pytest.raises(EngineGone):
        link.open()
    link.close()


def test_a_release_goes_with_the_next_message_or_heartbeat(engine, recipe):
    links = [engine.link(heartbeat_s=30, heartbeat_timeout_s=100), engine.link()]
    for link, slow in zip(links, (True, False), strict=True):
        events = SimpleQueue()
        job = recipe.open(link, events)
        recipe.lease(job, 1)
        path = job.path(wait_for(events, say.Published))
        time.sleep(0.2)  # the link's thread is idle now
        job.release(1)
        if slow:
            time.sleep(0.5)
            assert path.exists()
            recipe.lease(job, 2)
        until(lambda path=path: not path.exists(), 30)
        link.close()


def test_waiting_is_told_at_once_but_not_each_time(engine, recipe, monkeypatch):
    link = engine.link(heartbeat_s=30, heartbeat_timeout_s=100)
    job = recipe.open(link, SimpleQueue())  # the first heartbeat was sent just before
    told = []
    encode = protocol.encode
    monkeypatch.setattr(protocol, "encode", lambda message: told.append((time.monotonic(), message)) or encode(message))
    began = time.monotonic()
    for k in range(101):
        job.waiting(k % 2 == 0)
        time.sleep(0.005)
    until(lambda: told and told[-1][1].waiting == (job.name,))
    time.sleep(0.3)
    took = time.monotonic() - began
    assert {type(message) for _, message in told} == {protocol.Ping} and told[0][0] - began < 0.1
    assert told[-1][1].waiting == (job.name,) and 2 <= len(told) <= 2 + took / 0.1
    link.close()


def test_a_wrong_server_key_is_refused(engine, tmp_path):
    pair = load_pair(engine.keys / "host.key_secret")
    wrong = load_public(make_keys(tmp_path / "others") / "server.key")
    with pytest.raises(EngineRefused, match="server key"):
        EngineLink(engine.address, wrong, pair.public, pair.secret).open()


def test_a_relay_without_an_engine_is_one_that_does_not_answer(home):
    """A tunnel's end accepts the connection and closes it. To libzmq this looks like an engine that refuses a key."""
    pair = load_pair(make_keys(home / "keys") / "host.key_secret")
    with socket.create_server(("127.0.0.1", 0)) as relay:
        taken = []

        def close_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    relay.accept()[0].close()
                    taken.append(1)

        threading.Thread(target=close_all, daemon=True).start()
        address = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
        with pytest.raises(EngineUnreachable, match="no engine answered"):
            EngineLink(address, pair.public, pair.public, pair.secret, connect_timeout_s=1.5).open()
        assert len(taken) > 3
        relay.shutdown(socket.SHUT_RDWR)


def test_a_host_that_is_not_listed_is_refused_until_it_is(engine, tmp_path):
    stranger = make_keys(tmp_path / "stranger")
    pair = load_pair(stranger / "host.key_secret")
    server = load_public(engine.keys / "server.key")
    with pytest.raises(EngineRefused, match="clients"):
        EngineLink(engine.address, server, pair.public, pair.secret).open()
    (engine.keys / "clients" / "stranger.key").write_bytes((stranger / "host.key").read_bytes())
    link = EngineLink(engine.address, server, pair.public, pair.secret)
    assert link.open()
    link.close()


def test_nobody_there(home):
    pair = load_pair(make_keys(home / "keys") / "host.key_secret")
    for address in (f"ipc://{home}/nothing", "nonsense"):
        with pytest.raises(EngineUnreachable):
            EngineLink(address, pair.public, pair.public, pair.secret, connect_timeout_s=0.3).open()


def test_another_protocol_version_is_told_on_both_sides(engine, monkeypatch):
    monkeypatch.setattr(protocol, "PROTOCOL", 99)
    with pytest.raises(EngineRefused, match=r"protocol 7 .*protocol 99"):
        engine.link().open()
    assert "protocol 99" in engine.log


def test_a_killed_engine_is_noticed_and_its_workers_end(start, recipe):
    engine, link, events, job = recipe.at_work(start, "--slowdown", "400")
    recipe.lease(job, 0)
    until(lambda: batch_files(engine.spool))
    workers = engine.children()
    engine.kill()
    assert wait_for(events, say.Refused)
    until(lambda: not any(map(alive, workers)))
    link.close()
    again = start("--root", str(recipe.root), keys=engine.keys)  # it takes over the spool and clears it
    assert batch_files(again.spool) == []


def test_a_stopped_engine_is_lost_after_the_heartbeat_timeout(start, recipe):
    engine, link, events, job = recipe.at_work(start, heartbeat_s=0.1, heartbeat_timeout_s=0.5)
    engine.process.send_signal(signal.SIGSTOP)
    try:
        assert "silent" in wait_for(events, say.Refused).reason
    finally:
        engine.process.send_signal(signal.SIGCONT)
    job.release(1)  # no error
    with pytest.raises(EngineGone):
        recipe.open(link, events)
    link.close()


def test_messages_wait_for_an_engine_that_does_not_read(start, recipe):
    """Only few messages wait in libzmq, so a host does not make it hold many; all arrive."""
    engine, link, events, job = recipe.at_work(start, heartbeat_s=0.1, heartbeat_timeout_s=60)
    part = protocol.encode(protocol.FilePart("array", "0" * 32, 0, 1 << 20), bytes(1 << 20))  # not asked for
    engine.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(120):
            link.submit(part)
        recipe.lease(job, 1)
        until(lambda: len(link._outbox) < 120)
        time.sleep(0.5)
        assert link._outbox, "libzmq must not hold all messages"
        began = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - began < 0.4, "the thread must not poll"
    finally:
        engine.process.send_signal(signal.SIGCONT)
    assert wait_for(events, say.Published, 60).lease == 1 and not link._outbox
    link.close()


def test_a_silent_host_loses_its_jobs(start, recipe):
    engine = start("--root", str(recipe.root), "--lease-timeout", "3")
    silent, lively = engine.link(heartbeat_s=60, heartbeat_timeout_s=100), engine.link(heartbeat_s=0.1)
    over = engine.link(heartbeat_s=60, heartbeat_timeout_s=100)  # silent too, and nothing is lost with it
    recipe.open(over, SimpleQueue()).close()
    events = SimpleQueue()
    job = recipe.open(silent, events)
    mine = SimpleQueue()
    kept = recipe.open(lively, mine)
    recipe.lease(job, 0)
    wait_for(events, say.Published)
    until(lambda: len(list(engine.spool.glob("job-*"))) == 1)
    recipe.lease(job, 1)
    assert "Hello" in wait_for(events, say.Refused).reason
    recipe.lease(kept, 0)
    assert wait_for(mine, say.Published)
    assert engine.log.count("has sent nothing for 3 s: its jobs (1) are dropped") == engine.log.count("dropped") == 1
    silent.close()
    lively.close()
    over.close()
