"""Hosts that vanish and come back, a cut network, several devices at once: with real processes and network namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest

from ddlp import Device
from ddlp.config import LoaderConfig
from tests.ddlp.faults.scene import BATCH, alive, connections_of, device, make_loader, train, until, until_ready
from tests.engine_process import EngineProcess
from tests.needs import need

HOST = """
    from ddlp import Device
    import os, warnings
    warnings.simplefilter("ignore")
    device = Device(os.environ["ADDRESS"], os.environ["KEYS"])
    loader = make_loader(data, "wrr", csd=device, transfer=os.environ["TRANSFER"])
    truth = Truth(data)
    truth.of(0), truth.of(1)
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == 1:
            until_ready(loader)
        time.sleep(0.03)
        if loader.report().batches_csd == 1:
            said("at work")
    truth.check(batches)
    said("whole")
    truth.check(train(loader, 0.03, at={0: lambda: until_ready(loader)}), 1)
    said("device", loader.report().batches_csd > 0)
"""


def job_directories(engine: EngineProcess) -> list[object]:
    return list(engine.spool.glob("job-*"))


@pytest.mark.parametrize("number, transfer", [(signal.SIGKILL, "shared"), (signal.SIGSTOP, "stream")])
def test_a_host_that_vanishes(engines, script, images, number, transfer):
    """The engine stops working for it and frees its space. The host may come back."""
    engine = engines("--root", str(images), "--lease-timeout", "1", "--slowdown", "3")
    environment = {"ADDRESS": engine.address, "KEYS": str(engine.keys), "TRANSFER": transfer}
    host = script(HOST, **environment)
    assert host.line() == "at work"
    os.kill(host.pid, number)
    until(lambda: not job_directories(engine) and not os.listdir(engine.spool / "files"), 30, "an empty spool")
    until(lambda: "has sent nothing" in engine.log, 30, "the reason in its log")
    if number == signal.SIGKILL:
        host = script(HOST, **environment)
        assert host.line() == "at work"
    else:
        os.kill(host.pid, signal.SIGCONT)
    words = [host.line() for _ in range(2)]
    while words[0] == "at work":
        words = [words[1], host.line()]
    assert words == ["whole", "device True"]
    status, err = host.end()
    assert status == 0 and "Traceback" not in err, err
    until(lambda: not job_directories(engine), 30, "an empty spool")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespace() -> Iterator[tuple[str, str]]:
    """(name of a network namespace, address in it). It is reached over a link of its own, `dd<name>`."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    need("ip")
    name = uuid.uuid4().hex[:8]
    net = f"10.{201 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr}")
    try:
        try:
            ip("-n", name, "link")  # it also makes a mount namespace, which a plain chroot refuses
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be entered here: {error.stderr}")
        ip("link", "add", f"dd{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{net}.1/24", "dev", f"dd{name}")
        ip("link", "set", f"dd{name}", "up")
        ip("-n", name, "addr", "add", f"{net}.2/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        yield name, f"{net}.2"
    finally:
        subprocess.run(["ip", "link", "del", f"dd{name}"], capture_output=True)
        ip("netns", "del", name)


def test_a_cut_network(namespace, spool, data, truth, told, images, tmp_path):
    """Both sides give each other up, clean up alone, and connect again."""
    name, address = namespace
    within = ("ip", "netns", "exec", name)
    arguments = ("--root", str(images), "--lease-timeout", "2", "--slowdown", "3")
    engine = EngineProcess(spool, *arguments, listen=f"tcp://{address}:7711", within=within)
    try:
        loader = make_loader(data, "wrr", csd=Device(engine.address, engine.keys, spool=tmp_path / "none"))
        connections = connections_of(loader)
        truth.check(train(loader, 0.02, at={0: lambda: until_ready(loader)}))
        assert loader.report().batches_csd and not len(told)
        truth.check(train(loader, 0.03, at={5: lambda: ip("link", "set", f"dd{name}", "down")}), 1)
        until(lambda: not job_directories(engine), 30, "an empty spool")
        ip("link", "set", f"dd{name}", "up")
        until(lambda: connections._places[engine.address].link.lost, 30, "the loss to be noticed")
        truth.check(train(loader, 0.03, at={0: lambda: until_ready(loader)}), 2)
        assert loader.report().batches_csd
        assert len(told) <= 1, list(told)  # none if the epoch was over before the silence had lasted long enough
    finally:
        assert engine.end() == 0
    assert "Traceback" not in engine.log


def fetched(loader) -> list[int]:
    """The number of batches from each device, over its sockets."""
    links = [loader._parts.offload.connections._places[device.address].link for device in LoaderConfig.of(loader).devices]
    return [link.stream._fetches + link.sealed._fetches for link in links]


def test_two_devices_share_a_tail_each_at_its_own_speed(engines, data, truth, told, images, tmp_path):
    """One of them is killed in mid-epoch, and joins again in a later one."""
    slow, quick = (engines("--root", str(images), "--slowdown", factor) for factor in ("40", "4"))
    devices = [Device(one.address, one.keys, spool=tmp_path / "none") for one in (slow, quick)]
    loader = make_loader(data, "csd", csd=devices)
    before = [0, 0]
    for epoch in range(20):  # on a busy machine the quick one may join late, or be the slower one for a while
        truth.check(train(loader), epoch)
        assert loader.report().batches_csd == 40
        of_slow, of_quick = (now - then for now, then in zip(fetched(loader), before, strict=True))
        assert of_slow + of_quick >= 40
        if epoch and 0 < of_slow < of_quick:
            break
        before = fetched(loader)
    assert 0 < of_slow < of_quick
    truth.check(train(loader, 0.02, at={6: quick.process.kill}), epoch + 1)
    assert len(told) == 1 and quick.address in told[0] and "is gone" in told[0], list(told)
    quick.process.wait()
    again = EngineProcess(quick.home, "--root", str(images), listen=quick.address, keys=quick.keys)
    try:
        truth.check(train(loader, 0.02), epoch + 2)
        assert fetched(loader)[1] > 0 and len(told) == 1
        assert alive(slow.process.pid)
    finally:
        time.sleep(0.1)
        again.end()


def test_a_device_that_fails_every_lease_leaves_the_tail_to_the_other(engines, data, truth, told, images, paths, tmp_path):
    """It has only the files that both sides compare. So each of its leases fails, and the host makes that batch."""
    for path in paths[:BATCH]:
        shutil.copy(path, tmp_path)
    whole, empty = engines("--root", str(images), "--slowdown", "24"), engines("--root", f"{images}={tmp_path}")
    loader = make_loader(data, "csd", csd=[device(whole), device(empty)])
    for epoch in range(20):  # on a busy machine it may join only when an epoch is over
        truth.check(train(loader), epoch)
        # First three leases in a row and the one beside them fail; then one, and one beside it, after 2 s, 4 s, 8 s ...
        assert loader.report().batches_csd > 24
        news = [text for text in told if "is gone" in text]
        assert len(news) <= epoch + 1, list(told)  # once an epoch, however often it was tried again
        if len(news) == 2:
            break
    assert len(news) == 2, list(told)
    assert all(f"{empty.address} is gone (it can't prepare batches: sample {tmp_path}/image " in text for text in news), news


def test_a_device_that_can_go_on_after_a_failure_of_all_its_leases(engines, data, truth, told, images):
    """Its job's directory was removed, so the first lease fails. The next job has a directory again."""
    engine = engines("--root", str(images), "--slowdown", "24")
    loader = make_loader(data, "csd", csd=device(engine))

    def remove() -> None:
        for one in job_directories(engine):
            while one.exists():  # the worker may make a file in between
                shutil.rmtree(one, ignore_errors=True)

    def returned() -> None:
        until(lambda: f"{engine.address}: it was gone, and is back" in loader.report().notes, 60, "its return")

    truth.check(train(loader, at={0: lambda: until_ready(loader), 3: remove, 6: returned}))
    (lost,) = [text for text in told if f"device {engine.address} is" in text]
    assert "is gone (it can't prepare batches: a batch file cannot be written: No such file" in lost
