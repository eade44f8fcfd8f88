"""However a trainer ends, its workers end within seconds. They leave no file, and say nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.reduction import DupFd
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from ddlp import DDLPLoader
from tests.ddlp.sources.workers.leaves import WAYS
from tests.engine_process import alive, until

TIMES = int(os.environ.get("DDLP_TIMES", "1"))  # DDLP_TIMES=50 before a release


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(3)
def test_nothing_is_left(way, start, tmp_path):
    for number in range(TIMES):
        ends(way, start, tmp_path / str(number))


def ends(way: str, start: str, temporary: Path) -> None:
    temporary.mkdir()
    command = [sys.executable, "-W", "ignore", "-m", "tests.ddlp.sources.workers.leaves", way, start]
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryFile("w+") as said:
        trainer = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, "TMPDIR": str(temporary)},
            start_new_session=True,
        )  # fmt: skip
        try:
            assert trainer.stdout is not None
            workers = [int(pid) for pid in trainer.stdout.readline().split()]
            assert len(workers) == 2, said.seek(0) or said.read()
            if way == "Ctrl-C":
                os.killpg(trainer.pid, signal.SIGINT)  # as a terminal does: to all of its processes
            elif way == "kill -9":
                trainer.kill()
            elif way == "del":
                assert trainer.stdout.readline() == "dropped\n"
            until(lambda: not any(map(alive, workers)), 30)
            if way == "del":
                trainer.kill()
            trainer.wait(60)
        finally:
            trainer.kill()
            trainer.wait()
            trainer.stdout.close()
        said.seek(0)
        lines = said.read().strip().splitlines()
    expected = {"Ctrl-C": "KeyboardInterrupt", "exception": "ValueError: the user's own error"}.get(way)
    assert (lines[-1] if lines else None) == expected, "\n".join(lines)
    assert sum(line.startswith("Traceback") for line in lines) == (expected is not None), "\n".join(lines)
    until(lambda: set(os.listdir("/dev/shm")) <= shared, 30)
    # The directory for sockets of a killed trainer: after "del" no worker is left to remove it, and the fork server has its own
    # socket there, as with torch's DataLoader.
    if way != "del" and (way, start) != ("kill -9", "forkserver"):
        until(lambda: not any(temporary.iterdir()), 30)


class Breaks(Dataset):
    """A worker's thread that passes descriptors has a caller that is gone at once, as a killed trainer is."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        address, _ = DupFd(sys.stderr.fileno())._id
        for _ in range(2):  # the second is taken only after the first has failed
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(address)
        time.sleep(0.2)
        return index


def test_a_worker_says_nothing_of_a_trainer_that_is_gone(capfd):
    assert len(list(DDLPLoader(Breaks(), num_workers=1, multiprocessing_context="fork"))) == 2
    assert capfd.readouterr().err == ""
