"""Finds generators within user code. Each of albumentations' transforms has generators of its own (since 2.0).

The search goes through what the code holds and names: attributes, elements of lists and dicts, the variables that a function
closes over, and the globals that it uses. Older versions of albumentations draw from the global generators.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["own_generators"]

_DEEP = 8  # steps from the data set to a transform, at most
_MANY = 64  # a list with more elements is not searched: it has samples, not transforms
_LIBRARY = "albumentations"
_NO_CODE = ("builtins", "torch", "torchvision", "numpy", "PIL", "cv2")  # their functions name no objects of the user's


def own_generators(code: Any) -> list[Any]:
    """Return the outermost objects within ``code`` that have generators of their own. Each has ``set_random_seed``."""
    if _LIBRARY not in sys.modules:
        return []
    return list(_search(code, set(), _DEEP))


def _search(thing: Any, seen: set[int], deep: int) -> Iterator[Any]:
    if deep == 0 or id(thing) in seen or isinstance(thing, (str, bytes, int, float, types.ModuleType)):
        return
    seen.add(id(thing))
    if any(kind.__module__.partition(".")[0] == _LIBRARY for kind in type(thing).__mro__):
        if callable(getattr(thing, "set_random_seed", None)):
            yield thing
            return
    for inner in _within(thing):
        yield from _search(inner, seen, deep - 1)


def _within(thing: Any) -> Iterator[Any]:
    """Yield the objects that an object holds, and those that its code names.

    Containers are copied first: another thread may fill them meanwhile, as the one that opens a data set's files does.
    """
    if isinstance(thing, dict):
        yield from list(dict.values(thing)) if len(thing) <= _MANY else ()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from tuple(thing) if len(thing) <= _MANY else ()
    elif isinstance(thing, types.FunctionType):
        if not _of_library(thing):
            yield from _of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif not isinstance(thing, type):
        yield from list(getattr(thing, "__dict__", {}).values())
        yield from [getattr(thing, name) for kind in type(thing).__mro__ for name in _slots(kind) if hasattr(thing, name)]
        for kind in type(thing).__mro__:
            if not _of_library(kind):
                yield from [value for value in list(vars(kind).values()) if not isinstance(value, type)]


def _of_library(code: Any) -> bool:
    return str(code.__module__).partition(".")[0] in _NO_CODE


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the globals that code uses, and of those that the functions within it use."""
    yield from (instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)
