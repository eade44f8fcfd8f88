"""What is read from the Linux kernel's files: memory, temperatures, CPUs, quotas."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    group = tmp_path / "board" / "inner"
    group.mkdir(parents=True)
    monkeypatch.setattr(computer, "_groups", lambda controller: (group, group.parent))
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{300 << 20}\n")
    assert computer.memory().total > 512 << 20
    (group / "memory.max").write_text(f"{512 << 20}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {100 << 20}\n")
    assert computer.memory() == (512 << 20, 312 << 20)
    (group.parent / "memory.limit_in_bytes").write_text(f"{640 << 20}\n")  # the limit of cgroup v1; it leaves less memory
    (group.parent / "memory.usage_in_bytes").write_text(f"{600 << 20}\n")
    assert computer.memory() == (512 << 20, 40 << 20)
    (group.parent / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
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


TELL = "from csd_engine.machine.computer import cpus, processors; print(cpus(), processors())"


def told(before: str = "") -> list[float]:
    """Return `cpus()` and `processors()` of a child process that runs `before` first."""
    done = subprocess.run([sys.executable, "-c", f"{before}\n{TELL}"], capture_output=True, check=True)
    return list(map(float, done.stdout.split()))


def test_cpus_are_those_it_may_use():
    cpus, processors = told("import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])")
    assert cpus == 1 and 0 < processors <= 1
    assert 0 < computer.processors() <= len(os.sched_getaffinity(0))
    assert computer.processors() <= computer.cpus() < computer.processors() + 1


def groups(root: Path, lines: str, files: dict[str, str]) -> str:
    """Write a tree of control groups as the Linux kernel shows it."""
    for name, text in {"proc/self/cgroup": lines, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


V1 = "4:memory:/pod/inner\n2:cpu,cpuacct:/pod/inner\n1:name=systemd:/pod\n"


@pytest.mark.parametrize(
    "lines, files, quota",
    [
        ("0::/pod/inner\n", {"pod/inner/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/pod/inner\n", {"pod/inner/cpu.max": "max 100000\n", "pod/cpu.max": "25000 50000\n"}, 0.5),
        ("0::/pod/inner\n", {"pod/inner/cpu.max": "20000 100000\n", "pod/cpu.max": "50000 100000\n"}, 0.2),
        ("0::/pod/inner\n", {"cpu.max": "50000 100000\n"}, 0.5),  # a container that sees its own group as the root
        ("0::/../other\n", {"cpu.max": "50000 100000\n"}, 0.5),  # a process from outside its namespace
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/pod\n", {"pod/cpu.max": "\n", "cpu.max": "50000 0\n"}, None),
        (V1, {"cpu/pod/inner/cpu.cfs_quota_us": "30000\n", "cpu/pod/inner/cpu.cfs_period_us": "100000\n"}, 0.3),
        (V1, {"cpu/pod/cpu.cfs_quota_us": "30000\n", "cpu/pod/cpu.cfs_period_us": "100000\n"}, 0.3),
        (V1, {"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.3),
        (V1, {"cpu/pod/inner/cpu.cfs_quota_us": "-1\n", "cpu/pod/inner/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"memory/pod/inner/cpu.max": "1 100000\n"}, None),
        (V1 + "0::/\n", {"cpu/pod/cpu.cfs_quota_us": "1000\n", "cpu/pod/cpu.cfs_period_us": "100000\n"}, 0.01),
    ],
)  # fmt: skip
def test_a_quota_counts_and_those_of_the_groups_around_it(lines, files, quota, tmp_path):
    count = len(os.sched_getaffinity(0))
    assert computer.processors(groups(tmp_path, lines, files)) == (count if quota is None else pytest.approx(quota))


def test_a_quota_above_the_affinity_changes_nothing(tmp_path):
    count = len(os.sched_getaffinity(0))
    assert computer.processors(groups(tmp_path, "0::/\n", {"cpu.max": f"{count + 1}00000 100000\n"})) == count
    assert computer.processors(str(tmp_path / "nothing")) == count


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A new control group for CPU time. Skips if this machine doesn't let us make one."""
    for top in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        group = top / f"ddlp-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "cpu.max").exists() or (group / "cpu.cfs_quota_us").exists():
            yield group
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("no control group for CPU time can be made here: that takes root, and the controller")


def test_a_real_quota_counts(real_group):
    if (real_group / "cpu.max").exists():
        (real_group / "cpu.max").write_text("50000 100000")
    else:
        (real_group / "cpu.cfs_period_us").write_text("100000")
        (real_group / "cpu.cfs_quota_us").write_text("50000")
    assert told(f"import os; open({str(real_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))") == [1, 0.5]
