"""The messages between host and engine as bytes: one frozen dataclass a message, parsed and checked; no pickle.

A message is one or two frames: JSON `{"say": NAME, field: value, ...}`, and for FilePart and Part the bytes. Encoding and
decoding touch no socket. Everything that arrives is hostile until it is decoded: types, ranges and lengths are checked
here, once.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, List, Optional, Sequence, Tuple, Union

from csd_engine.errors import BadMessage
from csd_engine.protocol import messages
from csd_engine.protocol.fields import MAX_TEXT, Check
from csd_engine.protocol.messages import *  # noqa: F403  (the one face of both)
from csd_engine.protocol.messages import MESSAGES, FilePart, Message, Part

__all__ = ["MAX_FRAME_BYTES", "PROTOCOL", "Payload", "decode", "encode", "shorten"]
__all__ += messages.__all__

PROTOCOL = 3
MAX_FRAME_BYTES = 8 << 20

Payload = Union[bytes, memoryview]

_WITH_PAYLOAD = (FilePart, Part)
_BY_NAME = {message.__name__: message for message in MESSAGES}
_CHECKS = {kind: {one.name: one.metadata["check"] for one in fields(kind)} for kind in MESSAGES}


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
    frame = _TO_JSON(data).encode("utf-8", "backslashreplace")
    return [frame] if payload is None else [frame, payload]


def _checked(name: str, field: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise BadMessage(f"message {name}: {field} is {value!r:.100}; it must be {error}.") from None


def decode(frames: Sequence[Payload]) -> Tuple[Message, Payload]:
    """Return the message and its payload (empty where there is none), which is not copied.

    Raises:
        BadMessage: not a message, or a field is missing, unknown or out of range.
    """
    if not 1 <= len(frames) <= 2 or any(len(frame) > MAX_FRAME_BYTES for frame in frames):
        raise BadMessage(f"{len(frames)} frames of {[len(frame) for frame in frames[:4]]} bytes are not a message.")
    try:
        data = _FROM_JSON(bytes(frames[0]).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the first frame is not JSON ({error}): {bytes(frames[0][:80])!r}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("say"), str) or data["say"] not in _BY_NAME:
        raise BadMessage(f"{data!r:.100} does not say which message it is. Do both sides run the same version?")
    kind = _BY_NAME[data.pop("say")]
    checks = _CHECKS[kind]
    if data.keys() != checks.keys():
        raise BadMessage(f"message {kind.__name__} has fields {sorted(data)!r:.200}, expected were {sorted(checks)}.")
    if (len(frames) == 2) != (kind in _WITH_PAYLOAD):
        raise BadMessage(f"message {kind.__name__} came with {len(frames)} frames.")
    checked = {field: _checked(kind.__name__, field, check, data[field]) for field, check in checks.items()}
    return kind(**checked), frames[1] if len(frames) == 2 else b""
