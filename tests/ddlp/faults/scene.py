"""A small training set-up for fault tests: images, the bits that each must have, and the processes that belong to a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import transforms as T

from ddlp import DDLPLoader, Device, ImageArrays, ImageFiles
from ddlp.config import LoaderConfig
from ddlp.sources.engine.connections import EngineConnections
from tests.engine_process import alive, until
from tests.forks import Forks
from tests.open_files import open_files

REPOSITORY = Path(__file__).resolve().parents[3]
SEED = 3
BATCH = 4
ENGINE, WORKER = "csd_engine", "csd_engine.service.worker"


def transform() -> Any:
    """Random draws, so that wrong keys are noticed, and a mask, so that boxes are sent too."""
    return T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.RandomErasing(p=0.5)])


def dataset(paths: list[str]) -> ImageFiles:
    """The paths, with their numbers as targets: a delivered sample says which one it is."""
    return ImageFiles(paths, list(range(len(paths))), transform())


def arrays(count: int = 60) -> ImageArrays:
    """Random images of 32 KB each, with their numbers as targets."""
    images = np.random.default_rng(5).integers(0, 256, (count, 104, 104, 3), dtype=np.uint8)
    return ImageArrays(images, list(range(count)), transform())


def make_loader(data: Any, strategy: str | None, **options: Any) -> DDLPLoader:
    """A loader with the options that most tests use."""
    return DDLPLoader(data, BATCH, strategy=strategy, seed=SEED, **options)


def connections_of(loader: DDLPLoader) -> EngineConnections:
    """The loader's connections to its engines, made before its first epoch."""
    config = LoaderConfig.of(loader)
    return loader._parts.offload_for(config, None)._reached(config)


def device(engine: Any, **options: Any) -> Device:
    """An engine process as a loader's ``csd=``."""
    return Device(engine.address, engine.keys, **options)


class Truth:
    """The bits that each sample must have: those that the host alone makes. ``options``: more of its loader."""

    def __init__(self, data: Any, **options: Any) -> None:
        self._data, self._options = data, options
        self._epochs: dict[int, dict[int, torch.Tensor]] = {}

    def of(self, epoch: int) -> dict[int, torch.Tensor]:
        if epoch not in self._epochs:
            loader = make_loader(self._data, "cpu", **self._options)
            loader.set_epoch(epoch)
            self._epochs[epoch] = {
                int(y): x.clone() for images, labels in loader for x, y in zip(images, labels)  # not workers' shared memory
            }
        return self._epochs[epoch]

    def check(self, batches: Iterable[Any], epoch: int = 0, without: Iterable[int] = ()) -> None:
        """Assert that every sample came exactly once, with the right bits."""
        truth = self.of(epoch)
        seen = [int(y) for _, labels in batches for y in labels]
        assert sorted(seen) == sorted(set(truth) - set(without))
        for images, labels in batches:
            for image, label in zip(images, labels):
                assert torch.equal(image, truth[int(label)]), f"sample {int(label)} has other bits"


def train(loader: Any, step_s: float = 0.0, at: dict[int, Callable[[], Any]] | None = None) -> list[Any]:
    """Iterate like a training loop; steps sleep. ``at`` maps a step's number to what is called after it."""
    batches = []
    for step, batch in enumerate(loader):
        batches.append(batch)
        if at and step in at:
            at[step]()
        time.sleep(step_s)
    return batches


def until_ready(loader: DDLPLoader) -> None:
    """Wait until a device has a batch ready in the epoch that runs: on a busy machine its engine may start late."""
    until(lambda: loader._last.executor.ledger.ready_csd, 60, "a batch of the device")


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str
    environment: str


def parents() -> dict[int, int]:
    """The parent of each running process, without zombies."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[pid] = int(parent)
    return found


def looked_at(pids: Mapping[int, int]) -> list[Process]:
    """These processes, those of them that still run, with what takes time to read."""
    found = []
    for pid, parent in pids.items():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            found.append(Process(pid, parent, command, environment))
    return found


def processes() -> list[Process]:
    """All running processes, without zombies."""
    return looked_at(parents())


def descendants(pid: int | None = None) -> list[Process]:
    """All processes below one. The default is this one."""
    everyone, top = parents(), os.getpid() if pid is None else pid
    known = {top}
    while more := {one for one, parent in everyone.items() if parent in known} - known:
        known |= more
    return looked_at({one: parent for one, parent in everyone.items() if one in known and one != top})


def engine_pid(below: int | None = None) -> int:
    """The process id of the embedded engine."""
    found = [p.pid for p in descendants(below) if f"-m {ENGINE} " in p.command]
    assert len(found) == 1, found
    return found[0]


def worker_pids(below: int | None = None) -> list[int]:
    """The process ids of the engines' workers."""
    return [p.pid for p in descendants(below) if WORKER in p.command]


def shared_memory() -> list[str]:
    """The names in /dev/shm, without those that only other tests' processes use: tests run side by side."""
    inodes = {}
    for name in os.listdir("/dev/shm"):
        if not name.startswith("cuda.shm"):
            try:
                inodes[name] = os.stat(f"/dev/shm/{name}").st_ino
            except FileNotFoundError:
                continue
    ours = {os.getpid(), *(p.pid for p in descendants())}
    others = set()  # inodes, since a semaphore's file has another name when it is mapped
    for pid in parents() if inodes else ():
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace") if pid not in ours else ""
        except OSError:  # it has ended, or is another user's
            continue
        others |= {int(line.split()[4]) for line in maps.splitlines() if " /dev/shm/" in line}
    return sorted(name for name, inode in inodes.items() if inode not in others)


def listing() -> dict[str, Any]:
    """This process's threads, descriptors and other things that could be left behind."""
    ours = [one for one in open_files() if not one.startswith("/dev/nvidia")]  # the driver opens /dev/nvidia* whenever it likes
    return {
        "descriptors": sorted(one.partition(":")[0] for one in ours),
        "threads": sorted(t.name for t in threading.enumerate() if t is not threading.main_thread()),
        "processes": sorted(p.command for p in descendants()),
        "shared memory": shared_memory(),
    }


# -- scripts, as a user would run them -----------------------------------------------------------------------------------

_HEAD = """
import os, sys, time
from tests.ddlp.faults.scene import *
paths = sorted((str(p) for p in Path({images!r}).iterdir()), key=lambda p: int(p.rpartition(" ")[2][:-4]))
data = dataset(paths)
def said(*words): print(*words, flush=True)
def engine_at_work(loader):
    "An epoch in which the engine has its part already."
    while True:
        iterator = iter(loader)
        for batch in iterator:
            if loader.report().batches_csd:
                return iterator
            time.sleep(0.01)
"""


class Zygote:
    """Starts the scripts' processes, see zygote.py. ``home``: an empty directory."""

    def __init__(self, forks: Forks, home: Path) -> None:
        self._home = home
        self._requests, self._answers = forks.serve("tests.ddlp.faults.zygote", home)
        self._statuses: dict[int, int] = {}
        self._next()

    def _next(self) -> dict[str, int]:
        line = self._answers.readline()
        assert line, (self._home / "2").read_text()
        said: dict[str, int] = json.loads(line)
        if "status" in said:
            self._statuses[said["pid"]] = said["status"]
        return said

    def start(self, script: Path, environment: dict[str, str]) -> int:
        """Run a script. Its output goes to files beside it."""
        request = {"script": str(script), "environment": environment}
        request.update({name: str(script.with_suffix(f".{name}")) for name in ("stdout", "stderr")})
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        while "status" in (said := self._next()):
            pass
        return said["pid"]

    def status(self, pid: int) -> int:
        """Wait for the process's end and return its status."""
        while pid not in self._statuses:
            self._next()
        return self._statuses[pid]

    def end(self) -> None:
        self._requests.write("{}\n")  # not by closing alone: workers that a failed test left hold the pipe open
        self._requests.close()
        self._answers.close()


class Script:
    """A training script as a process, with its own session and temporary directory."""

    def __init__(self, zygote: Zygote, home: Path, images: Path, body: str, **environment: str) -> None:
        self.home = home
        self.mark = f"ddlp-test-{uuid.uuid4().hex}"  # part of the spool's path, and so of the engine's command line
        self.temporary = home / self.mark
        self.temporary.mkdir()
        self._zygote = zygote
        script = home / "train.py"
        head = _HEAD.format(images=str(images))
        script.write_text(head + textwrap.dedent(body))
        self.pid = zygote.start(script, {"TMPDIR": str(self.temporary), **environment})
        self._said = 0

    def _read(self, name: str) -> str:
        path = self.home / f"train.{name}"
        return path.read_text() if path.exists() else ""

    def line(self) -> str:
        """The next line that the script prints."""
        until(
            lambda: self._read("stdout").count("\n") > self._said or not alive(self.pid), 20, "the script's next word"
        )
        lines = self._read("stdout").splitlines()
        assert len(lines) > self._said, self._read("stderr")
        self._said += 1
        return lines[self._said - 1]

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals the whole foreground group."""
        os.killpg(self.pid, signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return (exit status, stderr)."""
        status = self._zygote.status(self.pid)
        return status, self._read("stderr")

    def running(self) -> list[Process]:
        """The script's processes, whoever their parents are now."""
        return [p for p in processes() if self.mark in p.environment or p.pid == self.pid]

    def nothing_left(self, within_s: float = 30.0) -> None:
        """Assert that none of its processes runs, and that its temporary directory is empty."""
        until(lambda: not self.running(), within_s, f"the end of {self.running()}")
        until(lambda: not os.listdir(self.temporary), 30, f"the removal of {os.listdir(self.temporary)}")

    def stop(self) -> None:
        """Kill the rest of its processes."""
        for process in self.running():
            os.kill(process.pid, signal.SIGKILL)
        self._zygote.status(self.pid)
