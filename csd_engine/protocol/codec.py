"""The messages between host and engine as bytes: one frozen dataclass a message, parsed and checked; no pickle.

A message is one or two frames: JSON `{"say": NAME, field: value, ...}`, and for some of them bytes: those of a
file or a batch, or a secret, which has no place in a text that may be logged. Encoding and decoding touch no socket. Everything
that arrives is hostile until it is decoded: types, ranges and lengths are checked here, once.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from csd_engine.errors import BadMessage, quote
from csd_engine.protocol import messages
from csd_engine.protocol.fields import MAX_ITEMS, MAX_TEXT, Check
from csd_engine.protocol.messages import *  # noqa: F403  (the one face of both)
from csd_engine.protocol.messages import (
    HOST_MESSAGES,
    MAX_PART_BYTES,
    MESSAGES,
    FilePart,
    Lease,
    Message,
    OpenJob,
    ParcelPart,
    Part,
)  # fmt: skip

PROTOCOL = 7
MAX_FRAME_BYTES = 8 << 20
MAX_HOST_FRAME_BYTES = 4 << 20  # of what a host sends: the longest lease with indices of twelve digits

Payload = Union[bytes, memoryview]

_WITH_PAYLOAD = (FilePart, ParcelPart, Part, messages.AskStream, messages.StreamOpen)
_MAX_PAYLOAD_BYTES = MAX_PART_BYTES + (64 << 10)  # zlib makes a part that it can't compress a little longer
_FIRST = re.compile(rb'\s*{\s*"say"\s*:\s*"(\w{1,32})"')
_NAME = rb'([A-Za-z0-9_-]{1,64})'
_LONG = re.compile(rb'{"say":(?:"OpenJob","job":"%b",|"Lease","job":"%b","lease":([0-9]{1,19}),)' % (_NAME, _NAME))
_MAX_VALUES = 1 << 18  # commas, colons and opening brackets of a message: it has no more values
_LONG_NUMBER = None if hasattr(sys, "get_int_max_str_digits") else re.compile(rb"[0-9]{400}")  # takes quadratic time there
_FEW_BYTES = 4096  # a message so short has no need of being counted
_BY_NAME = {message.__name__: message for message in MESSAGES}
_MAX_JSON: Dict[Type[Message], int] = {kind: 128 << 10 for kind in HOST_MESSAGES}
_MAX_JSON.update({OpenJob: MAX_HOST_FRAME_BYTES, Lease: MAX_HOST_FRAME_BYTES})
_CHECKS = {kind: {field.name: field.metadata["check"] for field in fields(kind)} for kind in MESSAGES}


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not allowed")


# Made once: json's functions make a new one at each call, except with their defaults.
_TO_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_FROM_JSON = json.JSONDecoder(parse_constant=_no_constant).decode


def shorten(text: str) -> str:
    """Cut a text to what a message may hold."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def encode(message: Message, payload: Optional[Payload] = None) -> List[Payload]:
    """Return the message's frames.

    Raises:
        BadMessage: a field has a value that the other side would refuse.
    """
    name = type(message).__name__
    data = {"say": name}
    for field, check in _CHECKS[type(message)].items():
        data[field] = value = getattr(message, field)
        _checked(name, field, check, value)
    frame = _TO_JSON(data).encode()
    return [frame] if payload is None else [frame, payload]


def _checked(name: str, field: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise BadMessage(f"message {name}: {field} is {quote(value)}; it must be {error}.") from None


def _check_size(text: bytes) -> None:
    """Raise BadMessage unless this can be a message: what is parsed takes many times the memory of its text."""
    match = _FIRST.match(text)
    kind = _BY_NAME.get(match[1].decode()) if match else None
    if kind is None:
        raise BadMessage(f"{text[:80]!r} does not say first which message it is. Do both sides run the same version?")
    most = _MAX_JSON.get(kind, MAX_FRAME_BYTES)
    if len(text) > most:
        raise BadMessage(f"message {kind.__name__} has {len(text)} bytes; at most {most} are allowed.")
    if _LONG_NUMBER is not None and _LONG_NUMBER.search(text):
        raise BadMessage(f"message {kind.__name__} has a number of more than 400 digits.")
    values = sum(map(text.count, (b",", b":", b"[", b"{")))
    allowed = _MAX_VALUES + (3 * MAX_ITEMS if kind is Lease else 0)
    if values > allowed:
        raise BadMessage(f"message {kind.__name__} has {values} values; at most {allowed} are allowed.")
    if kind in (Lease, OpenJob) and _LONG.match(text) is None:  # it was not looked at before
        raise BadMessage(f"{text[:80]!r} does not say first which job it is for. Do both sides run the same version?")


class Announced(NamedTuple):
    """What a long message says of itself before it is parsed.

    Attributes:
        job: that it is for, or that it opens.
        lease: its number; None: it opens a job.
        items: the samples of the lease, at most.
    """

    job: str
    lease: Optional[int]
    items: int


def announced(frames: Sequence[Payload]) -> Optional[Announced]:
    """Return what a long message of a host says of itself, before `decode`. None: it is short, or `decode` will refuse it.

    Only a lease and the opening of a job can be long. `encode` writes first what is read here.
    """
    if not frames or not _FEW_BYTES < len(frames[0]) <= MAX_HOST_FRAME_BYTES:
        return None
    match = _LONG.match(frames[0])
    if match is None:
        return None
    lease = None if match[3] is None else int(match[3])
    return Announced(match[1 if lease is None else 2].decode(), lease, 0 if lease is None else bytes(frames[0]).count(b"[") - 1)


def decode(frames: Sequence[Payload]) -> Tuple[Message, Payload]:
    """Return the message and its payload (empty where there is none), which is not copied.

    Raises:
        BadMessage: not a message, or a field is missing, unknown or out of range.
    """
    if not 1 <= len(frames) <= 2 or any(len(frame) > MAX_FRAME_BYTES for frame in frames):
        raise BadMessage(f"{len(frames)} frames of {[len(frame) for frame in frames[:4]]} bytes are not a message.")
    if len(frames) == 2 and len(frames[1]) > _MAX_PAYLOAD_BYTES:
        raise BadMessage(f"the second frame has {len(frames[1])} bytes; at most {_MAX_PAYLOAD_BYTES} are allowed.")
    text = bytes(frames[0])
    if len(text) > _FEW_BYTES:
        _check_size(text)
    try:
        data = _FROM_JSON(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the first frame is not JSON ({error}): {text[:80]!r}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("say"), str) or data["say"] not in _BY_NAME:
        raise BadMessage(f"{quote(data)} does not say which message it is. Do both sides run the same version?")
    kind = _BY_NAME[data.pop("say")]
    checks = _CHECKS[kind]
    if data.keys() != checks.keys():
        raise BadMessage(f"message {kind.__name__} has fields {quote(sorted(data))}, expected were {sorted(checks)}.")
    if (len(frames) == 2) != (kind in _WITH_PAYLOAD):
        raise BadMessage(f"message {kind.__name__} came with {len(frames)} frames.")
    checked = {field: _checked(kind.__name__, field, check, data[field]) for field, check in checks.items()}
    return kind(**checked), frames[1] if len(frames) == 2 else b""
