"""What steps of a transform do, as a digest: their code, its parameters, and all that it refers to.

Two runs get the same digest if nothing of that has changed. Of the user's own functions and classes the byte code counts, and
so do the globals that it names; of a library's its name and version. What can't be read is refused, never guessed.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib.metadata
import inspect
import random
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ddlp.errors import DDLPError

__all__ = ["NoFingerprint", "fingerprint"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_BUILT_IN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType,
             types.MemberDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType)  # fmt: skip
_GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
_NOT_CODE = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate_func__", "__annotations_cache__",
    "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__slots__", "__orig_bases__",
    "__parameters__", "__match_args__", "__classdictcell__",
}  # fmt: skip
_LIBRARIES = ("torch", "torchvision", "ddlp", "csd_engine")  # wherever they are installed
_DEEP = 200


class NoFingerprint(DDLPError):
    """An object from which a step's result may depend can't be read."""


def fingerprint(steps: Iterable[Any], key: str) -> str:
    """Return the digest of steps, 32 hex digits.

    Args:
        steps: of a transform, in their order.
        key: the user's, in the place of what is found out about steps that are no library's; "": it is found out.

    Raises:
        NoFingerprint: names the object that can't be read.
    """
    walk, parts = _Walk(), []
    for step in steps:
        own = isinstance(step, (types.FunctionType, types.MethodType)) or not _of_library(type(step).__module__)
        try:
            parts.append(key.encode() if key and own else walk.digest(step, type(step).__qualname__))
        except NoFingerprint:
            if not key:
                raise
            parts.append(key.encode())
    return _hashed(b"steps", *parts).hex()


def _hashed(*parts: bytes) -> bytes:
    made = hashlib.blake2b(digest_size=16, person=b"ddlp steps")
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


class _Walk:
    """Makes digests of objects. An object that holds itself counts as a mark in its own place."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}
        self._open: list[int] = []
        self._alive: list[Any] = []  # an id is an object's own only as long as it lives

    def digest(self, thing: Any, where: str) -> bytes:
        """Return an object's digest. ``where``: it, for messages."""
        if isinstance(thing, _PLAIN) and type(thing) in _PLAIN:
            return _hashed(type(thing).__name__.encode(), repr(thing).encode(errors="surrogatepass"))
        known = self._known.get(id(thing))
        if known is not None:
            return known
        if id(thing) in self._open:
            return _hashed(b"again", str(len(self._open) - self._open.index(id(thing))).encode())
        if len(self._open) > _DEEP:
            raise NoFingerprint(f"{where}: it holds objects in more than {_DEEP} levels")
        self._open.append(id(thing))
        try:
            made = _hashed(type(thing).__qualname__.encode(), *self._parts(thing, where))
        finally:
            self._open.pop()
        self._known[id(thing)] = made
        self._alive.append(thing)
        return made

    def _parts(self, thing: Any, where: str) -> Iterator[bytes]:
        if isinstance(thing, types.ModuleType):
            yield _version(thing.__name__)
        elif isinstance(thing, type):
            yield from self._of_class(thing, where)
        elif isinstance(thing, types.FunctionType):
            yield from self._of_function(thing, where)
        elif isinstance(thing, types.CodeType):
            yield from self._of_code(thing, where)
        elif isinstance(thing, _GENERATORS):
            raise NoFingerprint(f"{where} is a {type(thing).__qualname__}, whose numbers are other ones each time")
        elif isinstance(thing, enum.Enum):
            yield from (self.digest(type(thing), where), thing.name.encode())
        elif isinstance(thing, torch.Tensor):
            yield from (repr((type(thing), thing.dtype, thing.shape)).encode(), _bytes_of(thing))
        elif isinstance(thing, np.ndarray) and thing.dtype.hasobject is False:
            yield from (repr((thing.dtype.descr, thing.shape)).encode(), np.ascontiguousarray(thing).tobytes())
        elif isinstance(thing, (torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype)):
            yield repr(thing).encode()
        elif isinstance(thing, types.MethodType):
            yield from (self.digest(thing.__func__, where), self.digest(thing.__self__, where))
        elif isinstance(thing, _BUILT_IN):
            yield from self._of_built_in(thing, where)
        elif isinstance(thing, functools.partial):
            yield from (self.digest(one, f"{where}.{name}") for name, one in (
                ("func", thing.func), ("args", thing.args), ("keywords", thing.keywords)))  # fmt: skip
        elif isinstance(thing, property):
            yield from (self.digest(one, where) for one in (thing.fget, thing.fset, thing.fdel))
        elif isinstance(thing, (staticmethod, classmethod)):
            yield self.digest(thing.__func__, where)
        elif isinstance(thing, (set, frozenset)) and type(thing) in (set, frozenset):
            yield from sorted(self.digest(one, where) for one in thing)
        elif type(thing) in (tuple, list):
            yield from (self.digest(one, f"{where}[{place}]") for place, one in enumerate(thing))
        elif type(thing) in (dict, types.MappingProxyType):
            yield from self._of_mapping(thing, where)
        else:
            yield from self._of_object(thing, where)

    def _of_mapping(self, thing: Mapping[Any, Any], where: str) -> Iterator[bytes]:
        for key, value in thing.items():
            yield self.digest(key, where)
            yield self.digest(value, f"{where}[{key!r:.40}]")

    def _of_object(self, thing: Any, where: str) -> Iterator[bytes]:
        """Yield the parts of which pickle would make such an object again."""
        name, module = getattr(thing, "__name__", None), getattr(thing, "__module__", None) or type(thing).__module__
        if isinstance(name, str) and _of_library(module) and getattr(sys.modules.get(module), name, None) is thing:
            yield from (name.encode(), _version(module))  # numpy's ufuncs, torch's operators
            return
        try:
            reduced = thing.__reduce_ex__(2)
        except Exception as error:
            raise NoFingerprint(f"{where} is a {type(thing).__qualname__}, which can't be read: {error}") from None
        if isinstance(reduced, str):  # it is known by its name
            wrapped = getattr(thing, "__wrapped__", None)  # of functools.cache
            if wrapped is None and not _of_library(getattr(thing, "__module__", None) or type(thing).__module__):
                raise NoFingerprint(f"{where} is a {type(thing).__qualname__}, which can't be read")
            yield from (reduced.encode(), self.digest(wrapped, where))
            return
        yield self.digest(type(thing), where)
        for part in reduced:
            if part is not None and hasattr(part, "__next__"):  # the elements of lists and dicts
                part = list(part)
            yield from self._of_state(part, where)

    def _of_state(self, part: Any, where: str) -> Iterator[bytes]:
        if type(part) is dict:  # the attributes, in any order
            for name in sorted(part, key=repr):
                yield self.digest(name, where)
                yield self.digest(part[name], f"{where}.{name}")
        else:
            yield self.digest(part, where)

    def _of_built_in(self, thing: Any, where: str) -> Iterator[bytes]:
        yield f"{getattr(thing, '__module__', '')}.{thing.__qualname__}".encode()
        holder = getattr(thing, "__self__", None)
        if holder is not None and not isinstance(holder, (types.ModuleType, type)):
            yield self.digest(holder, f"{where}.__self__")

    def _of_class(self, thing: type, where: str) -> Iterator[bytes]:
        yield thing.__qualname__.encode()
        if _of_library(thing.__module__):
            yield _version(thing.__module__)
            return
        yield from (self.digest(base, where) for base in thing.__bases__)
        for name in sorted(vars(thing)):
            if name not in _NOT_CODE:
                yield name.encode()
                yield self.digest(vars(thing)[name], f"{thing.__qualname__}.{name}")

    def _of_function(self, thing: types.FunctionType, where: str) -> Iterator[bytes]:
        yield thing.__qualname__.encode()
        if _of_library(thing.__module__ or ""):
            yield _version(thing.__module__)
            return
        here = thing.__qualname__ if thing.__qualname__ in where else f"{where}: {thing.__qualname__}"
        yield self.digest(thing.__code__, here)
        yield self.digest((thing.__defaults__, thing.__kwdefaults__), here)
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield self.digest(cell.cell_contents, f"{here}: {name}")
            except ValueError:  # not filled yet
                yield b"empty"
        wrapped = vars(thing).get("__wrapped__")
        if wrapped is not None:
            yield self.digest(wrapped, here)
        names = sorted(set(_names(thing.__code__)))
        for name in names:
            if name in thing.__globals__:
                value = thing.__globals__[name]
                yield name.encode()
                yield self.digest(value, f"{here}: {name}")
                if isinstance(value, types.ModuleType) and not _of_library(value.__name__):
                    for one in names:  # which of its attributes the code asks for, as far as names tell
                        if one in vars(value):
                            yield self.digest(vars(value)[one], f"{here}: {name}.{one}")

    def _of_code(self, thing: types.CodeType, where: str) -> Iterator[bytes]:
        yield thing.co_code
        yield repr((thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_argcount, thing.co_flags)).encode()
        yield self.digest(thing.co_consts, where)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code uses, and those that the functions within it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().as_subclass(torch.Tensor)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


@functools.cache
def _of_library(module: str) -> bool:
    """Return whether a module's code changes with its version alone: it is Python's, or was installed."""
    top = module.partition(".")[0]
    if top in _LIBRARIES or top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return top != "__main__"
    found = sys.modules.get(module) or sys.modules.get(top)
    path = getattr(found, "__file__", None)
    if path is None:
        return False
    return any(path.startswith(sysconfig.get_path(name)) for name in ("purelib", "platlib"))


@functools.cache
def _version(module: str) -> bytes:
    """Return a library's name and version. A module of the user's own has only its name: its code is read where it is used."""
    top = module.partition(".")[0]
    version = getattr(sys.modules.get(top), "__version__", None)
    if version is None and top not in sys.stdlib_module_names and _of_library(module):
        owners = importlib.metadata.packages_distributions().get(top, [])
        version = [importlib.metadata.version(one) for one in owners]
    own = "" if _of_library(module) else inspect.getmodulename(getattr(sys.modules.get(module), "__file__", None) or "") or ""
    return f"{own or module} {version} {sys.version_info[:2]}".encode()
