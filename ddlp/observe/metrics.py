"""A loader's numbers for Prometheus: as text, and served over HTTP.

    with ddlp.observe.serve_metrics(loader, 9464):      # http://127.0.0.1:9464/metrics
        train(loader)

Names, types and escapes follow Prometheus's text format, version 0.0.4.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from ddlp.errors import DDLPError
from ddlp.loader import DDLPLoader
from ddlp.observe.pace import Live, live
from ddlp.process.ranks import here
from ddlp.process.version import __version__
from ddlp.stats.engines import STATES

__all__ = ["CONTENT_TYPE", "MetricsServer", "prometheus_text", "serve_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "ddlp_"

Labels = dict[str, str]
Samples = Iterable[tuple[Labels, float | None]]


class _Metric(NamedTuple):
    name: str
    kind: str  # counter, gauge
    help: str
    samples: Callable[[Live], Samples]  # None: not known


def _sides(host: float | None, csd: float | None) -> Samples:
    return [({"side": "host"}, host), ({"side": "csd"}, csd)]


def _each_device(value: Callable[[Any], float]) -> Callable[[Live], Samples]:
    return lambda now: [({"device": device.name}, value(device)) for device in now.devices]


def _one(value: Callable[[Live], float | None]) -> Callable[[Live], Samples]:
    return lambda now: [({}, value(now))]


def _by_state(now: Live) -> Samples:
    states = Counter(one.state for one in now.devices)
    return [({"state": state}, states[state]) for state in STATES] if states else []


_METRICS = (
    _Metric("epochs_total", "counter", "Epochs begun.", _one(lambda now: now.total.epochs)),
    _Metric(
        "batches_total", "counter", "Batches delivered, by the side that prepared them.",
        lambda now: _sides(now.total.batches_host, now.total.batches_csd),
    ),
    _Metric("samples_total", "counter", "Samples delivered.", _one(lambda now: now.total.samples)),
    _Metric("epoch_seconds_total", "counter", "Time within epochs.", _one(lambda now: now.total.seconds)),
    _Metric(
        "waiting_seconds_total", "counter",
        "Time that training waited for a batch: an epoch's first one (start), one that the host or a device (csd) was at, one "
        "of a device on its way into memory (transfer).",
        lambda now: [({"cause": cause}, seconds) for cause, seconds in now.total.waiting.items()],
    ),
    _Metric(
        "host_cpu_seconds_total", "counter", "Processor time of the host's preparation.", _one(lambda now: now.total.host_cpu_s)
    ),
    _Metric(
        "leases_taken_back_total", "counter",
        "Batches taken back from a device: the host had them first, or it retired before it began them.",
        _one(lambda now: now.total.leases_taken_back),
    ),
    _Metric(
        "leases_lost_total", "counter", "Batches that a device failed to make, lost or damaged: the host makes them.",
        _one(lambda now: now.total.leases_lost),
    ),
    _Metric("epoch", "gauge", "Number of the epoch under way, or of the last one.", _one(lambda now: now.report.epoch)),
    _Metric("epoch_batches", "gauge", "Batches of this epoch.", _one(lambda now: now.batches)),
    _Metric("epoch_delivered_batches", "gauge", "Batches of this epoch delivered.", _one(lambda now: now.delivered)),
    _Metric(
        "waiting_now_seconds", "gauge", "Since training asked for the batch that it waits for; 0 while it has one.",
        _one(lambda now: now.waiting_now_s),
    ),
    _Metric(
        "side_samples_per_second", "gauge", "What a side can prepare, as seen so far; both together bound the epoch.",
        lambda now: _sides(now.report.rate_cpu, now.report.rate_csd),
    ),
    _Metric(
        "ready_batches", "gauge", "Batches ready in memory, by the side that prepared them.",
        lambda now: _sides(now.ready_host, now.ready_csd),
    ),
    _Metric(
        "device_up", "gauge", "1 while the device is at work for the epoch, else 0.", _each_device(lambda one: int(one.alive))
    ),
    _Metric("engines", "gauge", "Devices and engines of pools, by what they do.", _by_state),
    _Metric(
        "device_samples_per_second", "gauge", "What the device can prepare, as seen so far.",
        lambda now: [({"device": one.name, "node": one.node}, one.rate) for one in now.devices],
    ),
    _Metric(
        "spool_batches", "gauge", "Batches in the device's spool, those being written included.",
        _each_device(lambda one: one.held),
    ),
    _Metric("spool_quota_batches", "gauge", "Batches that may be there.", _each_device(lambda one: one.quota)),
)  # fmt: skip


def prometheus_text(loaders: DDLPLoader | Mapping[str, DDLPLoader]) -> str:
    """The numbers of a loader in Prometheus's text format; of several, given by name, each with a label ``loader``.

    Counters run over all epochs of a loader. What is not known (yet) is left out. May be called from any thread: a loader's
    numbers are of one moment, and its training goes on meanwhile.
    """
    named = loaders.items() if isinstance(loaders, Mapping) else [("", loaders)]
    numbers = [({"loader": name} if isinstance(loaders, Mapping) else {}, live(loader)) for name, loader in named]
    ranks = here()
    rank: Labels = {} if ranks is None else {"rank": str(ranks.rank)}
    info = [({**label, "version": __version__, "strategy": now.report.strategy, **rank}, 1.0) for label, now in numbers]
    lines = _family("info", "gauge", "What runs; always 1.", info)
    for metric in _METRICS:
        samples = [
            ({**label, **rank, **own}, float(value))
            for label, now in numbers
            for own, value in metric.samples(now)
            if value is not None
        ]
        lines += _family(metric.name, metric.kind, metric.help, samples)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    name = _PREFIX + name
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        lines.append(f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value!r}")
    return lines if len(lines) > 2 else []


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer:
    """What `serve_metrics` returns. It serves until `close`, the end of ``with`` or of the process. ``url``: what to scrape."""

    def __init__(self, text: Callable[[], str], host: str, port: int) -> None:
        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # for a client that sends nothing

            def do_GET(self) -> None:
                _answer(self, text)

            do_HEAD = do_GET

            def log_message(self, format: str, *arguments: Any) -> None:
                """Print nothing: requests must not appear between the lines of a training."""

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise DDLPError(
                f"serve_metrics(): no port {port} on {host} ({error.strerror or error}); give another one, e.g. a port for "
                "each rank, or port=0 for any that is free"
            ) from None
        except OverflowError:
            raise ValueError(f"port={port!r}: 0 to 65535") from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        # Not "ddlp-": at the process's end `ddlp.process.finalizers` waits for those.
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics-ddlp", daemon=True)
        self._thread.start()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Serve no more and let the port go. May be called twice."""
        self._server.shutdown()
        self._thread.join()
        with contextlib.suppress(OSError):  # closed already
            # A worker that was forked meanwhile holds the socket as well; it must not keep the port.
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()


def _answer(request: BaseHTTPRequestHandler, text: Callable[[], str]) -> None:
    """Answer one request, in a thread of its own."""
    found = request.path.partition("?")[0] == "/metrics"
    body = (text() if found else "see /metrics\n").encode()
    request.send_response(200 if found else 404)
    request.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def serve_metrics(loaders: DDLPLoader | Mapping[str, DDLPLoader], port: int, host: str = "127.0.0.1") -> MetricsServer:
    """Serve `prometheus_text` at ``http://host:port/metrics``, from threads of its own.

    Args:
        loaders: one, or several by name.
        port: 0 takes a free one; the server's ``port`` tells which. Ranks on one computer need one each.
        host: the address to listen at. By default this computer alone may ask: there is no password. ``"0.0.0.0"`` lets all in.

    Raises:
        DDLPError: the port is taken or not allowed, or the address is not this computer's.
    """
    return MetricsServer(lambda: prometheus_text(loaders), host, port)
