"""Batches over the connection for sealed parts, between a real engine and a link: what comes, what is refused, strangers."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np
import pytest

from csd_engine.batchfile.reader import BatchReceiver
from csd_engine.errors import DamagedBatch, EngineGone
from csd_engine.protocol import codec as say
from csd_engine.protocol.aead import AES, CHACHA, ciphers
from csd_engine.protocol.keys import load_pair, load_public
from csd_engine.protocol.sealed import HEAD_BYTES, NO_PLACE, READY, Opener
from csd_engine.service.sealed_streams import _MOST_STRANGERS
from ddlp.sources.engine import sealed_fetch
from ddlp.sources.engine.fetch import BatchFetcher
from ddlp.sources.engine.link import EngineLink
from ddlp.sources.engine.sealed_fetch import choose_cipher
from tests.at_once import at_once
from tests.engine_process import EngineProcess, Recipe, until, wait_for
from tests.hostile_client import HostileClient, list_client, withdraw_client
from tests.hostile_engine import LyingEngine

TCP = "tcp://127.0.0.1:*"
pytestmark = pytest.mark.skipif(not ciphers(), reason="this Python's libcrypto can't be used")


@pytest.fixture
def parts(jpegs, tmp_path):
    """Batches of 24 samples of 224x224: 3.6 MB, 4 parts."""
    return Recipe(*jpegs, tmp_path / "manifest", batch=24, size=224)


class Published:
    """An engine, a link, and a batch that waits in the spool: lease 1."""

    def __init__(self, engine, recipe, address=None):
        self.recipe = recipe
        self.engine = engine
        pair = load_pair(engine.keys / "host.key_secret")
        self.link = EngineLink(
            address or engine.address, load_public(engine.keys / "server.key"), *pair, heartbeat_s=0.1, heartbeat_timeout_s=5
        )
        self.job, events = None, SimpleQueue()
        self.job = recipe.open(self.link, events)
        self.items = recipe.lease(self.job, 1)
        self.path = self.job.path(wait_for(events, say.Published, 60))
        self.told = []
        self.fetcher = BatchFetcher(self.job, False, self.told.append)

    @property
    def size(self):
        return self.recipe.layout.file_bytes

    def receiver(self, items=None):
        return BatchReceiver(self.recipe.identity(items or self.items), 1, self.recipe.layout)

    def sealed(self, items=None):
        """Fetch it sealed: its images, or None if it does not come so."""
        receiver = self.receiver(items)
        return receiver.batch().images if self.job.fetch_sealed(1, receiver, self.size) else None

    def read(self):
        """Fetch it as a loader does."""
        layout = self.recipe.layout
        identity = self.recipe.identity(self.items)
        return self.fetcher.read(self.path, identity, 1, layout, lambda: np.zeros(layout.image_shape, np.uint8)).images


@pytest.fixture(scope="module")
def engine(module_start, jpegs):
    return module_start("--root", str(jpegs[0]), listen=TCP)


@pytest.fixture
def published(engine, parts):
    found = Published(engine, parts)
    yield found
    found.link.close()


@pytest.mark.parametrize("cipher", [AES, CHACHA])
def test_a_batch_comes_sealed(start, parts, cipher, monkeypatch):
    monkeypatch.setenv("DDLP_STREAM_CIPHER", cipher)
    if not ciphers():
        pytest.skip("this libcrypto does not have it")
    one = Published(start("--root", str(parts.root), listen=TCP), parts)
    try:
        expected = parts.expected(one.items)
        for _ in range(3):
            assert np.array_equal(one.sealed(), expected)
        assert one.link.welcome.versions["stream"] == cipher
        found = at_once(lambda _: one.sealed(), 3)  # one after the other
        assert all(np.array_equal(images, expected) for images in found)
    finally:
        one.link.close()


# -- what is not the engine's, or not whole


class Between:
    """Stands between host and engine. ``harm`` gets the records of a connection's first batch, and returns others."""

    def __init__(self, harm: Callable[[list[bytes]], list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.harm, self.connections = harm, 0
        real = socket.create_connection
        monkeypatch.setattr(sealed_fetch.socket, "create_connection", lambda address, timeout: self.connect(real(address)))

    def connect(self, engine: socket.socket) -> socket.socket:
        host, here = socket.socketpair()
        self.connections += 1
        threading.Thread(target=self.relay, args=(here, engine), daemon=True).start()
        return host

    def relay(self, here: socket.socket, engine: socket.socket) -> None:
        with here, engine, contextlib.suppress(OSError):
            engine.sendall(here.recv(32))
            here.sendall(record_from(engine))  # READY's
            records = [record_from(engine) for _ in range(4)]  # of one batch
            for record in self.harm(records):
                here.sendall(record)


def record_from(connection: socket.socket) -> bytes:
    head = connection.recv(HEAD_BYTES, socket.MSG_WAITALL)
    return head + connection.recv(struct.unpack_from("!BI", head)[1], socket.MSG_WAITALL)


def flipped(record: bytes, byte: int) -> bytes:
    return record[:byte] + bytes([record[byte] ^ 4]) + record[byte + 1 :]


HARMS = {
    "a flipped bit": lambda r: [r[0], flipped(r[1], 70_000), *r[2:]],
    "a flipped bit of the last": lambda r: [*r[:3], flipped(r[3], len(r[3]) - 1)],
    "a flipped bit of a tag": lambda r: [flipped(r[0], 9), *r[1:]],
    "another kind": lambda r: [bytes([3]) + r[0][1:], *r[1:]],
    "swapped": lambda r: [r[0], r[2], r[1], r[3]],
    "repeated": lambda r: [r[0], r[0], *r[1:]],
    "left out": lambda r: [r[0], *r[2:]],
    "cut in a record": lambda r: [*r[:3], r[3][:1000]],
    "cut between two": lambda r: r[:2],
    "nothing": lambda r: [],
}


def test_what_is_not_the_engines_is_refused_and_the_batch_comes_by_curve(engine, parts, monkeypatch):
    expected = parts.expected(parts.items(0))
    for name, harm in HARMS.items():
        published = Published(engine, parts)
        with monkeypatch.context() as while_harmed:
            between = Between(harm, while_harmed)
            assert published.sealed() is None and between.connections == 1, name
            assert np.array_equal(published.read(), expected) and between.connections == 2 and not published.told, name
            for _ in range(2):
                assert np.array_equal(published.read(), expected), name
        assert between.connections == 3  # it is tried no more
        assert len(published.told) == 1 and "CURVE" in published.told[0]
        published.link.close()


class Slow(Between):
    """Sends a batch's last record in two pieces, over TCP. Nothing follows it."""

    def connect(self, engine: socket.socket) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            host = socket.socket()
            host.connect(server.getsockname())
            here, _ = server.accept()
        here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self.relay, args=(here, engine), daemon=True).start()
        return host

    def relay(self, here: socket.socket, engine: socket.socket) -> None:
        with here, engine, contextlib.suppress(OSError):
            engine.sendall(here.recv(32))
            for _ in range(4):
                here.sendall(record_from(engine))
            last = record_from(engine)
            time.sleep(0.2)  # what was before is read
            here.sendall(last[: len(last) // 2])
            time.sleep(0.2)
            here.sendall(last[len(last) // 2 :])
            engine.recv(1)  # until the test is over


def test_a_record_that_comes_in_pieces_is_not_waited_for(published, parts, monkeypatch):
    """A read that took the first piece, and then waited for as much as the whole record, would sleep until the next batch."""
    monkeypatch.setattr(sealed_fetch, "SILENT_S", 3600.0)
    Slow(lambda records: records, monkeypatch)
    assert np.array_equal(published.sealed(), parts.expected(published.items))


def test_after_one_failure_it_goes_on_sealed(published, parts, monkeypatch):
    with monkeypatch.context() as while_harmed:
        Between(HARMS["swapped"], while_harmed)
        assert published.sealed() is None
    assert np.array_equal(published.sealed(), parts.expected(published.items)) and not published.link.sealed.remark


def test_a_record_of_another_connection_is_refused(published, monkeypatch):
    """Each connection has a key of its own."""
    kept = []

    def keep_or_use(records):
        kept.append(records)
        return records if len(kept) == 1 else kept[0]

    Between(keep_or_use, monkeypatch)
    assert published.sealed() is not None
    published.link.sealed._close()
    assert published.sealed() is None and len(kept) == 2


def test_a_key_is_renewed_in_time(published, parts, monkeypatch):
    monkeypatch.setattr(sealed_fetch, "MOST_BYTES", 2 * published.size)
    keys = set()
    for _ in range(5):
        assert published.sealed() is not None
        keys.add(id(published.link.sealed._open.opener))
        kept = getattr(published, "kept", [])
        published.kept = [*kept, published.link.sealed._open]  # so that no id comes twice
    assert len(keys) == 3


# -- what the engine can't send, and lost engines


def test_damage_and_unknown_leases_are_told(published):
    """test_file_chunks.py has more that is no batch: both ways open it alike."""
    for lease, said in ((7, "no published batch"), (1, "checksum")):
        if lease == 1:
            content = bytearray(published.path.read_bytes())
            content[-5] ^= 1
            published.path.write_bytes(content)
        with pytest.raises(DamagedBatch, match=said):
            receiver = published.receiver()
            published.job.fetch_sealed(lease, receiver, published.size)
            receiver.batch()
    assert not published.link.sealed.remark


@pytest.mark.parametrize("what", ["killed", "stopped", "closed"])
def test_nobody_waits_for_an_engine_or_a_job_that_is_gone(start, parts, what):
    published = Published(start("--root", str(parts.root), listen=TCP), parts)
    assert published.sealed() is not None
    process = published.engine.process
    process.send_signal(signal.SIGKILL if what == "killed" else signal.SIGSTOP)
    if what == "closed":
        threading.Timer(0.3, published.job.close).start()
    elif what == "killed":
        process.wait()
    try:
        with pytest.raises(EngineGone, match="closed" if what == "closed" else "broken off|silent|over|lost"):
            published.read()
        if what == "closed":
            assert published.link.lost is None
    finally:
        process.send_signal(signal.SIGCONT)
        published.link.close()


# -- peers without it


def test_an_engine_without_a_cipher_sends_by_curve(start, parts, monkeypatch):
    monkeypatch.setenv("DDLP_STREAM_CIPHER", "curve")
    one = Published(start("--root", str(parts.root), listen=TCP), parts)
    monkeypatch.delenv("DDLP_STREAM_CIPHER")
    try:
        assert "stream" not in one.link.welcome.versions and one.sealed() is None
        assert np.array_equal(one.read(), parts.expected(one.items)) and not one.told
        with HostileClient(one.engine.address, one.engine.keys) as client:
            client.send(say.AskStream(AES), bytes(32))
            assert "does not seal" in client.wait_for(say.NoStream).reason
            client.ping()
    finally:
        one.link.close()


def test_a_host_without_a_cipher_gets_batches_by_curve(published, parts, monkeypatch):
    monkeypatch.setenv("DDLP_STREAM_CIPHER", "curve")
    older = published.engine.link()
    events = SimpleQueue()
    job = parts.open(older, events)
    items = parts.lease(job, 1)
    wait_for(events, say.Published, 60)
    receiver = BatchReceiver(parts.identity(items), 1, parts.layout)
    assert not job.fetch_sealed(1, receiver, parts.layout.file_bytes)
    for part in job.parts(1, parts.layout.file_bytes):
        receiver.take(part)
    assert np.array_equal(receiver.batch().images, parts.expected(items))
    older.close()


def test_a_unix_socket_has_none(start, parts):
    one = Published(start("--root", str(parts.root)), parts)
    assert "stream" not in one.link.welcome.versions and one.sealed() is None
    one.link.close()


def test_a_port_that_is_closed_is_tried_once(published, parts, monkeypatch):
    tried = []

    def refuse(address, timeout):
        tried.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(sealed_fetch.socket, "create_connection", refuse)
    for _ in range(3):
        assert np.array_equal(published.read(), parts.expected(published.items))
    assert len(tried) == 1 and len(published.told) == 1 and str(tried[0][1]) in published.told[0]


def test_an_engine_that_lies_about_it_costs_the_way_alone(engine, parts):
    lies = {
        "a short key": lambda one, key: [say.encode(one, key[:31])],
        "another key": lambda one, key: [say.encode(one, key[::-1])],
        "its own port": lambda one, key: [say.encode(say.StreamOpen(int(engine.address.rpartition(":")[2])), key)],
        "none": lambda one, key: [say.encode(say.NoStream("\x1b[31mno"))],
        "twice": lambda one, key: [say.encode(one, key)] * 3,
    }
    expected = parts.expected(parts.items(0))
    for name, lie in lies.items():

        def told(message, payload, lie=lie):
            return lie(message, bytes(payload)) if isinstance(message, say.StreamOpen) else None

        liar = LyingEngine(engine.address, engine.keys, told)
        try:
            published = Published(engine, parts, liar.address)
            for _ in range(4):
                assert np.array_equal(published.read(), expected), name
            assert published.link.lost is None and all(map(str.isprintable, published.told)), name
            assert bool(published.told) is (name != "twice"), name
            published.link.close()
        finally:
            liar.close()


@pytest.mark.parametrize(
    ("told", "here", "chosen"),
    [
        (f"{AES} {CHACHA}", (AES, CHACHA), AES),
        (f"{CHACHA} {AES}", (AES, CHACHA), CHACHA),
        (AES, (CHACHA, AES), AES),
        (f"rot13 {CHACHA}", (AES, CHACHA), CHACHA),
        ("", (AES, CHACHA), None),
        (AES, (), None),
    ],
)
def test_the_cipher_that_suits_both(told, here, chosen):
    assert choose_cipher(told, here) == chosen


# -- strangers, and listed hosts that turn hostile


@contextlib.contextmanager
def client_of(engine: EngineProcess) -> Iterator[tuple[HostileClient, int]]:
    """A listed host, and the engine's port for sealed parts."""
    with HostileClient(engine.address, engine.keys) as client:
        yield client, ask(client, secrets.token_bytes(32))[0]


def ask(client: HostileClient, ticket: bytes, cipher: str = "") -> tuple[int, bytes]:
    client.send(say.AskStream(cipher or ciphers()[0]), ticket)
    message, key = client.receive()
    assert isinstance(message, say.StreamOpen), message
    return message.port, bytes(key)


def knock(port: int, said: bytes = b"", timeout_s: float = 30.0) -> socket.socket:
    """Connect and say that. The limit is longer than a ticket lives: one of an earlier test may be out still."""
    one = socket.create_connection(("127.0.0.1", port), timeout_s)
    with contextlib.suppress(OSError):  # it may be closed before
        one.sendall(said)
    return one


def heard(one: socket.socket) -> bytes:
    """What comes until the engine closes."""
    with one:
        try:
            return one.recv(100)
        except ConnectionError:
            return b""


def opened(engine: EngineProcess) -> int:
    return len(os.listdir(f"/proc/{engine.process.pid}/fd"))


def test_a_stranger_gets_nothing(engine):
    ticket = secrets.token_bytes(32)
    with client_of(engine) as (client, port):
        _, key = ask(client, ticket)
        almost = ticket[:31] + bytes([ticket[31] ^ 1])
        for said in (bytes(32), almost, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2, b"\xff" + bytes(63)):
            assert heard(knock(port, said)) == b""
        with knock(port, ticket) as good:
            head = good.recv(HEAD_BYTES, socket.MSG_WAITALL)
            opener = Opener(ciphers()[0], key)
            assert opener.kind(head, NO_PLACE) == READY
            opener.begin(head, NO_PLACE)
            opener.check(head)
            assert heard(knock(port, ticket)) == b""  # it counts once
        client.ping()


def test_strangers_cost_nothing_that_lasts(engine):
    with client_of(engine) as (client, port):  # its ticket is out: connections may stay for a while
        before = opened(engine)
        with contextlib.ExitStack() as held:
            for number in range(5 * _MOST_STRANGERS):
                held.enter_context(knock(port, bytes(number % 32)))
            until(lambda: before < opened(engine) <= before + _MOST_STRANGERS)
            client.ping()
            _, key = ask(client, ticket := secrets.token_bytes(32))
            with knock(port, ticket) as good:  # they keep nobody out
                opener = Opener(ciphers()[0], key)
                head = good.recv(HEAD_BYTES, socket.MSG_WAITALL)
                opener.begin(head, NO_PLACE)
                opener.check(head)
                until(lambda: opened(engine) <= before + 1)  # no ticket is out any more
        until(lambda: opened(engine) <= before)
        client.ping()


def test_a_ticket_that_is_none(engine):
    with client_of(engine) as (client, _):
        for ticket in (b"", bytes(31), bytes(33)):
            client.send(say.AskStream(ciphers()[0]), ticket)
            assert "32 random bytes" in client.wait_for(say.NoStream).reason
        client.ping()


def test_a_host_has_one_connection_for_each_of_its_own(engine):
    tickets = [secrets.token_bytes(32) for _ in range(2)]
    with client_of(engine) as (client, port):
        ask(client, tickets[0])
        with knock(port, tickets[0]) as first:
            assert len(first.recv(HEAD_BYTES, socket.MSG_WAITALL)) == HEAD_BYTES
            before = opened(engine)
            ask(client, tickets[1])
            assert first.recv(1) == b""
            with knock(port, tickets[1]) as second:
                second.recv(HEAD_BYTES, socket.MSG_WAITALL)
                assert opened(engine) == before
                second.sendall(b"x")  # nothing is said here
                assert heard(second) == b""
        client.ping()


def test_too_many_fetches_at_once_end_the_connection(engine):
    with client_of(engine) as (client, port):
        ask(client, ticket := secrets.token_bytes(32))
        with knock(port, ticket) as one:
            one.recv(HEAD_BYTES, socket.MSG_WAITALL)
            for _ in range(2000):
                client.send(say.FetchSealed(1, "j", 1, 1 << 62))
            client.ping()
            assert client.hears(0) is False
        assert engine.process.poll() is None


def test_a_withdrawn_key_ends_its_connection(engine):
    pair = list_client(engine.keys, "second")
    with HostileClient(engine.address, engine.keys, pair) as client:
        port, _ = ask(client, ticket := secrets.token_bytes(32))
        with knock(port, ticket) as one:
            one.recv(HEAD_BYTES, socket.MSG_WAITALL)
            withdraw_client(engine.keys, "second")
            assert heard(one) == b""
