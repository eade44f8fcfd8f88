"""The faults. Each is applied once, between two training steps, and undone later."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csd_engine.protocol.cards import STALE_S
from tests.chaos.world import CardedEngine, Engine, NamedEngine, OwnProcesses, World, package_with
from tests.ddlp.faults.scene import alive
from tests.engine_process import until

__all__ = ["FAULTS", "Fault", "Mend"]

Mend = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """A fault of one engine, or of the processes of a pool.

    Attributes:
        name: in reports and for ``--only``.
        strike: applies it to one of them and returns what undoes it. None: it could not be applied, and does not count.
        of: the kind of thing that can have this fault.
        fits: whether a thing of that kind can have it.
        before: applied before the epoch begins.
    """

    name: str
    strike: Callable[[World, Any], Mend | None]
    of: type[Engine] | type[OwnProcesses] = Engine
    fits: Callable[[Any], bool] = lambda engine: True
    before: Callable[[Any], None] = lambda engine: None

    def can_hit(self, thing: Engine | OwnProcesses) -> bool:
        """Return whether it can be applied to this."""
        return isinstance(thing, self.of) and self.fits(thing)


def _nothing() -> None:
    pass


# -- the engine's processes --------------------------------------------------------------------------------------------


def _kill(world: World, engine: Engine) -> Mend | None:
    if not engine.runs:
        return None
    engine.kill()
    return engine.start


def _kill_and_start(world: World, engine: Engine) -> Mend | None:
    if not engine.runs:
        return None
    engine.kill()
    engine.start()
    return _nothing


def _kill_all(world: World, engine: Engine) -> Mend | None:
    running = [one for one in world.engines if one.runs]
    for one in running:
        one.kill()

    def mend() -> None:
        for one in running:
            one.start()

    return mend if running else None


def _end(world: World, engine: Engine) -> Mend | None:
    if not engine.runs:
        return None
    engine.signal(signal.SIGTERM)
    return engine.start


def _stop(world: World, engine: Engine) -> Mend | None:
    if not engine.runs:
        return None
    engine.signal(signal.SIGSTOP)
    return lambda: engine.signal(signal.SIGCONT)


def _late(world: World, engine: Engine) -> Mend | None:
    engine.start()
    return _nothing


def _to_worker(number: int) -> Callable[[World, Engine], Mend | None]:
    def strike(world: World, engine: Engine) -> Mend | None:
        workers = [pid for pid in engine.workers() if number == signal.SIGKILL or _has_begun(pid)]
        if not workers:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[0], number)
        return _nothing if number == signal.SIGKILL else lambda: _signal(workers[0], signal.SIGCONT)

    return strike


def _has_begun(pid: int) -> bool:
    """Whether a worker has asked to be killed with its engine (worker_start.py). One that is stopped earlier outlives it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/0") == os.devnull  # it replaces its input later
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    if alive(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _no_memory(world: World, engine: Engine) -> Mend | None:
    """A worker gets no more memory than it has."""
    workers = [pid for pid in engine.workers() if _has_begun(pid)]  # one that imports would end with a traceback
    if not workers:
        return None
    pid = workers[0]
    with contextlib.suppress(ProcessLookupError, OSError, ValueError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        size = pages * os.sysconf("SC_PAGE_SIZE")
        resource.prlimit(pid, resource.RLIMIT_AS, (size, size))
        return lambda: _signal(pid, signal.SIGKILL)  # its successor has no limit
    return None


def _other_version(world: World, engine: Engine) -> Mend | None:
    """The engine is replaced by one that speaks another version of the protocol."""
    other = engine.home / "other"
    if not other.exists():
        package_with(other, "protocol/codec.py", r"^PROTOCOL = \d+", "PROTOCOL = 999")
    engine.kill()
    engine.package = other
    engine.start()

    def mend() -> None:
        engine.kill()
        engine.package = world.package
        engine.start()

    return mend


def _clock(world: World, engine: Engine) -> Mend | None:
    """The engine's clock jumps, by up to a year to either side."""
    jump = world.random.choice([-1, 1]) * world.random.choice([5, 3600, 86400, 365 * 86400])
    engine.set_clock(jump)
    return lambda: engine.set_clock(0)


def _preloaded(engine: Engine) -> bool:
    return engine.preloads is not None


# -- the network -------------------------------------------------------------------------------------------------------


def _network(*orders: str) -> Callable[[World, NamedEngine], Mend | None]:
    def strike(world: World, engine: NamedEngine) -> Mend | None:
        for order in orders:
            engine.network(order)
        return lambda: engine.network("restore")

    return strike


def _relayed(engine: NamedEngine) -> bool:
    return engine.relayed


# -- the cards ---------------------------------------------------------------------------------------------------------


def _card(way: Callable[[World, Path, bytes], None]) -> Callable[[World, CardedEngine], Mend | None]:
    """Damage an engine's card. It is put right later, unless the engine has removed it since."""

    def strike(world: World, engine: CardedEngine) -> Mend | None:
        card = engine.card
        if card is None or not engine.runs or not card.exists():
            return None
        content = engine.card_content
        way(world, card, content)

        def mend() -> None:
            with contextlib.suppress(FileNotFoundError), open(card, "r+b") as stream:
                stream.truncate(0)
                stream.write(content)

        return mend

    return strike


def _damage_card(world: World, card: Path, content: bytes) -> None:
    at = world.random.randrange(len(content))
    card.write_bytes(world.random.choice([content[:at], content[:at] + b"\0" + content[at + 1 :], os.urandom(200)]))


def _other_key(world: World, card: Path, content: bytes) -> None:
    card.write_text(json.dumps({**json.loads(content), "key": "0" * 40}))


def _stale_card(world: World, engine: CardedEngine) -> Mend | None:
    """Hosts take a living engine's card for one of an engine that is gone. The engine writes it again."""
    old = time.time() - 2 * STALE_S
    if engine.card is None or not engine.card.exists():
        return None
    os.utime(engine.card, (old, old))
    return _nothing


def _second_card(world: World, engine: CardedEngine) -> Mend | None:
    if engine.card is None or not engine.card.exists():
        return None
    second = engine.card.with_name(f"second-{engine.card.name}")
    shutil.copy(engine.card, second)
    return lambda: second.unlink(missing_ok=True)


def _open_to_all(world: World, engine: CardedEngine) -> Mend | None:
    for one in world.carded:
        one.withdraws = False  # an engine that ends meanwhile must not use the directory
    engine.cards.chmod(0o777)
    return lambda: engine.cards.chmod(0o700)


# -- the processes of pools on this machine ----------------------------------------------------------------------------


def _to_own(number: int) -> Callable[[World, OwnProcesses], Mend | None]:
    def strike(world: World, own: OwnProcesses) -> Mend | None:
        pids = own.pids()
        if not pids:
            return None
        pid = world.random.choice(pids)
        _signal(pid, number)
        return (lambda: _signal(pid, signal.SIGCONT)) if number == signal.SIGSTOP else _nothing

    return strike


def _want(engines: int) -> Callable[[World, OwnProcesses], Mend | None]:
    def strike(world: World, own: OwnProcesses) -> Mend | None:
        own.pool.want(engines)
        return lambda: own.pool.want(2)

    return strike


# -- batch files and the spool -----------------------------------------------------------------------------------------


def _damage(way: Callable[[Path, list[Path]], None]) -> Callable[[World, Engine], Mend | None]:
    def strike(world: World, engine: Engine) -> Mend | None:
        files = engine.batch_files()
        struck = False
        for path in files[: world.random.randrange(1, 4)]:
            with contextlib.suppress(OSError, IndexError):  # it was read and removed meanwhile
                way(path, files)
                struck = True
        return _nothing if struck else None

    return strike


def _parcels(way: Callable[[Path], None]) -> Callable[[World, Engine], Mend | None]:
    """Damage all carried images that come from now on.

    A worker reads a file as soon as it is there. So the workers are stopped most of the time: files that come meanwhile are
    damaged before a worker sees them.
    """

    def strike(world: World, engine: Engine) -> Mend | None:
        over = threading.Event()
        struck: set[Path] = set()

        def damage() -> None:
            while not over.wait(0.003):
                workers = [pid for pid in engine.workers() if _has_begun(pid)]
                try:
                    for pid in workers:
                        _signal(pid, signal.SIGSTOP)
                    over.wait(0.01)
                    for path in set(engine.parcels()) - struck:
                        with contextlib.suppress(OSError, IndexError, struct.error):  # it is not whole yet, or was removed
                            _as_another_file(way, path)
                            struck.add(path)
                finally:
                    for pid in workers:
                        _signal(pid, signal.SIGCONT)

        thread = threading.Thread(target=damage, name="damage")
        thread.start()

        def mend() -> None:
            over.set()
            thread.join()

        return mend

    return strike


def _as_another_file(way: Callable[[Path], None], path: Path) -> None:
    """Damage a file by putting a damaged copy in its place: who reads it already, reads it whole."""
    copy = path.with_suffix(".tmp")
    try:
        shutil.copy(path, copy)
        way(copy)
        path.unlink()  # an error if it is gone
        if copy.exists():
            os.replace(copy, path)
    finally:
        copy.unlink(missing_ok=True)


def _flip(path: Path, files: list[Path]) -> None:
    with open(path, "r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(-100, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 16]))


def _flip_images(path: Path) -> None:
    """Flip a bit of each image, where a JPEG's pixels are: they change from there on, and it can be decoded all the same."""
    content = bytearray(path.read_bytes())
    _, *rows = struct.unpack_from(f"<{1 + 3 * int.from_bytes(content[:8], 'little')}q", content)
    start = 8 * (1 + len(rows))
    for size in rows[1::3]:
        content[start + size * 2 // 3] ^= 16
        start += size
    path.write_bytes(content)


def _tear(path: Path, files: list[Path]) -> None:
    os.truncate(path, path.stat().st_size - 700)


def _replace(path: Path, files: list[Path]) -> None:
    other = [one for one in files if one != path][-1]
    temporary = path.with_suffix(".tmp")
    shutil.copy(other, temporary)
    os.replace(temporary, path)


def _double(path: Path, files: list[Path]) -> None:
    """The file exists a second time, as the next lease's file."""
    identity, number, suffix = path.name.split(".")
    os.link(path, path.with_name(f"{identity}.{int(number) + 1}.{suffix}"))


def _late_file(world: World, engine: Engine) -> Mend | None:
    files = engine.batch_files()
    if not files:
        return None
    aside = files[0].with_suffix(".aside")
    try:
        files[0].rename(aside)
    except OSError:
        return None

    def mend() -> None:
        with contextlib.suppress(OSError):
            aside.rename(files[0])

    return mend


def _full(world: World, engine: Engine) -> Mend | None:
    """Nothing more fits into the spool's file system."""
    # A restarted engine refuses a spool without a mark if it holds a user's files. It ignores this directory of file systems.
    filler = engine.spool / "lost+found" / "filler"
    filler.parent.mkdir(exist_ok=True)
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))

    def mend() -> None:
        _remount(engine, "rw")  # the spool may have become read-only since
        filler.unlink(missing_ok=True)

    return mend


def _remount(engine: Engine, how: str) -> bool:
    command = ["mount", "-o", f"remount,{how}", str(engine.spool)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _read_only(world: World, engine: Engine) -> Mend | None:
    if not _remount(engine, "ro"):
        return None  # a file is open for writing

    def mend() -> None:
        assert _remount(engine, "rw")

    return mend


def _slow_spool(world: World, engine: Engine) -> Mend | None:
    engine.slow_spool(world.random.choice([0.005, 0.02, 0.1]))
    return lambda: engine.slow_spool(0)


def _mounted(engine: Engine) -> bool:
    return engine.mounted


def _remove_jobs(world: World, engine: Engine) -> Mend | None:
    jobs = list(engine.spool.glob("job-*"))
    for job in jobs:
        shutil.rmtree(job, ignore_errors=True)
    return _nothing if jobs else None


def _remove_all(world: World, engine: Engine) -> Mend | None:
    """The spool is emptied: its mark, its lock, the files that hosts have sent, and those of the jobs."""
    entries = list(engine.spool.iterdir())
    for one in entries:
        with contextlib.suppress(OSError):  # it is read-only at the moment
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink()
    return _nothing if entries and not list(engine.spool.iterdir()) else None


def _stale(world: World, engine: Engine) -> Mend | None:
    """There are files that nobody has asked for among the batches."""
    jobs = [job for job in engine.spool.glob("job-*") if job.is_dir()]
    planted = []
    for job in jobs:
        for name in ("batch.000001.safetensors", "batch.x.safetensors", "999999.tmp"):
            path = job / name
            with contextlib.suppress(OSError):
                path.write_bytes(os.urandom(5000))
                planted.append(path)

    def mend() -> None:
        for path in planted:
            path.unlink(missing_ok=True)

    return mend if planted else None


# -- the data set ------------------------------------------------------------------------------------------------------


def _changed_image(world: World, engine: Engine) -> Mend | None:
    """An image is replaced during training. In this epoch the pixels of both count as right."""
    number = world.random.randrange(len(world.paths))
    path = Path(world.paths[number])
    kept = world.home / f"kept {number}"
    if number in world.changed:
        return None
    os.link(path, kept)
    world.changed.add(number)
    temporary = world.home / "new.jpg"
    shutil.copy(world.others / path.name, temporary)
    os.replace(temporary, path)
    return lambda: os.replace(kept, path)  # the epoch's end removes it from `changed`


FAULTS = (
    Fault("engine killed", _kill),
    Fault("engine killed and started again", _kill_and_start),
    Fault("all engines killed", _kill_all),
    Fault("engine ended", _end),
    Fault("engine stopped", _stop),
    Fault("engine started late", _late, before=Engine.kill),
    Fault("engine of another version", _other_version),
    Fault("worker killed", _to_worker(signal.SIGKILL)),
    Fault("worker stopped", _to_worker(signal.SIGSTOP)),
    Fault("worker out of memory", _no_memory),
    Fault("engine's clock jumps", _clock, fits=_preloaded),
    Fault("network cut", _network("cut"), NamedEngine, _relayed),
    Fault("connections reset", _network("reset"), NamedEngine, _relayed),
    Fault("network half open", _network("half"), NamedEngine, _relayed),
    Fault("200 ms latency", _network("latency 0.2"), NamedEngine, _relayed),
    Fault("5 % loss", _network("loss 0.05"), NamedEngine, _relayed),
    Fault("bits flipped in the network", _network("flip 0.02"), NamedEngine, _relayed),
    Fault("sealed batches: port cut", _network("sealed cut"), NamedEngine, _relayed),
    Fault("sealed batches: connection reset", _network("sealed reset"), NamedEngine, _relayed),
    Fault("sealed batches: half open", _network("sealed half"), NamedEngine, _relayed),
    Fault("sealed batches: bits flipped", _network("sealed flip 0.5"), NamedEngine, _relayed),
    Fault("batch file flipped", _damage(_flip)),
    Fault("batch file torn", _damage(_tear)),
    Fault("batch file of another batch", _damage(_replace)),
    Fault("batch file doubled", _damage(_double)),
    Fault("batch file removed", _damage(lambda path, files: path.unlink())),
    Fault("batch file late", _late_file),
    Fault("carried images flipped", _parcels(_flip_images)),
    Fault("carried images torn", _parcels(lambda path: os.truncate(path, path.stat().st_size // 2))),
    Fault("carried images removed", _parcels(Path.unlink)),
    Fault("spool full", _full, fits=_mounted),
    Fault("spool read-only", _read_only, fits=_mounted),
    Fault("spool slow", _slow_spool, fits=_preloaded),
    Fault("job directories removed", _remove_jobs),
    Fault("spool emptied", _remove_all),
    Fault("stale files", _stale),
    Fault("image replaced", _changed_image),
    Fault("card damaged", _card(_damage_card), CardedEngine),
    Fault("card with another key", _card(_other_key), CardedEngine),
    Fault("card removed", _card(lambda world, card, content: card.unlink()), CardedEngine),
    Fault("card stale", _stale_card, CardedEngine),
    Fault("card doubled", _second_card, CardedEngine),
    Fault("cards' directory open to all", _open_to_all, CardedEngine),
    Fault("pool's process killed", _to_own(signal.SIGKILL), OwnProcesses),
    Fault("pool's process ended", _to_own(signal.SIGTERM), OwnProcesses),
    Fault("pool's process stopped", _to_own(signal.SIGSTOP), OwnProcesses),
    Fault("pool made smaller", _want(1), OwnProcesses),
    Fault("pool made larger", _want(3), OwnProcesses),
)


def wait_for_engines(world: World) -> None:
    """Wait until each engine has a worker again, for at most 10 s."""
    with contextlib.suppress(AssertionError):
        until(lambda: all(engine.workers() for engine in world.engines if engine.runs), 30)
