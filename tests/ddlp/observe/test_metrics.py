"""Prometheus metrics: scraped over HTTP during real epochs, parsed by Prometheus's own parser."""

from __future__ import annotations

import os
import socket
import threading
import urllib.error
import urllib.request

import pytest

from ddlp import DDLPError, DDLPLoader
from ddlp.observe import prometheus_text, serve_metrics
from tests.ddlp.observe.small_loader import small
from tests.forks import Forks

parser = pytest.importorskip("prometheus_client.parser")


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """(name, label values...) -> value. Each family must come once, with help and type, named by the conventions."""
    found, families = {}, []
    for family in parser.text_string_to_metric_families(text):
        families.append(family.name)
        assert family.documentation and family.type in ("counter", "gauge"), family
        for sample in family.samples:
            assert sample.name.startswith("ddlp_") and sample.name.endswith("_total") == (family.type == "counter")
            found[(sample.name, *sample.labels.values())] = sample.value
    assert len(families) == len(set(families)) == text.count("# TYPE ") == text.count("# HELP ")
    return found


def scrape(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=300) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(answer.read().decode())


def test_scraped_during_epochs_of_both_sides(data):
    loader = DDLPLoader(data, 4, strategy="csd", seed=0)
    seen = []
    with serve_metrics(loader, 0) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
        seen.append(scrape(server.url))
        for epoch in range(2):
            for k, _ in enumerate(loader):
                if k in (4, 12):
                    seen.append(scrape(server.url))
                    batches = 20 * epoch + k + 1
                    assert seen[-1]["ddlp_batches_total", "csd"] == seen[-1]["ddlp_samples_total",] / 4 == batches
                    assert seen[-1]["ddlp_epoch_delivered_batches",] == k + 1 and seen[-1]["ddlp_epoch",] == epoch
        seen.append(scrape(server.url))
    assert seen[0]["ddlp_epochs_total",] == seen[0]["ddlp_samples_total",] == 0 and seen[0]["ddlp_epoch_batches",] == 20
    during = seen[2]
    assert during["ddlp_device_up", "embedded engine"] == 1 and during["ddlp_side_samples_per_second", "csd"] > 0
    assert 0 <= during["ddlp_spool_batches", "embedded engine"] <= during["ddlp_spool_quota_batches", "embedded engine"]
    assert ("ddlp_side_samples_per_second", "host") not in during  # an unknown rate must not appear as 0
    last = seen[-1]
    assert last["ddlp_info", "0.1.0", "csd"] == 1 and last["ddlp_batches_total", "host"] == 0
    assert last["ddlp_waiting_now_seconds",] == 0
    waited = sum(value for key, value in last.items() if key[0] == "ddlp_waiting_seconds_total")
    assert 0 < waited < last["ddlp_epoch_seconds_total",]
    for before, after in zip(seen, seen[1:]):
        assert all(after[key] >= value for key, value in before.items() if key[0].endswith("_total"))


def test_several_loaders_and_any_name():
    name = 'va"l\\ \n'
    train, val = small(), small(10)
    list(val)
    found = parsed(prometheus_text({"train": train, name: val}))
    assert found["ddlp_samples_total", "train"] == 0 and found["ddlp_samples_total", name] == 10
    assert found["ddlp_batches_total", name, "host"] == 5


def test_ranks_are_told_apart(monkeypatch):
    for key, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2",
                       "LOCAL_WORLD_SIZE": "2"}.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    assert parsed(prometheus_text(small()))["ddlp_samples_total", "1"] == 0


def test_only_metrics_are_there():
    with serve_metrics(small(), 0) as server:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(server.url.replace("/metrics", "/etc/passwd"), timeout=300)
        assert scrape(server.url + "?name=x")
        with urllib.request.urlopen(urllib.request.Request(server.url, method="HEAD"), timeout=300) as answer:
            assert int(answer.headers["Content-Length"]) > 100 and answer.read() == b""
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(urllib.request.Request(server.url, b"x"), timeout=300)


def test_closed_it_is_gone():
    server = serve_metrics(small(), 0)
    scrape(server.url)
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=60)
    assert not [thread for thread in threading.enumerate() if thread.name == "ddlp-metrics"]
    with serve_metrics(small(), server.port) as again:
        assert again.port == server.port and scrape(again.url)


def test_a_forked_worker_does_not_keep_the_port():
    server = serve_metrics(small(), 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent closes its end
        os._exit(0)
    try:
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=60)
        serve_metrics(small(), server.port).close()
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_a_silent_client_holds_nobody_up():
    loader = small()
    with serve_metrics(loader, 0) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert len(list(loader)) == 12 and scrape(server.url)["ddlp_samples_total",] == 24


def test_a_port_that_is_taken_is_said():
    with serve_metrics(small(), 0) as server:
        with pytest.raises(DDLPError, match=rf"no port {server.port} on 127.0.0.1 .*port=0"):
            serve_metrics(small(), server.port)
    with pytest.raises(DDLPError, match="192.0.2.1"):
        serve_metrics(small(), 0, host="192.0.2.1")
    with pytest.raises(ValueError, match="0 to 65535"):
        serve_metrics(small(), 70000)


NOT_CLOSED = """
import numpy as np
from torchvision import transforms
from ddlp import DDLPLoader, ImageArrays
from ddlp.observe import serve_metrics
from ddlp.process import finalizers
finalizers.WAIT_S = 1000.0
loader = DDLPLoader(ImageArrays(np.zeros((8, 4, 4, 3), np.uint8), range(8), transforms.ToTensor()), 2)
server = serve_metrics(loader, 0)
print(len(list(loader)))
"""


def test_a_process_ends_at_once_though_it_is_served_still(forks: Forks):
    done = forks.run(code=NOT_CLOSED, environment=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")
