"""`ddlp status`: how each device is. All are asked at once, so one that is down costs its timeout once."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import csd_engine
from csd_engine.errors import EngineError
from csd_engine.machine.build import build
from csd_engine.machine.sensors import Reading, whole
from csd_engine.machine.sizes import size_text
from csd_engine.protocol import codec as say
from csd_engine.service.job_service import RETIRES
from ddlp.deploy.advice import upgrade
from ddlp.deploy.options import add_json
from ddlp.devices import address_book as book
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.device_link import CardedEngine, carded_engines, link_to

TIMEOUT_S = 5.0
_WATCH_S = 2.0
_CLEAR = "\x1b[H\x1b[J"
_COLUMNS = (
    "device", "node", "state", "version", "kernel", "jobs", "images/s", "memory", "free", "spool", "disk free",
    "temperature", "power", "load", "cache",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """One device's answer. `error` says why there is none; `warnings` are for a person to look at."""

    name: str
    address: str
    status: say.Status | None
    error: str = ""
    warnings: tuple[str, ...] = ()
    sensors: tuple[Reading, ...] = ()  # of power and energy
    cache: say.CacheState | None = None  # None: it has none

    @property
    def node(self) -> str:
        """The computer that it is on, as its address names it."""
        return "here" if self.address.startswith("ipc://") else self.address.removeprefix("tcp://").rpartition(":")[0] or "-"

    @property
    def power_w(self) -> float | None:
        """The power that the device draws now; None if no sensor tells."""
        watts = [reading.watts for reading in whole(self.sensors) if reading.watts is not None]
        return sum(watts) if watts else None

    def to_data(self) -> dict[str, object]:
        """Plain data for JSON."""
        status = None
        if self.status is not None:
            status = {**asdict(self.status), "jobs": [job._asdict() for job in self.status.jobs]}
        return {
            "name": self.name, "address": self.address, "node": self.node, "reachable": status is not None, "error": self.error,
            "warnings": list(self.warnings), "status": status, "sensors": [reading._asdict() for reading in self.sensors],
            "power_w": self.power_w, "cache": None if self.cache is None else asdict(self.cache),
        }  # fmt: skip


def ask(name: str, timeout_s: float = TIMEOUT_S, carded: CardedEngine | None = None) -> Answer:
    """Ask the device of that name, or the engine at that address. A failure of the device is in the answer, and not raised.

    ``carded``: how an engine is reached that is known by a card of that name.
    """
    address = name if carded is None else carded.address
    try:
        device = carded or replace(Device.at(name), connect_timeout_s=timeout_s)
        address = device.address
        link = link_to(device, timeout_s)
        try:
            status = link.status(timeout_s)
            sensors, cache = link.sensors(timeout_s), link.cache(timeout_s)
        finally:
            link.close()
    except (DDLPError, EngineError, ValueError, OSError) as error:
        return Answer(name, address, None, str(error))
    return Answer(name, address, status, "", tuple(_warnings(name, status)), sensors, cache)


def ask_all(names: Sequence[str], timeout_s: float = TIMEOUT_S) -> list[Answer]:
    """Ask all at once; answers in the order of the names. A directory of cards stands for the engines of that pool.

    Raises:
        EngineError, OSError: a directory of cards can't be used.
    """
    all_of: list[tuple[str, CardedEngine | None]] = []
    for name in names:
        all_of += carded_engines(name).items() if os.path.isdir(name) else [(name, None)]
    if not all_of:
        return []
    with ThreadPoolExecutor(len(all_of), thread_name_prefix="ddlp-status") as pool:
        return list(pool.map(lambda engine: ask(engine[0], timeout_s, engine[1]), all_of))


def _own_build(status: say.Status) -> bool:
    return status.versions.get("build") == build()


def _warnings(name: str, status: say.Status) -> Iterator[str]:
    """What a person should look at, each with what to do."""
    if not _own_build(status):
        yield (
            f"it runs another build of csd_engine ({status.versions.get('csd_engine', '?')}) than this host "
            f"({csd_engine.__version__}): {upgrade(name)}"
        )
    if status.note:
        yield status.note
    if status.free_bytes < status.reserve_bytes:
        yield f"its spool's disk has {size_text(status.free_bytes)} left, {size_text(status.reserve_bytes)} stay reserved"


def _rate(images_per_s: float) -> str:
    return f"{images_per_s:.0f}" if images_per_s >= 100 else f"{images_per_s:.1f}"


def _row(answer: Answer) -> tuple[str, ...]:
    status = answer.status
    if status is None:
        return (answer.name, answer.node, "not reachable", *("-" for _ in _COLUMNS[3:]))
    version = status.versions.get("csd_engine", "?") + ("" if _own_build(status) else " (other build)")
    state = "retiring" if status.note.startswith(RETIRES) else "up " + _duration(status.uptime_s)
    return (
        answer.name, answer.node, state, version, status.versions.get("kernel") or "-",
        str(len(status.jobs)), _rate(status.images_per_s),
        f"{size_text(status.resident_bytes)} of {size_text(status.memory_total_bytes)}",
        size_text(status.memory_available_bytes),
        f"{status.spool_batches} batches, {size_text(status.spool_bytes)} of {size_text(status.quota_bytes)}",
        size_text(status.free_bytes), "-" if status.temperature_c is None else f"{status.temperature_c:.0f} C",
        "-" if answer.power_w is None else f"{answer.power_w:.3g} W",
        f"{status.load[0]:.1f} on {status.cores}", "-" if answer.cache is None else _cache_text(answer.cache),
    )  # fmt: skip


def _cache_text(cache: say.CacheState) -> str:
    samples = cache.hits + cache.misses
    hits = f", {cache.hits / samples:.0%} of {samples:,} samples from it" if samples else ""
    return f"{size_text(cache.bytes)} of {size_text(cache.quota_bytes)}{hits}"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(answers: Sequence[Answer]) -> str:
    """The answers for a person: a line a device, then jobs, then what to look at."""
    lines = _aligned([_COLUMNS, *map(_row, answers)])
    jobs = [(answer.name, job) for answer in answers if answer.status is not None for job in answer.status.jobs]
    if jobs:
        rows = [("device", "host", "job", "samples", "batch", "made", "images/s", "in spool", "queued", "held back by")]
        for name, job in jobs:
            rows.append((
                name, job.host, job.job, str(job.samples), str(job.batch), str(job.batches_made), _rate(job.images_per_s),
                str(job.batches_waiting), str(job.batches_queued), job.held_back or "-",
            ))  # fmt: skip
        lines += ["", *_aligned(rows)]
    notes = [f"{answer.name}: {text}" for answer in answers for text in filter(None, (answer.error, *answer.warnings))]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME",
        help="devices, engines' addresses, or a pool's directory of cards; default: all devices known",
    )  # fmt: skip
    add_json(parser, "the answers, one line each time,")
    parser.add_argument("--watch", action="store_true", help=f"ask again every {_WATCH_S:g} s until Ctrl-C")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help="how long each device may take (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Ask and print; the exit status is 1 where a device did not answer."""
    names = options.names or book.names()
    if not names:
        print(f"ddlp status: no device is known in {book.ddlp_home() / 'devices'}. Deploy one: ddlp deploy --help, or "
              "name an engine's address, tcp://HOST:PORT.", file=sys.stderr)  # fmt: skip
        return 2
    while True:
        try:
            answers = ask_all(names, options.timeout)
        except (EngineError, OSError) as error:
            print(f"ddlp status: {error}", file=sys.stderr)
            return 2
        if options.json:
            print(json.dumps([answer.to_data() for answer in answers]), flush=True)
        else:
            text = table(answers) if answers else f"no engine has a card in {', '.join(names)}"
            print((_CLEAR if options.watch and sys.stdout.isatty() else "") + text, flush=True)
        if not options.watch:
            return 0 if all(answer.status is not None for answer in answers) else 1
        time.sleep(_WATCH_S)
