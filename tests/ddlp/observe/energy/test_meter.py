"""EnergyMeter: real files of a recorded tree, real threads, mostly with the test's clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from csd_engine.machine.sensors import Reading
from ddlp.errors import DDLPError
from ddlp.observe.energy import EnergyMeter, EnergyResult, ExternalMeter, PaperModel, Tariff
from ddlp.observe.energy.sources import local_sources
from ddlp.stats.report import EpochReport
from tests.engine_process import until

REPORT = EpochReport("wrr", 2, 30, 10, 1280, 10.0, 1.0, 8.0, 120.0, 32.0)


def energy_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "ddlp-energy"]


def measured_here(recorded, clock, **options) -> EnergyMeter:
    sources, absent = local_sources(str(recorded.root))
    return EnergyMeter(sources, absent, clock=clock, **options)


def test_package_and_memory_of_an_epoch_by_part(recorded, clock):
    recorded.package(262143000000)
    with (meter := measured_here(recorded, clock)):
        recorded.package(262143000000 + 400_000_000)  # past the end of its range
        recorded.dram(20_000_000)
        clock.now += 10
    result = meter.result(REPORT, workers=3)
    assert {one.part: one.joules for one in result.parts} == {"cpu": pytest.approx(400), "dram": pytest.approx(20)}
    assert result.total_j == pytest.approx(420) and result.how == "measured"
    assert (result.batches, result.j_per_batch, result.label) == (40, pytest.approx(10.5), "wrr")
    assert result.host_preparing_s == pytest.approx(1280 * 30 / 40 / 120)  # in the paper's Table IX
    assert "the engine ran on this computer" in result.notes[0]
    assert not energy_threads()


def test_what_no_meter_measures_is_modelled_and_called_so(clock):
    with (meter := EnergyMeter(clock=clock)):
        clock.now += 10
    result = meter.result(REPORT, workers=16)
    assert {one.part: one.joules for one in result.parts} == {"cpu": 850, "csd": 2.5}
    assert result.how == "modelled" and str(result).count("modelled") >= 4
    data = json.loads(json.dumps(result.to_data()))
    assert all(part["modelled"] for part in data["parts"]) and data["total_how"] == "modelled"
    assert EnergyResult.from_data(data) == result
    with (bare := EnergyMeter(model=None, clock=clock)):
        clock.now += 1
    assert bare.result(REPORT).how == "not metered" and bare.result(REPORT).parts == ()


def test_a_measured_host_and_a_modelled_device(recorded, clock):
    with (meter := measured_here(recorded, clock, devices=1, model=PaperModel(5, 4))):
        recorded.package(100_000_000)
        clock.now += 10
    result = meter.result(REPORT, workers=3)
    assert {one.part: (one.joules, one.modelled) for one in result.parts} == {
        "cpu": (pytest.approx(100), False), "dram": (0, False), "csd": (40, True),
    }  # fmt: skip
    assert result.how == "partly modelled" and "partly modelled: 40 J of it" in str(result)
    assert result.to_data()["total_how"] == "partly modelled"


@dataclass
class Wall:
    """A meter of the whole machine, in watts."""

    name: str = "wall"
    interval_s: float = 1.0
    prompt: bool = True

    def open(self) -> None: ...

    def read(self) -> list[Reading]:
        return [Reading("wall", "machine", None, 200.0)]

    def close(self) -> None: ...


def test_what_is_inside_a_metered_machine_counts_once(recorded, clock):
    sources, _ = local_sources(str(recorded.root))
    with (meter := EnergyMeter([Wall(), *sources], clock=clock, devices=1)):
        recorded.package(300_000_000)
        clock.now += 4
    result = meter.result(REPORT)
    assert result.total_j == pytest.approx(800 + 1)  # the machine, and the device's 0.25 W
    assert {one.part for one in result.parts} == {"machine", "cpu", "dram", "csd"} and "not added" in str(result)
    with (alone := EnergyMeter([Wall()], clock=clock)):
        clock.now += 4
    assert {one.part for one in alone.result(REPORT).parts} == {"machine"}  # the machine's meter includes the host


def test_one_meter_measures_each_epoch_anew(recorded, clock):
    meter = measured_here(recorded, clock)
    found = []
    for joules in (100, 300):
        with meter:
            recorded.package(joules * 1_000_000)
            clock.now += 1
        recorded.package(0)
        found.append(meter.result().total_j)
    assert found == [pytest.approx(100), pytest.approx(300)]


def test_a_domain_that_sleeps_and_one_that_vanishes(recorded, clock):
    with (meter := measured_here(recorded, clock)):
        (reader,) = meter._readers
        recorded.package(50_000_000)
        file = recorded.dram(7_000_000)
        clock.now += 10
        reader._read()
        file.unlink()  # it sleeps
        clock.now += 10
        reader._read()
        recorded.dram(9_000_000)
        clock.now += 10
        reader._read()
        file.unlink()  # it is gone
        recorded.package(90_000_000)
        clock.now += 10
    result = meter.result()
    joules = {one.part: one for one in result.parts}
    assert joules["cpu"].joules == pytest.approx(90) and joules["cpu"].covered == 1
    assert joules["dram"].joules == pytest.approx(9) and joules["dram"].covered == 0.75
    assert any("dram was metered for 75% of the time" in text for text in result.notes)


def test_a_counter_with_a_short_range_is_read_while_it_goes_round(recorded):
    """In real time: at 300 W, a counter of 150 J would wrap twice per second between begin and end."""
    recorded.write("class/powercap/intel-rapl:0/max_energy_range_uj", 150_000_000)
    sources, _ = local_sources(str(recorded.root))
    assert sources[0].interval_s == pytest.approx(150 / 4000 / 2)
    with (meter := EnergyMeter(sources)):
        assert len(energy_threads()) == 1
        (reader,) = meter._readers
        for step in range(1, 7):
            uj = step * 100_000_000 % 150_000_000
            recorded.write("class/powercap/intel-rapl:0/energy_uj", uj)
            until(lambda uj=uj: reader.tallies["rapl/package-0"][1]._last[0] == uj / 1e6)
    cpu = meter.result().parts[0]
    assert cpu.joules == pytest.approx(600, abs=1e-3), meter.result().notes
    assert not energy_threads()


def test_it_ends_with_an_exception_and_tells_until_then(recorded, clock):
    meter = measured_here(recorded, clock)
    with pytest.raises(ZeroDivisionError), meter:
        recorded.package(30_000_000)
        clock.now += 2
        raise ZeroDivisionError
    assert meter.result().total_j == pytest.approx(30) and not energy_threads()


def test_results_before_the_end_and_two_at_once_are_errors(clock):
    meter = EnergyMeter(clock=clock)
    with pytest.raises(DDLPError, match="nothing was measured yet"):
        meter.result()
    with meter, pytest.raises(DDLPError, match="measures already"):
        meter.start()
    with meter, pytest.raises(DDLPError, match="comes after the with block"):
        meter.result()
    meter.stop()
    assert meter.result().seconds == 0


def test_a_source_that_fails_is_named_and_the_others_go_on(recorded, clock):
    class Broken(Wall):
        def open(self) -> None:
            raise DDLPError("it is unplugged; plug it in")

    class Dying(Wall):
        reads = 0

        def read(self) -> list[Reading]:
            self.reads += 1
            if self.reads > 1:
                raise OSError(5, "it fell off the bus")
            return [Reading("dying", "gpu", 5.0, None)]

    sources, _ = local_sources(str(recorded.root))
    with (meter := EnergyMeter([Broken("unplugged"), Dying("dying"), *sources], clock=clock)):
        recorded.package(30_000_000)
        clock.now += 2
    result = meter.result()
    assert result.total_j == pytest.approx(30)
    assert "unplugged: it is unplugged; plug it in" in result.absent
    assert any("fell off the bus" in text for text in result.notes)


def test_a_slow_meter_holds_up_neither_begin_nor_end_of_what_is_measured():
    class Slow(Wall):
        def read(self) -> list[Reading]:
            time.sleep(0.3)
            return [Reading("slow", "machine", None, 100.0)]

    with (meter := EnergyMeter([Slow("slow", prompt=False)])):
        time.sleep(0.5)
    result = meter.result()
    # However long a reading takes, the joules are those between begin and end.
    assert result.total_j == pytest.approx(100 * result.seconds, rel=1e-6) and result.parts[0].covered == pytest.approx(1)


def test_missing_permission_is_said_once_with_what_to_do(recorded, no_gpu):
    """Root may read every file, so a child process drops that right first."""
    script = (
        "import os, sys, warnings\n"
        "from ddlp.observe.energy import EnergyMeter\n"
        "if os.geteuid() == 0: os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    meters = [EnergyMeter.auto(sys=sys.argv[1]) for _ in range(3)]\n"
        "print(len(caught), caught[0].message)\n"
        "print(meters[2].absent[0])\n"
        "print([one.name for one in meters[2].sources])\n"
    )
    for path in [recorded.root, *recorded.root.parents]:
        if path == Path(tempfile.gettempdir()):
            break
        path.chmod(0o755)
    for name in ("", ":0"):
        (recorded.root / f"class/powercap/intel-rapl:0{name}/energy_uj").chmod(0)  # not even readable by its owner
    done = subprocess.run([sys.executable, "-c", script, recorded.root], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    said, absent, sources = done.stdout.splitlines()
    assert said.startswith("1 ddlp: RAPL rapl/package-0, rapl/package-0/dram: this user may not read it")
    assert "sudo chmod a+r" in said and "sudo chmod a+r" in absent and "RAPL" not in sources


def test_auto_finds_what_is_there(recorded, no_gpu):
    recorded.write("class/hwmon/hwmon0/name", "power_meter")
    recorded.write("class/hwmon/hwmon0/power1_average", 250_000_000)
    recorded.write("class/hwmon/hwmon1/name", "nct6798")
    recorded.write("class/hwmon/hwmon1/power1_input", 1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meter = EnergyMeter.auto(sys=str(recorded.root), tariff=Tariff(1.0, "EUR"))
    assert [one.name for one in meter.sources] == ["RAPL", "hwmon"]
    with meter:
        pass
    result = meter.result()
    assert {one.part for one in result.parts} >= {"machine"} and result.tariff.currency == "EUR"
    assert any("nct6798/power1" in text for text in result.absent)


def test_a_card_that_sleeps_when_the_meter_is_made_counts_once_it_wakes_up(recorded, no_gpu, clock):
    for number in (0, 1):
        recorded.write(f"class/hwmon/hwmon{number}/name", "amdgpu")
        recorded.write(f"class/hwmon/hwmon{number}/power1_average", "")
    meter = EnergyMeter.auto(sys=str(recorded.root), model=None)
    meter._clock = clock
    with meter:
        recorded.write("class/hwmon/hwmon0/power1_average", 20_000_000)
        next(one for one in meter._readers if one.source.name == "hwmon")._read()
        clock.now += 4
    result = meter.result()
    (gpu,) = (one for one in result.parts if one.part == "gpu")
    assert gpu.sensors == ("amdgpu/power1",) and gpu.joules == pytest.approx(80)
    assert [text for text in result.notes if "gave no reading" in text] == [
        "amdgpu/power1-2 gave no reading: it slept all the time, or can't be read; its joules are missing"
    ]


def watts(path: Path, value: float) -> str:
    path.write_text(f"{value} W\n")
    return f"file:{path}"


@pytest.mark.parametrize(("part", "dropped"), [("machine", "hwmon power_meter/power1"), ("cpu", "RAPL rapl/package-0")])
def test_a_part_that_a_meter_of_yours_counts_is_not_counted_twice(recorded, no_gpu, tmp_path, part, dropped):
    recorded.write("class/hwmon/hwmon0/name", "power_meter")
    recorded.write("class/hwmon/hwmon0/power1_average", 250_000_000)
    meter = EnergyMeter.auto(external=[f"{part}={watts(tmp_path / 'wall', 250)}"], sys=str(recorded.root), model=None)
    with meter:
        recorded.package(999_000_000)
        time.sleep(0.05)
    result = meter.result()
    (mine,) = (one for one in result.parts if one.part == part)
    assert mine.joules == pytest.approx(250 * result.seconds) and mine.sensors[0].startswith("external")
    assert f"{dropped}: your meter counts it" in result.absent
    assert sorted(one.part for one in result.parts) == ["cpu", "dram", "machine"]
    assert result.total_j == pytest.approx(250 * result.seconds)


def test_several_meters_of_yours_for_one_part_are_added(recorded, no_gpu, tmp_path):
    both = [watts(tmp_path / "left", 100), watts(tmp_path / "right", 150)]
    with (meter := EnergyMeter.auto(external=both, sys=str(tmp_path), model=None)):
        time.sleep(0.05)
    assert meter.result().total_j == pytest.approx(250 * meter.result().seconds)


def test_this_machines_own_counters_where_it_has_any():
    """This machine's real counters. Virtual machines and containers have none: then the meter must say so."""
    sources, absent = local_sources("/sys")
    if any(one.name == "RAPL" for one in sources):
        with (meter := EnergyMeter(sources)):
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
        assert next(one for one in meter.result().parts if one.part == "cpu").joules > 0
    else:
        assert any(one.startswith("RAPL") for one in absent)


def test_what_one_of_several_ranks_tells_counts_for_each_of_them(clock, monkeypatch):
    """The joules are the whole computer's. So the batches that they are divided by, and the model's processes, must be too."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 8, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4, "MASTER_ADDR": "a",
                        "MASTER_PORT": 1}.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    with (meter := EnergyMeter([Wall()], clock=clock)):
        clock.now += 10
    result = meter.result(REPORT, workers=3)
    assert (result.batches, result.samples, result.host_cpu_s) == (4 * 40, 4 * 1280, 4 * 8.0)
    assert result.host_preparing_s == pytest.approx(4 * 1280 * 30 / 40 / 120)
    assert result.j_per_batch == pytest.approx(2000 / 160) and any("4 ranks" in text for text in result.notes)
    assert meter.result(REPORT, batches=40, samples=7).batches == 40, "a number that is given is used unchanged"
    with (modelled := EnergyMeter(clock=clock)):
        clock.now += 10
    cpu, _ = modelled.result(REPORT, workers=3).parts
    assert cpu.joules == 10 * 5 * 4 * (1 + 3)


@dataclass
class Board(Wall):
    """A device's sensor."""

    def read(self) -> list[Reading]:
        return [Reading(self.name, "csd", None, 3.0)]


def test_each_device_without_a_meter_is_modelled(clock, tmp_path):
    def parts(*sources) -> dict[str, tuple[float, bool]]:
        with (meter := EnergyMeter([Wall(), *sources], devices=2, clock=clock)):
            clock.now += 4
        result = meter.result(REPORT)
        assert result.total_j == pytest.approx(sum(one.joules for one in result.parts))
        return {one.part: (one.joules, one.modelled) for one in result.parts if one.part != "machine"}

    assert parts() == {"csd": (2 * 0.25 * 4, True)}
    assert parts(Board("csd0")) == {"csd": (12, False), "unmetered csd": (0.25 * 4, True)}
    assert parts(Board("csd0"), Board("csd1")) == {"csd": (24, False)}
    assert parts(ExternalMeter(f"csd={watts(tmp_path / 'boards', 5)}")) == {"csd": (20, False)}, "the meter counts both devices"
