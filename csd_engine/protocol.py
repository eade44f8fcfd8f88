"""What host and engine say to each other: one frozen dataclass a message, parsed and checked; no pickle.

A message is one or two frames: JSON `{"say": NAME, field: value, ...}`, and for ManifestPart the bytes. Encoding and
decoding touch no socket. Everything that arrives is hostile until it is decoded: types, ranges and lengths are checked
here, once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

from csd_engine.errors import BadMessage

__all__ = [
    "MAX_FRAME_BYTES",
    "PROTOCOL",
    "Cancel",
    "Cancelled",
    "CloseJob",
    "Failed",
    "Hello",
    "JobClosed",
    "JobOpen",
    "Lease",
    "ManifestPart",
    "Message",
    "NeedManifest",
    "OpenJob",
    "Ping",
    "Pong",
    "Probe",
    "ProbeDone",
    "Published",
    "Refused",
    "Release",
    "Welcome",
    "decode",
    "encode",
]

PROTOCOL = 1
MAX_FRAME_BYTES = 8 << 20
MAX_TEXT = 4096
MAX_ITEMS = 1 << 17  # samples of one lease
MAX_INT = (1 << 63) - 1

Item = Tuple[int, int]
_Check = Callable[[Any], Any]


def _integer(low: int, high: int) -> _Check:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return check


def _text(pattern: str, meaning: str) -> _Check:
    compiled = re.compile(pattern, re.DOTALL)

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > MAX_TEXT or compiled.fullmatch(value) is None:
            raise ValueError(meaning)
        return value

    return check


def _list(one: _Check, longest: int) -> _Check:
    def check(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > longest:
            raise ValueError(f"a list of at most {longest}")
        return tuple(one(entry) for entry in value)

    return check


def _tuple(*checks: _Check) -> _Check:
    def check(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            raise ValueError(f"a list of exactly {len(checks)}")
        return tuple(one(entry) for one, entry in zip(checks, value))

    return check


def _object(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def _versions(value: Any) -> Dict[str, str]:
    if not isinstance(value, dict) or len(value) > 32:
        raise ValueError("an object of at most 32 texts")
    return {_anything(name): _anything(text) for name, text in value.items()}


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError("a number of seconds")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


_anything = _text(r".*", f"a text of at most {MAX_TEXT} characters")
_count = _integer(0, MAX_INT)
_signed = _integer(-(1 << 63), (1 << 64) - 1)
_name = _text(r"[A-Za-z0-9_-]{1,64}", "a name of 1 to 64 letters, digits, '-' or '_'")
_hex32 = _text(r"[0-9a-f]{32}", "32 hex digits")
_file = _text(r"[A-Za-z0-9_-]{1,64}/[0-9a-f]{32}\.[0-9]{1,19}\.safetensors", "a batch file below the spool")
_items = _list(_tuple(_count, _count), MAX_ITEMS)


def _checked(check: _Check) -> Any:
    return field(metadata={"check": check})


@dataclass(frozen=True)
class Message:
    """Base of all messages."""


@dataclass(frozen=True)
class Hello(Message):
    """Host: first words. An engine that speaks another protocol answers Refused."""

    protocol: int = _checked(_count)
    version: str = _checked(_anything)


@dataclass(frozen=True)
class Welcome(Message):
    """Engine: versions of its parts; quota in batches and bytes over all jobs; spool as a path on the device."""

    versions: Dict[str, str] = _checked(_versions)
    quota_batches: int = _checked(_count)
    quota_bytes: int = _checked(_count)
    spool: str = _checked(_anything)
    workers: int = _checked(_count)


@dataclass(frozen=True)
class Refused(Message):
    """Engine: no to `job`, or to the whole connection where `job` is empty."""

    job: str = _checked(_text(r"[A-Za-z0-9_-]{0,64}", "a job's name or nothing"))
    reason: str = _checked(_anything)


@dataclass(frozen=True)
class OpenJob(Message):
    """Host: pipeline, data set and layout as plain data; each is parsed by its own room."""

    job: str = _checked(_name)
    pipeline: Dict[str, Any] = _checked(_object)
    dataset: Dict[str, Any] = _checked(_object)
    layout: Dict[str, Any] = _checked(_object)


@dataclass(frozen=True)
class JobOpen(Message):
    """Engine: the job is open; its batch files appear in `directory` below the spool."""

    job: str = _checked(_name)
    directory: str = _checked(_name)


@dataclass(frozen=True)
class NeedManifest(Message):
    """Engine: send the part of this manifest that begins at byte `offset`; answered once per part (flow control)."""

    fingerprint: str = _checked(_hex32)
    offset: int = _checked(_count)


@dataclass(frozen=True)
class ManifestPart(Message):
    """Host: a piece of a manifest of `total` bytes, from `offset`; the second frame holds it, zlib-compressed."""

    fingerprint: str = _checked(_hex32)
    offset: int = _checked(_count)
    total: int = _checked(_count)


@dataclass(frozen=True)
class Probe(Message):
    """Host: prepare these items and tell the digests, to compare with its own."""

    job: str = _checked(_name)
    seed: int = _checked(_signed)
    epoch: int = _checked(_count)
    items: Tuple[Item, ...] = _checked(_list(_tuple(_count, _count), 256))


@dataclass(frozen=True)
class ProbeDone(Message):
    """Engine: `samples.sample_digest` of each item, in order; for one that failed, 'error: ' and the reason, or
    'refused: ' where a user's operator does not run there.
    """

    job: str = _checked(_name)
    digests: Tuple[str, ...] = _checked(_list(_anything, 256))
    versions: Dict[str, str] = _checked(_versions)


@dataclass(frozen=True)
class Lease(Message):
    """Host: prepare this batch. Leases of a job are begun in the order sent."""

    job: str = _checked(_name)
    lease: int = _checked(_count)
    identity: str = _checked(_hex32)
    seed: int = _checked(_signed)
    epoch: int = _checked(_count)
    items: Tuple[Item, ...] = _checked(_items)


@dataclass(frozen=True)
class Published(Message):
    """Engine: the batch file is complete under its name; `file` is relative to the spool; busy_s without waits."""

    job: str = _checked(_name)
    lease: int = _checked(_count)
    file: str = _checked(_file)
    file_bytes: int = _checked(_count)
    busy_s: float = _checked(_seconds)


@dataclass(frozen=True)
class Failed(Message):
    """Engine: the lease came to nothing; `fatal` where every other lease of the job would fail as well."""

    job: str = _checked(_name)
    lease: int = _checked(_count)
    reason: str = _checked(_anything)
    fatal: bool = _checked(_truth)


@dataclass(frozen=True)
class Cancel(Message):
    """Host: stop this lease between two samples."""

    job: str = _checked(_name)
    lease: int = _checked(_count)


@dataclass(frozen=True)
class Cancelled(Message):
    """Engine: nothing of the lease is left."""

    job: str = _checked(_name)
    lease: int = _checked(_count)


@dataclass(frozen=True)
class Release(Message):
    """Host: the batch was delivered or dropped; its file may go."""

    job: str = _checked(_name)
    lease: int = _checked(_count)


@dataclass(frozen=True)
class Ping(Message):
    """Host: alive; `waiting` names the jobs whose training step waits for a batch now."""

    waiting: Tuple[str, ...] = _checked(_list(_name, 1024))


@dataclass(frozen=True)
class Pong(Message):
    """Engine: alive. progress holds (job, lease, samples done) of each lease begun; note says what holds leases
    back.
    """

    progress: Tuple[Tuple[str, int, int], ...] = _checked(_list(_tuple(_name, _count, _count), 4096))
    spool_batches: int = _checked(_count)
    spool_bytes: int = _checked(_count)
    free_bytes: int = _checked(_count)
    note: str = _checked(_anything)


@dataclass(frozen=True)
class CloseJob(Message):
    """Host: the job is over; everything of it is removed."""

    job: str = _checked(_name)


@dataclass(frozen=True)
class JobClosed(Message):
    """Engine: nothing of the job is left."""

    job: str = _checked(_name)


_MESSAGES: Tuple[Type[Message], ...] = (
    Hello, Welcome, Refused, OpenJob, JobOpen, NeedManifest, ManifestPart, Probe, ProbeDone, Lease, Published, Failed,
    Cancel, Cancelled, Release, Ping, Pong, CloseJob, JobClosed,
)  # fmt: skip
_BY_NAME = {message.__name__: message for message in _MESSAGES}


def shorten(text: str) -> str:
    """Cut a text to what a message may hold."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def encode(message: Message, payload: Optional[bytes] = None) -> List[bytes]:
    """Return the message's frames.

    Raises:
        BadMessage: a field has a value that the other side would refuse.
    """
    for one in fields(message):
        _check(type(message).__name__, one, getattr(message, one.name))
    data = {"say": type(message).__name__, **{one.name: getattr(message, one.name) for one in fields(message)}}
    frame = json.dumps(data, separators=(",", ":"), allow_nan=False).encode("utf-8", "backslashreplace")
    return [frame] if payload is None else [frame, payload]


def _check(name: str, one: Any, value: Any) -> Any:
    try:
        return one.metadata["check"](value)
    except ValueError as error:
        raise BadMessage(f"message {name}: {one.name} is {value!r:.100}; it must be {error}.") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not allowed")


def decode(frames: Sequence[bytes]) -> Tuple[Message, bytes]:
    """Return the message and its payload (empty where there is none).

    Raises:
        BadMessage: not a message, or a field is missing, unknown or out of range.
    """
    if not 1 <= len(frames) <= 2 or any(len(frame) > MAX_FRAME_BYTES for frame in frames):
        raise BadMessage(f"{len(frames)} frames of {[len(frame) for frame in frames[:4]]} bytes are not a message.")
    try:
        data = json.loads(bytes(frames[0]).decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the first frame is not JSON ({error}): {bytes(frames[0][:80])!r}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("say"), str) or data["say"] not in _BY_NAME:
        raise BadMessage(f"{data!r:.100} does not say which message it is. Do both sides run the same version?")
    kind = _BY_NAME[data.pop("say")]
    names = {one.name for one in fields(kind)}
    if set(data) != names:
        raise BadMessage(f"message {kind.__name__} has fields {sorted(data)!r:.200}, expected were {sorted(names)}.")
    if (len(frames) == 2) != (kind is ManifestPart):
        raise BadMessage(f"message {kind.__name__} came with {len(frames)} frames.")
    checked = {one.name: _check(kind.__name__, one, data[one.name]) for one in fields(kind)}
    return kind(**checked), bytes(frames[1]) if len(frames) == 2 else b""
