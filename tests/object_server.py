"""A web server on loopback with latency, a rate and faults, which also speaks as much of S3's protocol as reading needs.

    GET, HEAD /bucket/key                            an object or a range of its bytes, with its ETag; If-Match
    GET       /bucket/?list-type=2&prefix=...        S3's listing, in pages of 1,000

Signatures are not looked at. As a process of its own it prints its port:

    python -m tests.object_server /path/to/files --latency 0.02 --rate 500
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_PAGE = 1000


class ObjectServer:
    """Serves objects from memory, a thread for each connection. It is for a ``with``; objects and faults may change meanwhile.

    Args:
        objects: bytes by key.
        latency_s: before each answer.
        rate: answers with objects in a second at most; 0: any number.
        busy: the part of requests that are answered by 503.
        reset: the part whose connection is reset, half of them in the middle of the body.

    Attributes:
        requests: the head of each request, as text.
        most: requests in flight at once at most; one is until its answer begins.
        objects: as given; may be changed.
        ranges, conditions, tags: whether ranges are given, If-Match is obeyed, and objects have ETags.
        hanging: keys that are not answered before the server ends.
        elsewhere: another server's URL, to which all requests are sent on once; empty: none.
    """

    def __init__(
        self, objects: Mapping[str, bytes], *, latency_s: float = 0.0, rate: float = 0.0, busy: float = 0.0, reset: float = 0.0
    ) -> None:
        self.objects = dict(objects)
        self.latency_s, self.rate, self.busy, self.reset = latency_s, rate, busy, reset
        self.ranges = self.conditions = self.tags = True
        self.keep_requests = True
        self.hanging: set[str] = set()
        self.elsewhere = ""
        self.requests: list[str] = []
        self.most = self._now = 0
        self._next_s = 0.0
        self._random = random.Random(5)
        self._lock = threading.Lock()
        self._stops = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ObjectServer:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stops.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):  # the client was faster
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def config(self, **more: str) -> dict[str, str]:
        """obstore's settings for S3 by this server."""
        return {"endpoint": self.url, "access_key_id": "AKIAFORTHETEST", "secret_access_key": "not to be seen anywhere", **more}

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            waiting = b""
            while True:
                while b"\r\n\r\n" not in waiting:
                    more = connection.recv(65536)
                    if not more:
                        return
                    waiting += more
                head, _, waiting = waiting.partition(b"\r\n\r\n")
                if not self._answer(connection, head.decode("latin-1")):
                    return
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
                connection.close()

    def _answer(self, connection: socket.socket, head: str) -> bool:
        """Answer a request. False: the connection is over."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            if self.keep_requests:
                self.requests.append(head)
            drawn = self._random.random()
        left = False
        try:
            method, target, _ = head.split("\r\n", 1)[0].split(" ")
            hangs = any(target.endswith(key) for key in self.hanging)
            if self._stops.wait(None if hangs else self.latency_s):
                return False
            if self.elsewhere and "moved" not in target:
                to = f"{self.elsewhere}{target}{'&' if '?' in target else '?'}moved=1"
                connection.sendall(f"HTTP/1.1 307 Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
                return True
            if drawn < self.busy:
                connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
                return True
            status, kind, body, tag = self._find(target)
            ranged = re.search(r"(?i)^range: bytes=(\d+)-(\d*)", head, re.MULTILINE)
            expected = re.search(r"(?i)^if-match: (\S+)", head, re.MULTILINE)
            found = bool(tag)
            if found and expected and self.conditions and expected[1] not in tag:
                status, body = "412 Precondition Failed", b""
            elif found and ranged and self.ranges and int(ranged[1]) >= len(body):
                status, body = "416 Range Not Satisfiable", b""
            elif found and ranged and self.ranges:
                first, last = int(ranged[1]), min(len(body) - 1, int(ranged[2] or len(body)))
                status, tag = "206 Partial Content", f"{tag}Content-Range: bytes {first}-{last}/{len(body)}\r\n"
                body = body[first : last + 1]
            tag = tag if self.tags else re.sub("ETag: .*\r\n", "", tag)
            answer = (
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: {kind}\r\n"
                f'Last-Modified: Thu, 26 Nov 2026 12:00:00 GMT\r\n{tag}\r\n'
            ).encode()
            body = b"" if method == "HEAD" else body
            if self.busy <= drawn < self.busy + self.reset:
                if drawn < self.busy + self.reset / 2:
                    connection.sendall(answer + body[: len(body) // 2])
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if found:
                self._wait()
            self._leave()  # before the answer: the client may ask for the next object as soon as it has it
            left = True
            connection.sendall(answer)
            connection.sendall(body)
            return True
        finally:
            if not left:
                self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._now -= 1

    def _wait(self) -> None:
        """Wait for a turn, so that the rate is kept."""
        if not self.rate:
            return
        with self._lock:
            now = time.monotonic()
            self._next_s = max(now, self._next_s) + 1 / self.rate
            due = self._next_s
        time.sleep(max(0.0, due - now))

    def _find(self, target: str) -> tuple[str, str, bytes, str]:
        """Return status, type, body and ETag's line."""
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path)[1:].partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if bucket == "forbidden":
            return "403 Forbidden", "application/xml", b"<Error><Code>AccessDenied</Code></Error>", ""
        if bucket != BUCKET:
            return "404 Not Found", "application/xml", b"<Error><Code>NoSuchBucket</Code></Error>", ""
        if "list-type" in query:
            return "200 OK", "application/xml", self._listing({name: values[0] for name, values in query.items()}), ""
        body = self.objects.get(key)
        if body is None:
            return "404 Not Found", "application/xml", b"<Error><Code>NoSuchKey</Code></Error>", ""
        return "200 OK", "image/jpeg", body, f'ETag: "{_tag(body)}"\r\n'

    def _listing(self, query: Mapping[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", query.get("start-after", ""))
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-26T12:00:00.000Z</LastModified>"
            f"<ETag>&quot;{_tag(self.objects[key])}&quot;</ETag><Size>{len(self.objects[key])}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys[:_PAGE]
        )
        more = len(keys) > _PAGE
        token = f"<NextContinuationToken>{escape(keys[_PAGE - 1])}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(quote(prefix))}</Prefix><KeyCount>{min(len(keys), _PAGE)}</KeyCount>"
            f"<MaxKeys>{_PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        ).encode()


_tags: dict[int, tuple[bytes, str]] = {}


def _tag(body: bytes) -> str:
    """The ETag of an object; each is computed once."""
    found = _tags.get(id(body))
    if found is None or found[0] is not body:
        found = _tags[id(body)] = body, hashlib.md5(body).hexdigest()
    return found[1]


def index_of(objects: Mapping[str, bytes]) -> bytes:
    """The index file of these objects."""
    return "".join(f"{len(body)} {key}\n" for key, body in objects.items()).encode()


def files_below(root: Path, prefix: str = "") -> dict[str, bytes]:
    """The files below a directory, by their paths there."""
    return {prefix + path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def main() -> None:
    """The command. It ends with its standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--rate", type=float, default=0.0, help="objects a second")
    parser.add_argument("--busy", type=float, default=0.0, help="part of requests")
    parser.add_argument("--reset", type=float, default=0.0, help="part of requests")
    options = parser.parse_args()
    objects = files_below(options.root)
    objects["index.txt"] = index_of(objects)
    server = ObjectServer(objects, latency_s=options.latency, rate=options.rate, busy=options.busy, reset=options.reset)
    server.keep_requests = False
    with server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
