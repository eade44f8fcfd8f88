"""A user's own meter: real files, real commands."""

from __future__ import annotations

import os
import time

import pytest

from csd_engine.machine.sensors import Reading
from ddlp.errors import DDLPError
from ddlp.observe.energy import EnergyMeter, ExternalMeter
from ddlp.observe.energy import external as module


@pytest.mark.parametrize(
    ("text", "joules", "watts"),
    [("231.5 W\n", None, 231.5), ("200", None, 200), ("1500mW", None, 1.5), ("0.5 kWh\n\n", 1.8e6, None),
     ("old 1\n 2e3 J", 2000, None),
     ("3 Wh", 10800, None), ("-5 W", None, -5)],
)  # fmt: skip
def test_a_file_in_any_unit(tmp_path, text, joules, watts):
    (tmp_path / "meter").write_text(text)
    meter = ExternalMeter(f"file:{tmp_path}/meter")
    meter.open()
    assert meter.read() == [Reading(meter.name, "machine", joules, watts)]


def test_a_long_log_is_read_from_its_end(tmp_path):
    (tmp_path / "log").write_text("".join(f"{watts} W\n" for watts in range(20000)))
    assert ExternalMeter(f"csd=file:{tmp_path}/log").read()[0][1:4] == ("csd", None, 19999)


@pytest.mark.parametrize(
    ("spec", "said"),
    [("wattmeter", "is no meter"), ("file:/nowhere/at/all", "No such file"), ("command:echo", "said nothing"),
     ("command:echo 5 volts", "'5 volts'"), ("command:echo oh no >&2; exit 3", "status 3: oh no"),
     ("command:exit 6", "status 6: it said nothing; type it into a shell to see why"),
     ("command:/nowhere/at/all", "status 127")],
)  # fmt: skip
def test_what_can_not_be_read_says_so(spec, said):
    with pytest.raises(DDLPError, match=said):
        EnergyMeter.auto(external=[spec])


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_COMMAND_S", 0.5)
    with pytest.raises(DDLPError, match="more than 0.5 s"):
        ExternalMeter(f"command:sh -c 'echo $$ > {tmp_path}/pid; sleep 60' > /dev/null 2>&1; true").open()
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while time.monotonic() < end and os.path.exists(f"/proc/{pid}") and " Z " not in open(f"/proc/{pid}/stat").read():
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}") or " Z " in open(f"/proc/{pid}/stat").read()


def test_a_command_that_counts_joules_around_an_epoch(tmp_path):
    (tmp_path / "counter").write_text("100\n")
    meter = EnergyMeter([ExternalMeter(f"machine=command:cat {tmp_path}/counter | sed 's/$/ kJ/'")], model=None)
    with meter:
        while not meter._readers[0].tallies:  # its thread does the first reading
            time.sleep(0.01)
        (tmp_path / "counter").write_text("104.5\n")
    assert meter.result().total_j == pytest.approx(4500) and meter.result().how == "measured"
