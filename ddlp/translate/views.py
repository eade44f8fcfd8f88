"""Recognizes transforms that make several views of one sample: ddlp's own Views, and the usual classes that people write."""

from __future__ import annotations

import dis
import inspect
import types
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchvision.transforms import Compose

from ddlp.transforms import Views

__all__ = ["Held", "ViewTransforms", "views_of"]

_MOST = 64
_VALUES = (types.NoneType, bool, int, float, str)
_BUILT_IN = {built_in.__name__: built_in for built_in in (dict, enumerate, len, list, range, reversed, tuple, zip)}
_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CATCHES = {"PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH"}  # of all Pythons: an exception or a `with` is handled


class Value(NamedTuple):
    """A part of a result that is the same for each image. ``kind`` is its type, since True == 1."""

    kind: type
    value: Any


@dataclass(frozen=True)
class Held:
    """How a result holds its views, where it is more than a list or a tuple of them.

    Attributes:
        kind: list, tuple or dict.
        keys: of a dict.
        parts: each a view's number, another `Held` or a `Value`.
    """

    kind: type
    keys: tuple[str, ...]
    parts: tuple[Any, ...]

    def __call__(self, views: list[Any]) -> Any:
        """Return the result for one sample's views."""
        filled = [
            views[part] if type(part) is int else part(views) if type(part) is Held else part.value for part in self.parts
        ]
        return dict(zip(self.keys, filled, strict=True)) if self.kind is dict else self.kind(filled)


class ViewTransforms(NamedTuple):
    """A transform that makes several views: the transform of each, and the list, tuple or `Held` that gathers their results."""

    transforms: tuple[Any, ...]
    gathered: type | Held


def views_of(transform: Any) -> ViewTransforms | None:
    """Return the views' transforms, for ddlp's Views or an object whose ``__call__`` does no more than making views.

    Its code is run once on objects that stand for the image and for itself. It sees its own plain attributes, can give images
    to those that are callable, and has a few of Python's own functions; whatever else it tries ends it. So what it does is the
    same for each image. Each view must have draws of its own: a result that goes into two transforms is none.

    Returns:
        None: the object is none of these.
    """
    kind = type(transform)
    if kind is Views:
        return ViewTransforms(tuple(transform.transforms), list)
    call: Any = kind.__call__ if callable(transform) else None
    usual: Any = object.__getattribute__
    if not isinstance(call, types.FunctionType) or call.__closure__ or kind.__getattribute__ is not usual:
        return None
    names, opcodes = _used(call.__code__)
    if call.__code__.co_flags & _LATER or opcodes & _CATCHES or names & _BUILT_IN.keys() & call.__globals__.keys():
        return None
    world: dict[str, Any] = {"__builtins__": dict(_BUILT_IN)}
    names_before, trace, image = set(world), _Trace(), _Image()
    try:
        result = types.FunctionType(call.__code__, world)(_Self(transform, trace), image)
        return trace.views(result) if set(world) == names_before else None
    except Exception:  # of any kind: it has met an object that only stands for another
        return None


def _used(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names and the kinds of instructions of a function, and of the functions inside it."""
    names, opcodes = set(code.co_names), {instruction.opname for instruction in dis.get_instructions(code)}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _used(inner)
            names, opcodes = names | more[0], opcodes | more[1]
    return names, opcodes


class _Unknown(Exception):
    """The code does something else than making views."""


def _refuse(*_: Any) -> Any:
    raise _Unknown


class _Closed:
    """Nothing can be learned from these objects, so that the code can't go another way by what they are."""

    __slots__ = ()
    __getattribute__ = __setattr__ = __delattr__ = __eq__ = __bool__ = __repr__ = __str__ = __format__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class _Image(_Closed):
    """Stands for the image, or for what a transform makes of it."""

    __slots__ = ()


class _Call(_Closed):
    """Stands for a transform. A call is noted."""

    __slots__ = ("trace", "transform")

    def __init__(self, trace: _Trace, transform: Any) -> None:
        object.__setattr__(self, "trace", trace)
        object.__setattr__(self, "transform", transform)

    def __call__(self, image: Any) -> _Image:
        trace: _Trace = object.__getattribute__(self, "trace")
        return trace.made_of(image, object.__getattribute__(self, "transform"))


class _Self(_Closed):
    """Stands for the object itself: it has the object's plain attributes, unchangeable."""

    __slots__ = ("_class", "_held", "_trace")

    def __init__(self, transform: Any, trace: _Trace) -> None:
        for name, value in (("_class", type(transform)), ("_held", vars(transform)), ("_trace", trace)):
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        of = object.__getattribute__
        if hasattr(of(self, "_class"), name):  # a property or a method, say
            raise _Unknown
        return _plain(of(self, "_held")[name], of(self, "_trace"))


def _plain(value: Any, trace: _Trace) -> Any:
    """An attribute's value as the code may see it."""
    if type(value) in _VALUES:
        return value
    if type(value) in (list, tuple):
        return tuple(_plain(part, trace) for part in value)
    if type(value) is dict:
        return types.MappingProxyType({_text(key): _plain(part, trace) for key, part in value.items()})
    return _Call(trace, value) if callable(value) else _refuse()


def _text(key: Any) -> str:
    return key if type(key) is str else _refuse()


class _Trace:
    """The images that were made, and of what."""

    def __init__(self) -> None:
        self._images: dict[int, tuple[_Image, list[Any]]] = {}  # by id: an image, and the transforms that made it in turn
        self._used: set[int] = set()  # of images that were given to a further transform
        self._joined: dict[tuple[int, ...], Any] = {}  # by the ids of transforms in turn: one for alike views

    def made_of(self, image: Any, transform: Any) -> _Image:
        if type(image) is not _Image or len(self._images) >= _MOST * 4 or id(image) in self._used:
            raise _Unknown
        _, before = self._images.get(id(image), (image, []))
        if before:
            self._used.add(id(image))
        result = _Image()
        self._images[id(result)] = result, [*before, transform]
        return result

    def views(self, result: Any) -> ViewTransforms | None:
        """Return the views in their order in the result of the object's code; None if it is not made of them alone."""
        places: dict[int, int] = {}  # by id: the number of a view
        gathered = self._form(result, places)
        if type(gathered) is not Held or not 0 < len(places) <= _MOST or places.keys() != self._images.keys() - self._used:
            return None
        transforms = tuple(self._transform(self._images[place][1]) for place in places)
        flat = gathered.kind is not dict and gathered.parts == tuple(range(len(places)))
        return ViewTransforms(transforms, gathered.kind if flat else gathered)

    def _form(self, part: Any, places: dict[int, int]) -> Any:
        kind = type(part)
        if kind is _Image:
            if id(part) not in self._images or id(part) in self._used:
                raise _Unknown
            return places.setdefault(id(part), len(places))
        if kind is dict:
            return Held(dict, tuple(map(_text, part)), tuple(self._form(value, places) for value in part.values()))
        if kind in (list, tuple):
            return Held(kind, (), tuple(self._form(value, places) for value in part))
        return Value(kind, part) if kind in _VALUES else _refuse()

    def _transform(self, steps: list[Any]) -> Any:
        return steps[0] if len(steps) == 1 else self._joined.setdefault(tuple(map(id, steps)), Compose(steps))
