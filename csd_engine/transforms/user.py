"""The operator that runs a function of a user's file. The plain data name the file by its hash, and hold no code."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Tuple

from PIL import Image

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError
from csd_engine.transforms import checks
from csd_engine.transforms import primitives as steps
from csd_engine.transforms.operators import Canvas, Operator, Shape

__all__ = ["Call", "Calls", "User", "named_values"]

Call = Callable[[Image.Image, int, Optional[Tuple[int, int]]], Image.Image]
"""(image, 64-bit key, (height, width) of the result or None for the image's own) -> image."""

Calls = Callable[[str, str, Mapping[str, Any]], Call]
"""(file's hash, function, parameters) -> the callable that runs it. Raises EngineError if it can't be run."""

MAX_PARAMETERS = 64
MAX_VALUES = 4096  # of all parameters together
MAX_DEPTH = 4
MAX_TEXT = 4096
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_HASH = re.compile(r"[0-9a-f]{32}")


def _hash(value: Any) -> str:
    if type(value) is not str or _HASH.fullmatch(value) is None:
        raise ValueError("expected a file's hash, 32 hex digits")
    return value


def _name(value: Any) -> str:
    if type(value) is not str or _NAME.fullmatch(value) is None:
        raise ValueError("expected a name: a letter, then at most 63 letters, digits or '_'")
    return value


def _plain(value: Any, depth: int, left: List[int]) -> Any:
    """One value in canonical form. Lists become tuples, so that no call can change the values that the next call gets."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"expected at most {MAX_VALUES} values")
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return checks.integer(-(2**63), 2**63 - 1)(value)
    if type(value) is float:
        return checks.number(-sys.float_info.max, sys.float_info.max)(value)
    if type(value) is str:
        if len(value) > MAX_TEXT:
            raise ValueError(f"expected texts of at most {MAX_TEXT} characters")
        return value
    if type(value) not in (list, tuple):
        raise ValueError("expected numbers, texts, true, false, null or lists of these")
    if depth == MAX_DEPTH:
        raise ValueError(f"expected lists nested at most {MAX_DEPTH} deep")
    return tuple(_plain(entry, depth + 1, left) for entry in value)


def named_values(value: Any) -> Tuple[Tuple[str, Any], ...]:
    """Check for an object of plain values by name; returns sorted (name, value) pairs."""
    if type(value) is not dict or len(value) > MAX_PARAMETERS:
        raise ValueError(f"expected an object of at most {MAX_PARAMETERS} values by name")
    left = [MAX_VALUES]
    return tuple(sorted((_name(name), _plain(entry, 0, left)) for name, entry in value.items()))


def _listed(value: Any) -> Any:
    return [_listed(entry) for entry in value] if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True)
class User(Operator):
    """A user's function. It gets an image, and returns an image of the same mode, and of the same size or a given one."""

    file: str
    function: str
    parameters: Tuple[Tuple[str, Any], ...]
    size: Optional[Tuple[int, int]]
    call: Optional[Call] = dataclasses.field(default=None, compare=False, repr=False)
    FIELDS: ClassVar[Dict[str, checks.Check]] = {
        "file": _hash,
        "function": _name,
        "parameters": named_values,
        "size": checks.optional(checks.size),
    }

    def to_data(self) -> Dict[str, Any]:
        """Plain data, as parsed."""
        return dict(super().to_data(), parameters={name: _listed(value) for name, value in self.parameters})

    def resolved(self, calls: Calls) -> User:
        """Return this operator, ready to run in this process. Errors of ``calls`` pass through."""
        return dataclasses.replace(self, call=calls(self.file, self.function, dict(self.parameters)))

    def out(self, shape: Shape) -> Shape:
        """The given size, else unchanged."""
        return shape if self.size is None else Shape(self.size, shape.channels)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add one call with its own key, so that the number of its draws changes nothing for the operators after it."""
        key = keyed.u64()
        if self.call is None:
            raise PipelineError(
                f"User: {self.function} of file {self.file} is not loaded in this process; give Pipeline.parse what finds it"
            )
        if self.size is not None:
            canvas.resized(*self.size)
        canvas.steps.append(steps.UserCall(self.call, key, (canvas.height, canvas.width)))
