"""A set-up that `ddlp plan` plays: from a TOML or JSON file, or from what was read from a recording.

Both are fields by name, `FIELDS` and `ENGINE_FIELDS`. What is missing is assumed, and said so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from csd_engine.protocol.fields import Check
from csd_engine.protocol.schema import checked_fields, one_of, text_of
from ddlp.auto.decide import estimate
from ddlp.auto.measured import Measured, OffloadPath, Transport
from ddlp.observe.play import QUOTA

__all__ = ["ENGINE_FIELDS", "FIELDS", "Fields", "Setup", "checked", "engine_of", "merged", "read_file", "setup_of"]

Fields = dict[str, Any]  # by the names of `FIELDS`; "engine" is a list of such, by those of `ENGINE_FIELDS`
SPOOL_BYTES = 8 << 30  # an engine's default
BATCHES = 1000


@dataclass(frozen=True)
class Setup:
    """A run to plan for.

    Attributes:
        measured: the figures; the step's time and the host's rate are known. Each engine has one path.
        batches: of an epoch.
        workers: of the host; together they have the host's rate.
        assumed: what was neither measured nor given, and has been assumed.
    """

    measured: Measured
    batches: int
    workers: int
    assumed: tuple[str, ...]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def _above_zero(value: Any) -> float:
    if not 0 < _number(value) < math.inf:
        raise ValueError("a number above 0")
    return _number(value)


def _not_negative(value: Any) -> float:
    if not 0 <= _number(value) < math.inf:
        raise ValueError("a number of at least 0")
    return _number(value)


def _count(value: Any) -> int:
    if not 1 <= _number(value) <= 1e12 or _number(value) % 1:
        raise ValueError("a whole number of at least 1")
    return int(value)


def _engines(value: Any) -> list[Fields]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of engines")
    return [checked_fields(f"engine {number}", engine, {"name": ENGINE_FIELDS["name"]}, ENGINE_FIELDS)
            for number, engine in enumerate(value, 1)]  # fmt: skip


ENGINE_FIELDS: Mapping[str, Check] = {
    "name": text_of(200), "rate": _above_zero, "transport": one_of(*get_args(Transport)), "workers": _count,
    "bytes": _above_zero, "bandwidth": _above_zero, "room": _count, "host_cpu_s": _not_negative,
}  # fmt: skip
FIELDS: Mapping[str, Check] = {
    "step_s": _above_zero, "host_rate": _above_zero, "workers": _count, "processors": _above_zero, "host_cpu_s": _above_zero,
    "batches": _count, "batch_bytes": _above_zero, "bandwidth": _above_zero, "host_bandwidth": _above_zero, "engine": _engines,
}  # fmt: skip


def engine_of(text: str) -> Fields:
    """Return the fields of an engine as the command line describes it. Raises ValueError."""
    name, _, rate = text.partition("=")
    try:
        return {"name": name.strip() or text, "rate": float(rate)}
    except ValueError:
        raise ValueError(f"--engine {text!r}: write NAME=RATE, its batches a second, such as csd0=2.5") from None


def checked(fields: Any, where: str) -> Fields:
    """Return the fields. Raises ValueError with ``where``, the field, and what it must be."""
    return checked_fields(where, fields, {}, FIELDS)


def read_file(path: Path) -> Fields:
    """Return the fields of a TOML or JSON file, checked. Raises ValueError if it can't be read, or is not right."""
    kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8")
        fields = _toml(text) if kind == "TOML" else json.loads(text)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no {kind}: {error}") from None
    return checked(fields, str(path))


def _toml(text: str) -> Any:
    try:
        import tomllib
    except ModuleNotFoundError:
        raise ValueError("TOML needs Python 3.11 or newer; write JSON with the same fields") from None
    return tomllib.loads(text)


def merged(first: Fields, then: Fields) -> Fields:
    """Return both; what is in ``then`` counts. An engine of both has the fields of both."""
    engines = {engine["name"]: engine for engine in first.get("engine", [])}
    for engine in then.get("engine", []):
        engines[engine["name"]] = engines.get(engine["name"], {}) | engine
    return first | then | {"engine": list(engines.values())}


def setup_of(fields: Fields, assumed: tuple[str, ...] = ()) -> Setup:
    """Return the set-up of checked fields. ``assumed``: what has been assumed already.

    Raises ValueError if something that is needed is missing, or contradicts something else.
    """
    if "step_s" not in fields:
        raise ValueError("the time of a training step is not known; give step_s in the file of --setup")
    if "host_rate" not in fields:
        raise ValueError("the host's rate is not known; give host_rate in the file of --setup, of all its workers together")
    notes, rate, workers, cpu_s = [*assumed], fields["host_rate"], fields.get("workers", 1), fields.get("host_cpu_s")
    if "batches" not in fields:
        notes.append(f"an epoch has {BATCHES:,} batches (batches)")
    if "workers" not in fields:
        notes.append("the host has one worker (workers)")
    if cpu_s is None:
        cpu_s = workers / rate
        notes.append(f"a worker of the host computes all the time that it prepares: {cpu_s:.3g} s a batch (host_cpu_s)")
    paths = tuple(_path(engine, fields, notes) for engine in fields.get("engine", []))
    if paths and "processors" not in fields:
        notes.append("no processor of the host is free for taking engines' batches (processors)")
    names = [path.source for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"engine {twice[0]} is there {names.count(twice[0])} times; give each a name of its own")
    measured = Measured(fields["step_s"], rate, cpu_s, fields.get("processors"), fields.get("host_bandwidth"), paths)
    return Setup(measured, fields.get("batches", BATCHES), workers, (*notes, *estimate(measured, paths).assumed))


def _path(engine: Fields, fields: Fields, notes: list[str]) -> OffloadPath:
    name = engine["name"]
    if "rate" not in engine:
        raise ValueError(f"the rate of engine {name} is not known; give --engine {name}=RATE")
    size, band = engine.get("bytes", fields.get("batch_bytes")), engine.get("bandwidth", fields.get("bandwidth"))
    if size is None or band is None:
        missing = " and ".join(field for field, value in (("batch_bytes", size), ("bandwidth", band)) if value is None)
        notes.append(f"batches of {name} come without delay ({missing})")
    room: float | None = None
    if size is None and "room" in engine:
        raise ValueError(f"engine {name}: room={engine['room']} is in batches, whose bytes are not known; give batch_bytes")
    if size is None:
        notes.append(f"the spool of {name} holds {QUOTA:,} batches, an engine's default (room)")
    elif "room" in engine:
        room = engine["room"] * size
    else:
        room = SPOOL_BYTES
        notes.append(f"the spool of {name} holds 8 GiB, an engine's default (room)")
    if size is not None and room is not None and room < size:
        raise ValueError(f"the spool of engine {name} has no room for a batch; give it a larger one (room)")
    return OffloadPath(
        name, engine["rate"], engine.get("transport", "stream"), engine.get("workers", 1), engine.get("host_cpu_s"),
        bytes_per_batch=size, bandwidth_bytes_per_s=band, spool_bytes=room,
    )  # fmt: skip
