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
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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


def _metrics(now: Live) -> Iterator[tuple[str, str, str, Samples]]:
    """All numbers: name, kind, help, and samples: labels and values; None: not known."""
    total, report, devices = now.total, now.report, now.devices
    yield "info", "gauge", "What runs; always 1.", [({"version": __version__, "strategy": report.strategy}, 1)]
    yield "epochs_total", "counter", "Epochs begun.", [({}, total.epochs)]
    by_side = _sides(total.batches_host, total.batches_csd)
    yield "batches_total", "counter", "Batches delivered, by the side that prepared them.", by_side
    yield "samples_total", "counter", "Samples delivered.", [({}, total.samples)]
    yield "epoch_seconds_total", "counter", "Time within epochs.", [({}, total.seconds)]
    text = "Time that training waited for a batch: an epoch's first one (start), one that the host or a device (csd) was at, "
    text += "one of a device on its way into memory (transfer)."
    yield "waiting_seconds_total", "counter", text, [({"cause": cause}, seconds) for cause, seconds in total.waiting.items()]
    yield "host_cpu_seconds_total", "counter", "Processor time of the host's preparation.", [({}, total.host_cpu_s)]
    text = "Batches taken back from a device: the host had them first, or it retired before it began them."
    yield "leases_taken_back_total", "counter", text, [({}, total.leases_taken_back)]
    text = "Batches that a device failed to make, lost or damaged: the host makes them."
    yield "leases_lost_total", "counter", text, [({}, total.leases_lost)]
    yield "epoch", "gauge", "Number of the epoch under way, or of the last one.", [({}, report.epoch)]
    yield "epoch_batches", "gauge", "Batches of this epoch.", [({}, now.batches)]
    yield "epoch_delivered_batches", "gauge", "Batches of this epoch delivered.", [({}, now.delivered)]
    text = "Since training asked for the batch that it waits for; 0 while it has one."
    yield "waiting_now_seconds", "gauge", text, [({}, now.waiting_now_s)]
    text = "What a side can prepare, as seen so far; both together bound the epoch."
    yield "side_samples_per_second", "gauge", text, _sides(report.rate_cpu, report.rate_csd)
    text = "Batches ready in memory, by the side that prepared them."
    yield "ready_batches", "gauge", text, _sides(now.ready_host, now.ready_csd)
    up = [({"device": device.name}, int(device.alive)) for device in devices]
    yield "device_up", "gauge", "1 while the device is at work for the epoch, else 0.", up
    states = Counter(device.state for device in devices)
    by_state = [({"state": state}, states[state]) for state in STATES] if states else []
    yield "engines", "gauge", "Devices and engines of pools, by what they do.", by_state
    rates = [({"device": device.name, "node": device.node}, device.rate) for device in devices]
    yield "device_samples_per_second", "gauge", "What the device can prepare, as seen so far.", rates
    held = [({"device": device.name}, device.held) for device in devices]
    yield "spool_batches", "gauge", "Batches in the device's spool, those being written included.", held
    quotas = [({"device": device.name}, device.quota) for device in devices]
    yield "spool_quota_batches", "gauge", "Batches that may be there.", quotas


def _sides(host: float | None, csd: float | None) -> Samples:
    return [({"side": "host"}, host), ({"side": "csd"}, csd)]


def prometheus_text(loaders: DDLPLoader | Mapping[str, DDLPLoader]) -> str:
    """The numbers of a loader in Prometheus's text format; of several, given by name, each with a label ``loader``.

    Counters run over all epochs of a loader. What is not known (yet) is left out. May be called from any thread: a loader's
    numbers are of one moment, and its training goes on meanwhile.
    """
    named = loaders.items() if isinstance(loaders, Mapping) else [("", loaders)]
    ranks = here()
    rank: Labels = {} if ranks is None else {"rank": str(ranks.rank)}
    families: dict[str, list[str]] = {}
    for name, loader in named:
        label = {"loader": name} if isinstance(loaders, Mapping) else {}
        for metric, kind, text, samples in _metrics(live(loader)):
            head = [f"# HELP {_PREFIX}{metric} {text}", f"# TYPE {_PREFIX}{metric} {kind}"]
            lines = families.setdefault(metric, head)
            lines += [_line(metric, {**label, **rank, **own}, value) for own, value in samples if value is not None]
    return "\n".join(line for lines in families.values() if len(lines) > 2 for line in lines) + "\n"


def _line(metric: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
    return f"{_PREFIX}{metric}{{{inner}}} {float(value)!r}" if inner else f"{_PREFIX}{metric} {float(value)!r}"


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
    known = request.path.partition("?")[0] == "/metrics"
    body = (text() if known else "see /metrics\n").encode()
    request.send_response(200 if known else 404)
    request.send_header("Content-Type", CONTENT_TYPE if known else "text/plain; charset=utf-8")
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
