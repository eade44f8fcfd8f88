"""Sensors below a recorded /sys. Sensors of this machine are only looked for: it may have none that measure power."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from queue import SimpleQueue

import pytest

from csd_engine.machine import sensors
from csd_engine.machine.sensors import Reading, whole
from tests.engine_process import until


def write(root: Path, files: dict[str, object]) -> Path:
    """Write files below root. A link in the real /sys is a directory here."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


# A laptop (one package, its memory, and the package again under mmio), and a server's second package with two dies.
POWERCAP = {
    "class/powercap/intel-rapl/enabled": 1,
    "class/powercap/intel-rapl:0/name": "package-0",
    "class/powercap/intel-rapl:0/energy_uj": 262143000000,
    "class/powercap/intel-rapl:0/max_energy_range_uj": 262143328850,
    "class/powercap/intel-rapl:0:0/name": "core",
    "class/powercap/intel-rapl:0:0/energy_uj": 5000000,
    "class/powercap/intel-rapl:0:1/name": "dram",
    "class/powercap/intel-rapl:0:1/energy_uj": 1500000,
    "class/powercap/intel-rapl:0:1/max_energy_range_uj": 65712999613,
    "class/powercap/intel-rapl:1/name": "psys",
    "class/powercap/intel-rapl:1/energy_uj": 9000000,
    "class/powercap/intel-rapl:10/name": "package-1-die-0",
    "class/powercap/intel-rapl:10/energy_uj": 2000000,
    "class/powercap/intel-rapl-mmio:0/name": "package-0",
    "class/powercap/intel-rapl-mmio:0/energy_uj": 262143000000,
}
JETSON = {
    "class/hwmon/hwmon0/name": "thermal",
    "class/hwmon/hwmon0/temp1_input": 40000,
    "class/hwmon/hwmon2/name": "ina3221",
    **{f"class/hwmon/hwmon2/in{n}_input": volts for n, volts in ((1, 5000), (2, 5000), (3, 4900), (4, 8), (7, 30))},
    **{f"class/hwmon/hwmon2/curr{n}_input": current for n, current in ((1, 1200), (2, 300), (3, 100), (4, 1600))},
    **{f"class/hwmon/hwmon2/in{n}_label": label for n, label in ((1, "VDD_IN"), (2, "VDD_CPU"), (3, "VIN_SYS_5V0"))},
    "class/hwmon/hwmon10/name": "ina219",
    "class/hwmon/hwmon10/in0_input": 2,
    "class/hwmon/hwmon10/in1_input": 12000,
    "class/hwmon/hwmon10/curr1_input": 500,
    "class/hwmon/hwmon10/power1_input": 5980000,
}


def test_rapl_counts_each_package_once(tmp_path):
    found = sensors.rapl(str(write(tmp_path, POWERCAP)))
    assert [(one.name, one.part) for one in found] == [
        ("rapl/package-0", "cpu"), ("rapl/package-0/core", ""), ("rapl/package-0/dram", "dram"), ("rapl/psys", ""),
        ("rapl/package-1-die-0", "cpu"),
    ]  # fmt: skip
    assert found[0].read() == Reading("rapl/package-0", "cpu", 262143.0, None, 262143.32885)
    assert sum(one.joules for one in whole(sensors.read_all(found))) == 262143 + 1.5 + 2


def test_a_package_that_only_mmio_shows_counts(tmp_path):
    mmio = {name: value for name, value in POWERCAP.items() if "mmio" in name}
    assert [one.name for one in sensors.rapl(str(write(tmp_path, mmio)))] == ["rapl/package-0"]


def test_an_ina3221s_rails_are_volts_times_amperes(tmp_path):
    readings = sensors.read_all(sensors.hwmon(str(write(tmp_path, JETSON))))
    assert [(one.sensor, one.watts) for one in readings] == [
        ("ina3221/VDD_IN", 6.0), ("ina3221/VDD_CPU", 1.5), ("ina3221/VIN_SYS_5V0", pytest.approx(0.49)),
        ("ina219/power1", 5.98),
    ]  # fmt: skip
    assert [one.sensor for one in whole(readings)] == ["ina3221/VDD_IN"]  # the other rails are fed by this one
    assert [one.sensor for one in whole(readings[1:])] == ["ina3221/VDD_CPU", "ina3221/VIN_SYS_5V0", "ina219/power1"]
    assert [one.sensor for one in whole(readings, ["ina219/power1"])] == ["ina219/power1"]


def test_what_sleeps_tells_nothing_and_comes_back(tmp_path):
    found = sensors.hwmon(str(write(tmp_path, JETSON)))
    current = tmp_path / "class/hwmon/hwmon2/curr1_input"
    current.unlink()
    readings = sensors.read_all(found)
    assert readings[0] == Reading("ina3221/VDD_IN", "machine", None, None) and readings[1].watts == 1.5
    assert whole(readings) == readings[:1], "the other rails do not replace it"
    current.write_text("junk")
    assert sensors.read_all(found) == readings
    current.write_text("1000\n")
    assert sensors.read_all(found)[0].watts == 5.0


def test_counters_of_energy_before_powers_and_equal_names_apart(tmp_path):
    for number in (0, 1):
        write(tmp_path, {
            f"class/hwmon/hwmon{number}/name": "xe",
            f"class/hwmon/hwmon{number}/energy1_input": 7000000,
            f"class/hwmon/hwmon{number}/power1_input": 1,
        })  # fmt: skip
    write(tmp_path, {"class/hwmon/hwmon2/device/name": "amdgpu", "class/hwmon/hwmon2/device/power1_average": 30000000})
    readings = sensors.read_all(sensors.hwmon(str(tmp_path)))
    assert readings == [
        Reading("xe/energy1", "gpu", 7.0, None), Reading("xe/energy1-2", "gpu", 7.0, None),
        Reading("amdgpu/power1", "gpu", None, 30.0),
    ]  # fmt: skip


def test_a_package_within_an_intel_card_is_not_counted_beside_it(tmp_path):
    write(tmp_path, {
        "class/hwmon/hwmon0/name": "xe",
        "class/hwmon/hwmon0/energy1_input": 7000000, "class/hwmon/hwmon0/energy1_label": "card",
        "class/hwmon/hwmon0/energy2_input": 5000000, "class/hwmon/hwmon0/energy2_label": "pkg",
        "class/hwmon/hwmon1/name": "xe",
        "class/hwmon/hwmon1/energy2_input": 3000000, "class/hwmon/hwmon1/energy2_label": "pkg",
    })  # fmt: skip
    readings = sensors.read_all(sensors.hwmon(str(tmp_path)))
    assert readings == [
        Reading("xe/card", "gpu", 7.0, None), Reading("xe/pkg", "", 5.0, None), Reading("xe/pkg-2", "gpu", 3.0, None),
    ]  # fmt: skip


def test_nothing_where_there_is_nothing(tmp_path):
    assert sensors.sensors(str(tmp_path)) == []
    assert isinstance(sensors.sensors(), list)  # this machine's own


def test_an_engine_tells_what_its_sensors_say_now(start, recipe, tmp_path):
    tree = write(tmp_path / "sys", {**JETSON, "class/thermal/thermal_zone0/temp": 44000})
    engine = start("--root", str(recipe.root), "--sys", str(tree))
    link = engine.link()
    assert [one.sensor for one in whole(link.sensors())] == ["ina3221/VDD_IN"]
    assert link.status().temperature_c == 44
    (tree / "class/hwmon/hwmon2/curr1_input").write_text("2000\n")
    until(lambda: whole(link.sensors())[0].watts == 10.0)
    for name in os.listdir(tree / "class/hwmon/hwmon2"):
        os.unlink(tree / "class/hwmon/hwmon2" / name)
    assert [one.sensor for one in link.sensors()] == ["ina219/power1"]  # one sensor has vanished
    link.close()


def test_what_no_sensor_can_measure_is_no_value(start, recipe, tmp_path):
    energy = tmp_path / "sys/class/hwmon/hwmon5/energy1_input"
    odd = {"class/hwmon/hwmon5/name": "xe", "class/hwmon/hwmon5/energy1_input": 0}
    engine = start("--root", str(recipe.root), "--sys", str(write(tmp_path / "sys", {**JETSON, **odd})))
    link = engine.link()
    job = recipe.open(link, SimpleQueue())
    for said in ("-5", str(10**40), str(10**400), "nan"):
        energy.write_text(said)
        readings = link.sensors()
        assert "ina219/power1" in [one.sensor for one in readings] and Reading("xe/energy1", "gpu", None, None) in readings
    energy.write_text("5000000\n")
    assert Reading("xe/energy1", "gpu", 5.0, None) in link.sensors() and job.open
    link.close()


@pytest.mark.parametrize(("number", "left_out"), [(errno.EACCES, True), (errno.EPERM, False)])
def test_what_may_not_be_read_is_left_out_and_a_suspended_card_is_not(monkeypatch, tmp_path, number, left_out):
    """Only a real card answers EPERM, and root may read every file: so the test raises the error itself."""
    (found,) = sensors.hwmon(str(write(tmp_path, {
        "class/hwmon/hwmon0/name": "amdgpu", "class/hwmon/hwmon0/power1_average": 30000000,
    })))  # fmt: skip

    def refused(*_: object) -> str:
        raise PermissionError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", refused)
    assert sensors.read_all([found]) == ([] if left_out else [Reading("amdgpu/power1", "gpu", None, None)])
