"""Everything that faults are applied to: images, engines, pools, networks, and the host's own processes and files."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from csd_engine.errors import EngineError
from csd_engine.kernels.compilers import find
from csd_engine.protocol.keys import make_keys
from csd_engine.service.sealed_streams import PORT_STEP
from ddlp import CardPool, DDLPLoader, Device, LocalPool
from ddlp.sources.engine.device_link import link_to
from tests.chaos.own_code import OwnCode
from tests.chaos.proxy import HERE, THERE
from tests.ddlp.faults.scene import Truth, alive, dataset, descendants, listing
from tests.engine_process import EngineProcess, until
from tests.ports import free_port
from tests.small_images import make_images

__all__ = [
    "BATCH", "IMAGES", "CardedEngine", "Engine", "Finding", "NamedEngine", "OwnProcesses", "Setting", "World", "checksum",
    "ends_within_s",
]  # fmt: skip

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGES, BATCH = 120, 4
SPOOL_BYTES = 24 << 20  # of each engine's file system, which a fault fills


class Finding(Exception):
    """A promise was broken; the text says which."""


def ends_within_s(patience_s: float) -> float:
    """How many seconds a process, or what a loader leaves, may take to end, in a run with that patience."""
    return max(30.0, patience_s / 3)


class Setting:
    """A number in a file that a preloaded library maps (clock.c, slow_spool.c), 0 at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(8))

    def set(self, number: int) -> None:
        """Set it."""
        with open(self.path, "r+b") as file:
            file.write(struct.pack("=q", number))


class Engine:
    """An engine that is started, killed and started again.

    Args:
        world: has its home, what it may read, and how patient the run is.
        number: of the engine; its directory is made here.
        address: where it listens. None: a socket in its directory.
    """

    def __init__(self, world: World, number: int, address: str | None) -> None:
        home = world.home / f"e{number}"
        home.mkdir()
        self.preloads = world.preloads
        self._ends_within_s = ends_within_s(world.patience_s)
        self.home, self.spool = home, home / "spool"
        self.spool.mkdir()
        self.mounted = _mount(self.spool)
        self._clock, self._delay = Setting(home / "clock"), Setting(home / "delay")
        self.package = world.package  # the directory with the csd_engine that it runs
        slowdown = world.random.choice([1.0, 3.0, 8.0])  # its samples take this many times as long
        self._arguments = ["--root", str(world.images), "--slowdown", str(slowdown), "--lease-timeout", "2"]
        self._address = address or f"ipc://{home}/s"
        self.process: EngineProcess | None = None

    def _identity(self) -> dict[str, Any]:
        """Return how it is known to hosts, for `EngineProcess`."""
        raise NotImplementedError

    @property
    def runs(self) -> bool:
        """Whether its process exists, stopped or not."""
        return self.process is not None and self.process.process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs. While its spool is full or read-only, it can't start: it is started at the round's end."""
        if self.runs or not os.access(self.spool, os.W_OK) or not os.statvfs(self.spool).f_bavail:
            return
        self._collect()
        within = ["env", "--chdir=/", f"PYTHONPATH={self.package}"]  # Python looks in the working directory first
        if self.preloads is not None:
            within += [f"LD_PRELOAD={self.preloads[0]} {self.preloads[1]}", f"DDLP_CLOCK={self._clock.path}"]
            within += [f"DDLP_SPOOL={self.spool}", f"DDLP_SPOOL_DELAY={self._delay.path}"]
        self.process = EngineProcess(
            self.home, *self._arguments, listen=self._address, within=tuple(within), **self._identity()
        )

    def set_clock(self, ahead_s: int) -> None:
        """Set its clock, in seconds from the computer's."""
        self._clock.set(ahead_s)

    def slow_spool(self, delay_s: float) -> None:
        """Delay each change of a file in its spool by so many seconds."""
        self._delay.set(int(delay_s * 1e6))

    def signal(self, number: int) -> None:
        """Send a signal to its process, if it runs."""
        if self.runs:
            assert self.process is not None
            self.process.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and wait for its end and its workers' end."""
        if self.process is None:
            return
        workers = self.workers()
        self.signal(signal.SIGKILL)
        self._collect()
        with contextlib.suppress(AssertionError):
            until(lambda: not any(map(alive, workers)), self._ends_within_s)
            return
        left = [Path(f"/proc/{pid}/status").read_text() for pid in workers if alive(pid)]
        raise Finding(f"{self.home.name}: workers of a killed engine were there {self._ends_within_s:g} s later:\n{left}")

    def workers(self) -> list[int]:
        """Its worker processes."""
        return self.process.children() if self.process is not None and self.runs else []

    def parcels(self) -> list[Path]:
        """The files in its spool with the images that hosts have sent with leases."""
        return list(self.spool.glob("job-*/*.parcel"))

    def batch_files(self) -> list[Path]:
        """The batch files in its spool, those with the highest numbers first."""
        found = {path: path.name.split(".")[1] for path in self.spool.glob("job-*/*.safetensors")}
        numbers = {path: int(number) for path, number in found.items() if number.isdigit()}
        return sorted(numbers, key=lambda path: numbers[path], reverse=True)

    def close(self) -> str:
        """End it; return its log."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        self._collect()
        log = (self.home / "log").read_text(errors="replace") if (self.home / "log").exists() else ""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.spool)], check=False)
        return log

    def _collect(self) -> None:
        if self.process is None:
            return
        try:
            self.process.process.wait(self._ends_within_s)
        except subprocess.TimeoutExpired:
            self.process.process.kill()
            self.process.process.wait()
            raise Finding(f"{self.home.name}: the engine did not end within {self._ends_within_s:g} s of SIGTERM") from None
        if self.process.process.stdout is not None:
            self.process.process.stdout.close()
        self.process = None


class NamedEngine(Engine):
    """An engine that hosts know by its address and keys. ``relayed``: they reach it through `tests.chaos.proxy`."""

    def __init__(self, world: World, number: int, relayed: bool) -> None:
        port = free_port((HERE, THERE), (0, PORT_STEP))
        super().__init__(world, number, f"tcp://{THERE}:{port}" if relayed else None)
        self.relayed = relayed
        self._keys = make_keys(self.home / "keys")
        self._relay: subprocess.Popen[str] | None = None
        address = self._address
        if relayed:
            self._relay = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.proxy", str(port), str(port + PORT_STEP)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
            )  # fmt: skip
            assert self._relay.stdout is not None
            assert self._relay.stdout.readline(), "the relay does not start"
            address = f"tcp://{HERE}:{port}"
        timeout_s = min(10.0, max(3.0, world.patience_s / 30))
        self.device = Device(address, self._keys, connect_timeout_s=timeout_s, name=self.home.name)

    def _identity(self) -> dict[str, Any]:
        return {"keys": self._keys}

    def answers(self) -> bool:
        """Whether it answers a host that waits for long."""
        patient = dataclasses.replace(self.device, connect_timeout_s=self._ends_within_s)
        with contextlib.closing(link_to(patient)) as link:
            try:
                link.open()
            except EngineError:
                return False
        return True

    def network(self, order: str) -> None:
        """Send an order to the relay (`tests.chaos.proxy`)."""
        assert self._relay is not None and self._relay.stdin is not None
        self._relay.stdin.write(f"{order}\n")
        self._relay.stdin.flush()

    def close(self) -> str:
        """End it and its relay; return its log."""
        log = super().close()
        if self._relay is not None:
            self._relay.communicate()
        return log


class CardedEngine(Engine):
    """An engine that tells hosts by a card where it is. ``fixed``: it has the same port each time that it starts."""

    def __init__(self, world: World, number: int, fixed: bool) -> None:
        super().__init__(world, number, f"tcp://{THERE}:{free_port((HERE, THERE), (0, PORT_STEP)) if fixed else 0}")
        self.cards = world.cards
        self.card: Path | None = None  # of the process that runs
        self.card_content = b""
        self.withdraws = True  # it can remove its card

    def _identity(self) -> dict[str, Any]:
        return {"cards": self.cards}

    def start(self) -> None:
        """Start it as `Engine.start`, and note its card. It can't start while others may write to the cards' directory."""
        before = self.process
        if not self.cards.stat().st_mode & 0o022:
            super().start()
        if self.process is not None and self.process is not before:
            cards = [path for path in self.cards.glob("*.card") if f"-{self.process.process.pid}-" in path.name]
            self.card, self.withdraws = cards[0] if cards else None, True
            self.card_content = self.card.read_bytes() if self.card is not None else b""

    def _collect(self) -> None:
        process = self.process
        super()._collect()
        ended = process is not None and process.process.returncode == 0
        if ended and self.withdraws and self.card is not None and self.card.exists():
            raise Finding(f"{self.home.name}: the engine has ended in order, and its card is there: {self.card.name}")


class OwnProcesses:
    """The processes of a pool of this machine, which this run's loaders start themselves.

    Args:
        pool: two of them at first.
        command: is part of their command lines.
    """

    def __init__(self, world: World, pool: LocalPool, command: str) -> None:
        self.pool, self._world, self._command = pool, world, command

    def pids(self) -> list[int]:
        """Those that run now."""
        mine = {one.process.process.pid for one in self._world.engines if one.process is not None}
        return [one.pid for one in descendants() if self._command in one.command and one.pid not in mine]


def package_with(where: Path, file: str, pattern: str, replacement: str) -> Path:
    """Copy `csd_engine` to a new directory, and change one place in one of its files. Return the directory."""
    shutil.copytree(REPOSITORY / "csd_engine", where / "csd_engine", ignore=shutil.ignore_patterns("__pycache__"))
    changed = where / "csd_engine" / file
    text, count = re.subn(pattern, replacement, changed.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{pattern} is there {count} times in {file}"
    changed.write_text(text)
    return where


def _preloads(home: Path) -> tuple[Path, Path] | None:
    """clock.c and slow_spool.c, compiled; None without a compiler."""
    compiler, clock, slow_spool = shlex.split(find() or "cc"), home / "clock.so", home / "slow_spool.so"
    for made in (clock, slow_spool):
        source = Path(__file__).with_name(f"{made.stem}.c")
        command = [*compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
        try:
            if subprocess.run(command, capture_output=True, check=False).returncode:
                return None
        except OSError:
            return None
    return clock, slow_spool


def _mount(directory: Path) -> bool:
    """Give the directory a small file system of its own, if this process may."""
    if os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{os.getppid()}/ns/mnt"):
        return False  # other programs would see it, and it would outlive a run that is killed
    command = ["mount", "-t", "tmpfs", "-o", f"size={SPOOL_BYTES},mode=0700", "ddlp-chaos", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def checksum(image: torch.Tensor) -> int:
    """A sample's bits as one number, which another process can report."""
    return zlib.crc32(image.numpy().tobytes())


class World:
    """Everything that a run uses, below one directory. What takes longer than a part of ``patience_s`` counts as hanging."""

    def __init__(self, home: Path, seed: int, patience_s: float) -> None:
        self.home, self.random, self.patience_s = home, random.Random(seed), patience_s
        self.preloads = _preloads(home)
        self.package = REPOSITORY
        self.images, self.others = home / "images", home / "others"
        self.paths = make_images(self.images, IMAGES)
        self._make_others()
        self.data = dataset(self.paths)
        self.truth = Truth(self.data)
        self.other_truth = Truth(dataset([str(self.others / Path(path).name) for path in self.paths]))
        self.code = OwnCode(self.paths)
        self.truth_of_code = Truth(self.code, num_workers=1)
        self.changed: set[int] = set()  # the images that were replaced in this epoch
        self.engines: list[Engine] = []
        self.cards = home / "cards"
        self.cards.mkdir(0o700)
        self.local_pool = OwnProcesses(self, LocalPool(2), "-m csd_engine ")
        self.code_pool = OwnProcesses(self, LocalPool(2, user_code=True), "-m ddlp.sources.usercode.process ")
        self._before: dict[str, Any] | None = None

    def _make_others(self) -> None:
        """Make images with the same names and other pixels, to replace the originals."""
        self.others.mkdir()
        for number, path in enumerate(self.paths):
            shutil.copy(self.paths[(number + 1) % IMAGES], self.others / Path(path).name)

    @property
    def named(self) -> list[NamedEngine]:
        """The engines that hosts know by their addresses."""
        return [engine for engine in self.engines if isinstance(engine, NamedEngine)]

    @property
    def carded(self) -> list[CardedEngine]:
        """The engines that have cards."""
        return [engine for engine in self.engines if isinstance(engine, CardedEngine)]

    def add_engines(self) -> None:
        """Add two engines, one of them behind a relay."""
        self.engines += [NamedEngine(self, number, relayed) for number, relayed in enumerate((False, True))]
        for engine in self.engines:
            engine.start()

    def add_carded_engines(self) -> None:
        """Add two engines with cards, unless they are there."""
        if not self.carded:
            self.engines += [CardedEngine(self, number, fixed) for number, fixed in ((2, False), (3, True))]
            for engine in self.carded:
                engine.start()

    def card_pool(self) -> CardPool:
        """Return the engines with cards as a pool."""
        return CardPool(self.cards, data=self.random.choice(["there", "carried"]))

    def loader(self, strategy: str, **options: Any) -> DDLPLoader:
        """A loader of the images. ``dataset``: of another data set."""
        if strategy == "mte":
            options["ratio"] = self.random.choice([0.2, 0.5])
        return DDLPLoader(options.pop("dataset", self.data), BATCH, strategy=strategy, seed=3, **options)

    def check(self, batches: list[Any], epoch: int, of_code: bool = False) -> None:
        """Raise Finding unless each sample came exactly once, with the bits that the host alone gives it.

        ``of_code``: they are samples of `code`.
        """
        truth = (self.truth_of_code if of_code else self.truth).of(epoch)
        others = self.other_truth.of(epoch) if self.changed else {}
        seen = [int(target) for _, targets in batches for target in targets]
        lost, doubled = sorted(set(range(IMAGES)) - set(seen)), sorted({one for one in seen if seen.count(one) > 1})
        if lost or doubled:
            raise Finding(f"epoch {epoch}: {len(lost)} samples lost {lost[:8]}, {len(doubled)} doubled {doubled[:8]}")
        for images, targets in batches:
            for image, target in zip(images, targets.tolist(), strict=True):
                right = torch.equal(image, truth[target])
                if not right and not (target in self.changed and torch.equal(image, others[target])):
                    raise Finding(f"epoch {epoch}: sample {target} has wrong bits")

    def check_told(self, told: list[list[int]], epoch: int) -> None:
        """The same check for another process, which reports each sample's target and `checksum`."""
        truth, others = self.truth.of(epoch), self.other_truth.of(epoch)
        if sorted(target for target, _ in told) != list(range(IMAGES)):
            different = len({target for target, _ in told})
            raise Finding(f"epoch {epoch}: a second host got {len(told)} samples, {different} different ones")
        for target, found in told:
            right = [checksum(truth[target])] + ([checksum(others[target])] if target in self.changed else [])
            if found not in right:
                raise Finding(f"epoch {epoch}: a second host's sample {target} has wrong bits")

    @contextlib.contextmanager
    def leaves_nothing(self) -> Iterator[None]:
        """Raise Finding if this process has more than before: descriptors, threads, processes, shared memory, files of jobs."""
        gc.collect()
        if self._before is None:
            until(self._idle, ends_within_s(self.patience_s), "a quiet beginning")
            self._before = self._listing()
        yield
        gc.collect()
        with contextlib.suppress(AssertionError):
            until(lambda: self._listing() == self._before, ends_within_s(self.patience_s))
            return
        after = self._listing()
        for name, had in self._before.items():
            if after[name] != had:
                raise Finding(f"left behind, {name}: {_difference(had, after[name])}")

    def _listing(self) -> dict[str, Any]:
        mine = {one.process.process.pid for one in self.engines if one.process is not None}
        found = listing()
        found["descriptors"] = sorted(one for one in found["descriptors"] if one not in ("pipe", "anon_inode"))
        below = [one for one in descendants() if not _of_engines(one.pid, mine)]
        found["processes"] = sorted(one.command for one in below if "tests.chaos.proxy" not in one.command)
        found["batch files"] = [str(path) for one in self.engines if one.runs for path in one.spool.glob("job-*")]
        return found

    def _idle(self) -> bool:
        return not self._listing()["batch files"]

    def close(self) -> None:
        """End all engines. Raises Finding if one has logged a traceback."""
        logs = [engine.close() for engine in self.engines]
        self.engines.clear()
        for log in logs:
            if "Traceback" in log:
                raise Finding(f"an engine's log has a traceback:\n{log[-3000:]}")


def _of_engines(pid: int, engines: set[int]) -> bool:
    """Whether a process is one of the engines or a child of one."""
    while pid > 1:
        if pid in engines:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return True  # the process has ended
    return False


def _difference(before: list[str], after: list[str]) -> str:
    more = list(after)
    for one in before:
        if one in more:
            more.remove(one)
    return ", ".join(more[:6]) if more else f"{len(before) - len(after)} fewer than before"
