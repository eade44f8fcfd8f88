"""A set-up as it is described: in a TOML or JSON file, or by what was read from a recording.

Both are fields by name, `FIELDS` and `ENGINE_FIELDS`, whose values may be texts. What is missing is assumed, and said so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from csd_engine.protocol.fields import Check, truth
from ddlp.auto.decide import Power, Prices, estimate
from ddlp.auto.measured import DType, Measured, OffloadPath, Transport
from ddlp.observe.play import QUOTA
from ddlp.observe.setup import Setup
from ddlp.schema import checked_fields, one_of, text_of

__all__ = ["ENGINE_FIELDS", "FIELDS", "Fields", "checked", "engine_of", "merged", "read_file", "setup_of"]

Fields = dict[str, Any]  # by the names of `FIELDS`; "engine" is a list of such, by those of `ENGINE_FIELDS`
SPOOL_BYTES = 8 << 30  # an engine's default
BATCHES = 1000
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


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
    return int(_number(value))


def _bytes(value: Any) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?(?:/s)?", value.strip().lower()) if isinstance(value, str) else None
    size = float(found[1]) * _UNITS[found[2]] if found else _number(value)
    if not 0 < size < math.inf:
        raise ValueError("a number of bytes above 0; k, M, G, T are thousands, millions and so on: 38.5M")
    return size


def _watts(value: Any) -> tuple[float, float]:
    """Idle and busy."""
    ends = value.split(":") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    watts = tuple(map(_number, ends))
    if len(watts) not in (1, 2) or not all(0 <= one < math.inf for one in watts):
        raise ValueError("watts, idle and busy: 80:250")
    return watts[0], watts[-1]


ENGINE_FIELDS: Mapping[str, Check] = {
    "name": text_of(200), "rate": _above_zero, "transport": one_of(*get_args(Transport)), "dtype": one_of(*get_args(DType)),
    "workers": _count, "bytes": _bytes, "bandwidth": _bytes, "room": _count, "host_cpu_s": _not_negative,
    "watts": _not_negative, "price": _not_negative, "carried": truth, "source_bytes": _bytes,
}  # fmt: skip
FIELDS: Mapping[str, Check] = {
    "step_s": _above_zero, "host_rate": _above_zero, "workers": _count, "processors": _above_zero, "host_cpu_s": _above_zero,
    "batches": _count, "batch_bytes": _bytes, "bandwidth": _bytes, "host_bandwidth": _bytes,
    "engine": lambda value: _engines(value),
    "host_watts": _watts, "accelerator_watts": _not_negative, "engine_watts": _not_negative,
    "host_price": _not_negative, "accelerator_price": _not_negative, "engine_price": _not_negative,
    "storage_price": _not_negative,
}  # fmt: skip


def _engines(value: Any) -> list[Fields]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("a list of engines")
    return [checked_fields(f"engine {number}", one, {"name": ENGINE_FIELDS["name"]}, ENGINE_FIELDS)
            for number, one in enumerate(value, 1)]  # fmt: skip


def engine_of(text: str) -> Fields:
    """Return the fields of an engine as the command line describes it. Raises ValueError."""
    name, _, rate = text.partition("=")
    if not name.strip() or not rate.strip():
        raise ValueError(f"--engine {text!r}: write NAME=RATE, its batches a second, such as csd0=2.5")
    return {"name": name.strip(), "rate": rate.strip()}


def checked(fields: Any, where: str) -> Fields:
    """Return the fields with their values as numbers. Raises ValueError with ``where``, the field, and what it must be."""
    return checked_fields(where, fields, {}, FIELDS)


def read_file(path: Path) -> Fields:
    """Return the fields of a TOML or JSON file, checked. Raises ValueError if it can't be read, or is not right."""
    try:
        text = path.read_text(encoding="utf-8")
        fields = _toml(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no {'TOML' if path.suffix.lower() == '.toml' else 'JSON'}: {error}") from None
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

    Raises ValueError if something that is needed is missing.
    """
    notes = [*assumed]

    def known(name: str, otherwise: Any, note: str) -> Any:
        if name not in fields:
            notes.append(note)
        return fields.get(name, otherwise)

    batches = known("batches", BATCHES, f"an epoch has {BATCHES:,} batches (batches)")
    workers = known("workers", 1, "the host has one worker (workers)")
    rate = fields.get("host_rate")
    cpu_s = fields.get("host_cpu_s")
    if cpu_s is None and rate is not None:
        cpu_s = workers / rate
        notes.append(f"a worker of the host computes all the time that it prepares: {cpu_s:.3g} s a batch (host_cpu_s)")
    paths = tuple(_path(engine, fields, notes) for engine in fields.get("engine", []))
    if paths and "processors" not in fields:
        notes.append("no processor of the host is free for taking engines' batches (processors)")
    measured = Measured(
        step_s=fields.get("step_s"), loader_batches_per_s=rate, host_cpu_s_per_batch=cpu_s,
        host_processors=fields.get("processors"), transfer_bytes_per_s=fields.get("host_bandwidth"), paths=paths,
    )  # fmt: skip
    setup = Setup(measured, batches, workers, fields.get("batch_bytes"), _power(fields, notes), _prices(fields, notes))
    return replace(setup, assumed=(*notes, *estimate(measured, paths).assumed))


def _path(engine: Fields, fields: Fields, notes: list[str]) -> OffloadPath:
    name = engine["name"]
    size, band = engine.get("bytes", fields.get("batch_bytes")), engine.get("bandwidth", fields.get("bandwidth"))
    if size is None or band is None:
        missing = " and ".join(field for field, value in (("batch_bytes", size), ("bandwidth", band)) if value is None)
        notes.append(f"batches of {name} come without delay ({missing})")
    room: float | None = None
    if size is not None:
        room = engine["room"] * size if "room" in engine else SPOOL_BYTES
        if "room" not in engine:
            notes.append(f"the spool of {name} holds 8 GiB, an engine's default (room)")
    elif "room" in engine:
        raise ValueError(f"engine {name}: room={engine['room']} is in batches, whose bytes are not known; give batch_bytes")
    else:
        notes.append(f"the spool of {name} holds {QUOTA:,} batches, an engine's default (room)")
    rate, carried = engine.get("rate"), engine.get("carried", False)
    if carried and (band is None or "source_bytes" not in engine):
        notes.append(f"the files of batches go to {name} without delay (source_bytes and bandwidth)")
    return OffloadPath(
        name, engine.get("transport", "stream"), engine.get("dtype", "uint8"), workers=engine.get("workers", 1),
        alone_batches_per_s=rate, with_host_batches_per_s=rate, host_cpu_s_per_batch=engine.get("host_cpu_s"),
        bytes_per_batch=size, bandwidth_bytes_per_s=band, spool_bytes=room,
        carried=carried, source_bytes_per_batch=engine.get("source_bytes"),
    )  # fmt: skip


def _power(fields: Fields, notes: list[str]) -> Power | None:
    engines = {engine["name"]: engine.get("watts", fields.get("engine_watts")) for engine in fields.get("engine", [])}
    host, accelerator = fields.get("host_watts"), fields.get("accelerator_watts")
    given = {"host": host, "accelerator": accelerator, **engines}
    if not _some(given, "watts", notes):
        return None
    idle, busy = host or (0.0, 0.0)
    return Power(idle, busy, accelerator or 0.0, {name: watts or 0.0 for name, watts in engines.items()})


def _prices(fields: Fields, notes: list[str]) -> Prices | None:
    engines = {engine["name"]: engine.get("price", fields.get("engine_price")) for engine in fields.get("engine", [])}
    host, accelerator = fields.get("host_price"), fields.get("accelerator_price")
    if not _some({"host": host, "accelerator": accelerator, **engines}, "price", notes):
        return None
    free = {name: price or 0.0 for name, price in engines.items()}
    return Prices(host or 0.0, accelerator or 0.0, free, fields.get("storage_price", 0.0))


def _some(given: Mapping[str, Any], what: str, notes: list[str]) -> bool:
    """True if some are known; notes those that are not, which count as 0."""
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        notes.append(f"{', '.join(missing)}: no {what} given, which counts as 0")
    return len(missing) < len(given)
