"""A device's sensors through a real engine process. It reads a recorded hwmon tree, which the test changes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlp.deploy import status
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.observe.energy import EnergyMeter
from ddlp.observe.energy.device import DeviceSensors
from tests.ddlp.observe.energy.conftest import Recorded
from tests.engine_process import EngineProcess, until


@contextlib.contextmanager
def running(root: Path) -> Iterator[EngineProcess]:
    home = Path(tempfile.mkdtemp(prefix="e-"))
    engine = EngineProcess(home, "--root", str(root), "--sys", str(root))
    yield engine
    engine.end()
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, Path]]:
    """An engine for all tests here, and what it takes for its /sys."""
    root = tmp_path_factory.mktemp("device") / "sys"
    root.mkdir()
    with running(root) as engine:
        yield engine, root


@pytest.fixture
def recorded(shared: tuple[EngineProcess, Path]) -> Recorded:
    """A board with one INA219, at 2.5 W."""
    shutil.rmtree(shared[1])
    recorded = Recorded(shared[1])
    shutil.rmtree(recorded.root / "class/powercap")
    recorded.write("class/hwmon/hwmon0/name", "ina219")
    recorded.write("class/hwmon/hwmon0/power1_input", 2_500_000)
    return recorded


@pytest.fixture
def engine(shared: tuple[EngineProcess, Path], recorded: Recorded) -> EngineProcess:
    return shared[0]


def device(engine: EngineProcess) -> Device:
    return Device(engine.address, engine.keys, name="csd0")


def test_the_device_is_measured_beside_the_host(engine, recorded, monkeypatch):
    monkeypatch.setattr("ddlp.observe.energy.device._POWER_INTERVAL_S", 0.02)
    meter = EnergyMeter.auto(device(engine), sys=str(recorded.root.parent / "nothing"))
    with meter:
        (reader,) = (one for one in meter._readers if one.source.name == "csd0")
        until(lambda: reader.tallies)
        power = recorded.write("class/hwmon/hwmon0/power1_input", 4_500_000)
        until(lambda: reader.tallies["csd0 ina219/power1"][1]._last[0] == 4.5)
        power.unlink()  # the sensor sleeps
        time.sleep(0.1)
        recorded.write("class/hwmon/hwmon0/power1_input", 4_500_000)
    result = meter.result()
    csd = next(one for one in result.parts if one.part == "csd")
    assert not csd.modelled and csd.sensors == ("csd0 ina219/power1",) and csd.covered == pytest.approx(1)
    assert 2.5 * result.seconds <= csd.joules <= 4.5 * result.seconds
    assert next(one for one in result.parts if one.part == "cpu").modelled and result.how == "partly modelled"


def test_a_device_without_sensors_is_modelled_and_named(engine, recorded):
    shutil.rmtree(recorded.root / "class/hwmon")
    meter = EnergyMeter.auto(device(engine), sys=str(recorded.root))
    with meter:
        pass
    result = meter.result()
    assert next(one for one in result.parts if one.part == "csd").modelled
    assert "csd0: it has no sensor of its power" in result.absent


def test_a_meter_of_yours_counts_the_devices_instead(engine, tmp_path):
    (tmp_path / "board").write_text("7 W\n")
    meter = EnergyMeter.auto(device(engine), [f"csd=file:{tmp_path}/board"], sys=str(tmp_path))
    with meter:
        time.sleep(0.05)
    result = meter.result()
    (csd,) = (one for one in result.parts if "csd" in one.part)
    assert csd.joules == pytest.approx(7 * result.seconds) and not csd.modelled
    assert "csd0: your meter counts it" in result.absent


def a_board(recorded):
    """A board with one monitor chip: its input, and one of the rails behind it."""
    shutil.rmtree(recorded.root / "class/hwmon")
    recorded.write("class/hwmon/hwmon0/name", "ina3221")
    for number, label in ((1, "VDD_IN"), (2, "VDD_CPU")):
        recorded.write(f"class/hwmon/hwmon0/in{number}_label", label)
        recorded.write(f"class/hwmon/hwmon0/in{number}_input", 5000)
        recorded.write(f"class/hwmon/hwmon0/curr{number}_input", 1000 // number)


def test_a_boards_input_that_sleeps_is_not_replaced_by_its_other_rails(engine, recorded):
    a_board(recorded)
    source = DeviceSensors(device(engine))
    source.open()
    assert [(one.sensor, one.watts) for one in source.read()] == [("csd0 ina3221/VDD_IN", 5.0)]
    (recorded.root / "class/hwmon/hwmon0/in1_input").unlink()
    assert source.read() == []
    source.close()


def test_a_boards_input_that_sleeps_at_first_is_measured_once_it_wakes_up(engine, recorded):
    a_board(recorded)
    recorded.write("class/hwmon/hwmon0/in1_input", "")
    source = DeviceSensors(device(engine))
    source.open()
    assert [(one.sensor, one.watts) for one in source.read()] == [("csd0 ina3221/VDD_IN", None)]
    recorded.write("class/hwmon/hwmon0/in1_input", 5000)
    assert [(one.sensor, one.watts) for one in source.read()] == [("csd0 ina3221/VDD_IN", 5.0)]
    source.close()


def test_sensors_that_are_chosen(engine, recorded):
    recorded.write("class/hwmon/hwmon1/name", "ina219")
    recorded.write("class/hwmon/hwmon1/power1_input", 1_000_000)
    source = DeviceSensors(device(engine), ("ina219/power1-2",))
    source.open()
    assert [one.watts for one in source.read()] == [1.0]
    source.close()
    with pytest.raises(DDLPError, match="no sensor x, but ina219/power1, ina219/power1-2"):
        DeviceSensors(device(engine), ("x",)).open()


def test_a_device_that_dies_on_the_way(recorded):
    with running(recorded.root) as engine, (meter := EnergyMeter([DeviceSensors(device(engine))], devices=1)):
        until(lambda: meter._readers[0].tallies)
        engine.kill()
    result = meter.result()
    # The engine is gone; or, where the last reading takes over ten seconds on a busy machine, it did not answer any more.
    assert any(text.startswith("csd0: ") for text in result.notes)


def test_status_shows_the_watts(engine, monkeypatch):
    monkeypatch.setenv("DDLP_KEYS", str(engine.keys))
    answer = status.ask(engine.address)
    assert answer.power_w == 2.5 and answer.to_data()["power_w"] == 2.5
    assert "2.5 W" in status.table([answer]) and "power" in status.table([answer])
