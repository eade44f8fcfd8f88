"""Engines that run on their own: reached by address, with other paths, several at once, or not reachable."""

from __future__ import annotations

import shutil
import signal
import time

import pytest

from csd_engine.errors import EngineRefused, EngineUnreachable
from csd_engine.protocol import codec as protocol
from csd_engine.protocol.keys import make_keys
from ddlp import DDLPError, Device
from ddlp.observe import live
from tests.ddlp.faults.scene import Truth, arrays, dataset, device, make_loader, train, until
from tests.small_images import make_images

TCP = "tcp://127.0.0.1:0"


@pytest.mark.parametrize("strategy", ("csd", "mte", "wrr", "ordered"))
@pytest.mark.some(1)
def test_roots_under_another_name(engines, data, truth, told, images, tmp_path, strategy):
    elsewhere = tmp_path / "device"
    shutil.copytree(images, elsewhere)
    engine = engines("--root", f"{images}={elsewhere}", "--slowdown", "2")
    loader = make_loader(data, strategy, csd=device(engine))
    made = 0
    for epoch in range(2):
        at_work = {} if epoch else {0: lambda: until(lambda: any(one.rate for one in live(loader).devices), 30, "its batch")}
        truth.check(train(loader, 0.01, at=at_work), epoch)
        until(lambda: not list(engine.spool.glob("job-*")), 30, "the job's end with its epoch")
        made += loader.report().batches_csd
    assert made and not len(told), list(told)


def test_two_devices_of_which_one_is_killed(engines, data, truth, told, images):
    one, two = (engines("--root", str(images), "--slowdown", "3") for _ in range(2))
    loader = make_loader(data, "wrr", csd=[device(one), device(two)])
    truth.check(train(loader, 0.01))
    batches = train(loader, 0.02, at={8: lambda: one.process.send_signal(signal.SIGKILL)})
    truth.check(batches, 1)
    assert len(told) == 1 and one.address in told[0] and "is gone" in told[0], list(told)
    one.process.wait()
    batches = train(loader, 0.02)
    truth.check(batches, 2)
    assert loader.report().batches_csd
    (left,) = (one for one in live(loader).devices if one.alive)
    assert loader.report().rate_csd == left.rate, "the rate may not include the lost device"


def test_a_device_that_is_lost_is_not_in_the_bound_of_later_epochs(engines, data, truth, told, images):
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=device(engine, connect_timeout_s=1))
    train(loader)
    assert loader.report().rate_csd and live(loader).bound
    engine.kill()
    truth.check(train(loader), 1)
    report = loader.report()
    assert (report.batches_cpu, report.rate_csd) == (40, None) and len(told) == 1
    assert report.rate_cpu and live(loader).bound == report.rate_cpu
    assert report.bound_s == pytest.approx(report.samples / report.rate_cpu)


def test_arrays_travel_below_the_spool(engines, truth, told, images):
    """Half a megabyte of images, of which the engine's roots hold nothing."""
    engine = engines("--root", str(images))
    data = arrays(16)
    loader = make_loader(data, "csd", csd=device(engine))
    truth = Truth(data)
    for epoch in range(2):
        truth.check(train(loader), epoch)
        assert loader.report().batches_csd == 4 and not len(told), list(told)
    assert len(list(engine.spool.glob("files/*/*.npy"))) == 1


@pytest.mark.parametrize("way", ["a link in it", "the directory itself"])
@pytest.mark.some(1)
def test_the_spools_files_lead_nowhere_else(engines, told, images, tmp_path, way):
    """A host may put links there. The engine does not read what they point to."""
    engine = engines("--root", str(images))
    data = arrays(40)
    loader = make_loader(data, "wrr", csd=device(engine))
    iterator = iter(loader)
    (array,) = until(lambda: list(engine.spool.glob("files/*/*.npy")))
    assert len(list(iterator)) == 10
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.copy(array, outside / array.name)
    if way == "a link in it":
        array.unlink()
        array.symlink_to(outside / array.name)
    else:
        home = array.parent
        shutil.move(home, tmp_path / "kept")
        home.symlink_to(outside)
    batches = train(loader, 0.05)
    assert len(batches) == 10 and loader.report().batches_csd == 0
    if way != "a link in it":
        home.unlink()


# -- unreachable engines ------------------------------------------------------------------------------------------------


def fails(loader, kind, match):
    """Assert that the first iteration raises with what is wrong."""
    with pytest.raises(kind, match=match):
        for _ in loader:
            time.sleep(0.1)


def test_nobody_there(leaves_nothing, data, tmp_path):
    keys = make_keys(tmp_path / "keys")
    loader = make_loader(data, "csd", csd=Device("tcp://127.0.0.1:1", keys, connect_timeout_s=1))
    fails(loader, EngineUnreachable, "(?s)tcp://127.0.0.1:1 within 1 s.*firewall")


def test_one_of_two_is_not_there(engines, data, truth, images, tmp_path):
    """The other device does not wait for it."""
    engine = engines("--root", str(images), "--slowdown", "2")
    nobody = Device("tcp://127.0.0.1:1", engine.keys, connect_timeout_s=30)
    loader = make_loader(data, "wrr", csd=[nobody, device(engine)])
    iterator = iter(loader)
    next(iterator)
    until(lambda: any(one.rate for one in live(loader).devices), 30, "the other one's batch")
    iterator._shutdown_workers()


def test_no_address(leaves_nothing, data, tmp_path):
    keys = make_keys(tmp_path / "keys")
    loader = make_loader(data, "csd", csd=Device("ipc:///no/such/socket", keys, connect_timeout_s=1))
    fails(loader, EngineUnreachable, "no/such")


def test_no_keys(leaves_nothing, data, tmp_path):
    loader = make_loader(data, "csd", csd=Device("tcp://127.0.0.1:1", tmp_path / "none"))
    fails(loader, DDLPError, r"(?s)keys of the engine at tcp.*server.key and host.key_secret.*Device\(keys=")


def test_what_is_wrong_between_an_engine_and_this_host_is_said(engines, data, images, tmp_path, monkeypatch):
    engine = engines("--root", str(images))
    elsewhere = dataset(make_images(tmp_path / "elsewhere", 8))
    fails(make_loader(elsewhere, "csd", csd=device(engine)), EngineRefused, "(?s)outside the roots.*--root")
    unseen = make_loader(data, "csd", csd=device(engine, spool=tmp_path / "nothing"), transfer="shared")
    fails(unseen, DDLPError, r"(?s)transfer='shared'.*nothing.*Device\(spool=.*leave transfer= out")
    fails(make_loader(data, "csd", csd=Device(engine.address, make_keys(tmp_path / "other"))), EngineRefused, "server.key")
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "PROTOCOL", 99)
        fails(make_loader(data, "csd", csd=device(engine)), EngineRefused, "(?s)protocol 7.*protocol 99.*same version")
    (engine.keys / "clients" / "host.key").unlink()
    fails(make_loader(data, "csd", csd=device(engine)), EngineRefused, "clients directory")


def test_different_data_there(engines, told, tmp_path):
    """The device's data set has other images under the same names."""
    here, there = tmp_path / "here", tmp_path / "there"
    paths = make_images(here, 40)
    make_images(there, 40)
    for path in there.iterdir():
        shutil.copy(paths[3], path)
    engine = engines("--root", f"{here}={there}")
    fails(make_loader(dataset(paths), "csd", csd=device(engine)), DDLPError, "other pixels")
