"""Measurements on some cores: all threads of the process are moved there, and what runs elsewhere is an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ddlp.process.cores import WrongCores, cpu_s, family, pinned, ran_on
from tests.engine_process import until

USABLE = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(USABLE) < 2, reason="needs two CPUs")
BURN_S = 0.05  # more than the kernel's tick, in which processor time is counted


def burn() -> None:
    until = time.thread_time() + BURN_S
    while time.thread_time() < until:
        pass


class Burning(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> list[int]:
        burn()
        return sorted(os.sched_getaffinity(0))


@contextmanager
def a_thread() -> Iterator[threading.Thread]:
    """A thread that uses processor time until the end."""
    ends = threading.Event()

    def run() -> None:
        while not ends.is_set():
            burn()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        ends.set()
        thread.join()


@two_cpus
def test_all_threads_are_moved_and_get_their_cpus_back() -> None:
    with a_thread() as thread:
        assert thread.native_id is not None
        os.sched_setaffinity(thread.native_id, {USABLE[1]})
        threads = torch.get_num_threads()
        with pinned(USABLE[0]):
            assert torch.get_num_threads() == 1
            assert {cpu for each in os.listdir("/proc/self/task") for cpu in os.sched_getaffinity(int(each))} == {USABLE[0]}
            burn()
        assert os.sched_getaffinity(thread.native_id) == {USABLE[1]}
        assert sorted(os.sched_getaffinity(0)) == USABLE and torch.get_num_threads() == threads


@two_cpus
def test_a_thread_that_moves_itself_away_is_an_error() -> None:
    says = f"CPUs {USABLE[0]}, but process {os.getpid()} "
    with a_thread() as thread, pytest.raises(WrongCores, match=says), pinned(USABLE[0]):
        assert thread.native_id is not None and thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        before = time.clock_gettime(clock)
        os.sched_setaffinity(thread.native_id, USABLE)
        until(lambda: time.clock_gettime(clock) - before > 2 * BURN_S, 60, "processor time for the thread")


@two_cpus
def test_workers_that_are_started_inside_are_in_order() -> None:
    with pinned(USABLE[0]) as used:
        loader = DataLoader(Burning(), None, num_workers=1, persistent_workers=True)
        assert list(loader) == [[USABLE[0]]] * 4
    (worker,) = [process for process in used if process.pid != os.getpid()]
    assert worker.cpus == (USABLE[0],) and worker.threads >= 1 and worker.cpu_s >= 3 * BURN_S
    with pytest.raises(WrongCores), pinned(USABLE[1]):  # started in one row, measured in another
        list(loader)


@two_cpus
def test_an_engine_has_cpus_of_its_own() -> None:
    burning = (
        "import os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])})\n"
        "for line in sys.stdin:\n"
        "    until = time.process_time() + float(line)\n"
        "    while time.process_time() < until: pass\n"
        "    print()"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", burning, str(USABLE[1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None

    def wait() -> None:
        process.stdin.write(f"{BURN_S}\n")
        process.stdin.flush()
        process.stdout.readline()

    try:
        wait()
        with pinned(USABLE[0], engine=[USABLE[1]]) as used:
            wait()
        assert [each.cpus for each in used if each.pid == process.pid] == [(USABLE[1],)]
        with pytest.raises(WrongCores, match="Start that process inside the measurement, or pin it"), pinned(USABLE[0]):
            wait()
    finally:
        process.kill()
        process.communicate()


def test_an_error_inside_is_not_hidden() -> None:
    with pytest.raises(KeyError), ran_on([]):
        burn()
        raise KeyError


def test_family_and_its_processor_time() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    burning = "import time\nwhile time.process_time() < .3: pass\nprint(1, flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", nested, burning], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        pids = family(process.pid)
        assert len(pids) == 2 and pids[0] == process.pid and os.getpid() not in pids
        assert cpu_s(pids) >= 0.29 and cpu_s([1 << 30]) == 0
    finally:
        process.communicate(b"\n")
