"""What is read of the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys

from csd_engine.machine import computer

HOARDER = "import sys; kept = bytearray(64 << 20); kept[::4096] = bytes(len(kept[::4096])); print(flush=True); sys.stdin.read()"


def test_memory_of_processes_counts_what_they_hold():
    idle = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    hoarder = subprocess.Popen([sys.executable, "-c", HOARDER], stdin=-1, stdout=-1)
    try:
        for process in (idle, hoarder):
            assert process.stdout.readline()
        few, many = computer.process_memory([idle.pid]), computer.process_memory([hoarder.pid])
        for less, more in zip(few, many, strict=True):
            assert 60 << 20 < more - less < 70 << 20
        both = computer.process_memory([idle.pid, hoarder.pid])
        assert abs(both[0] - few[0] - many[0]) < 1 << 20
    finally:
        for process in (idle, hoarder):
            process.communicate(b"\n")
    assert computer.process_memory([idle.pid]) == (0, 0)


def test_this_computers_memory():
    memory = computer.memory()
    assert 0 < memory.available <= memory.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_control_groups_limit_is_what_counts(tmp_path, monkeypatch):
    group = tmp_path / "board"
    group.mkdir()
    monkeypatch.setattr(computer, "_groups", lambda: [(group, "memory.max", "memory.current")])
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{300 << 20}\n")
    assert computer.memory().total > 512 << 20
    (group / "memory.max").write_text(f"{512 << 20}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {100 << 20}\n")
    assert computer.memory() == (512 << 20, 312 << 20)


def test_the_hottest_sensor_counts_and_nonsense_does_not(tmp_path):
    assert computer.temperature_c(str(tmp_path)) is None
    monitor = tmp_path / "class/hwmon/hwmon0"
    monitor.mkdir(parents=True)
    (monitor / "temp1_input").write_text("41500\n")
    assert computer.temperature_c(str(tmp_path)) == 41.5
    for number, text in enumerate(["-274000\n", "46000\n", "52250\n", "junk\n"]):
        zone = tmp_path / f"class/thermal/thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "temp").write_text(text)
    assert computer.temperature_c(str(tmp_path)) == 52.25


def test_cpus_are_those_it_may_use():
    one = [sys.executable, "-c", "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
           "from csd_engine.machine.computer import cpus; print(cpus())"]  # fmt: skip
    assert subprocess.run(one, capture_output=True, check=True).stdout == b"1\n"
    assert computer.cpus() == len(os.sched_getaffinity(0))
