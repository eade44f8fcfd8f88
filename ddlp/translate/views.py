"""Recognizes transforms that make several views of one sample: ddlp's own Views, and the usual classes that people write."""

from __future__ import annotations

import inspect
import types
from typing import Any, NamedTuple

from ddlp.transforms import Views

__all__ = ["ViewTransforms", "views_of"]

_MOST = 64
_KIND = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class ViewTransforms(NamedTuple):
    """A transform that makes several views: the transform of each, and the type, list or tuple, that holds their results."""

    transforms: tuple[Any, ...]
    gathered: type


class _Alike:
    t: Any
    n: int

    def listed(self, x: Any) -> Any:
        return [self.t(x), self.t(x)]

    def paired(self, x: Any) -> Any:
        return self.t(x), self.t(x)

    def named(self, x: Any) -> Any:
        first = self.t(x)
        second = self.t(x)
        return [first, second]

    def named_pair(self, x: Any) -> Any:
        first = self.t(x)
        second = self.t(x)
        return first, second

    def counted(self, x: Any) -> Any:
        return [self.t(x) for _ in range(self.n)]


class _Unlike:
    t: Any
    u: Any

    def listed(self, x: Any) -> Any:
        return [self.t(x), self.u(x)]

    def paired(self, x: Any) -> Any:
        return self.t(x), self.u(x)

    def named(self, x: Any) -> Any:
        first = self.t(x)
        second = self.u(x)
        return [first, second]

    def named_pair(self, x: Any) -> Any:
        first = self.t(x)
        second = self.u(x)
        return first, second


class _MultiCrop:
    """DINO's DataAugmentationDINO."""

    t: Any
    u: Any
    n: int
    v: Any

    def appended(self, x: Any) -> Any:
        found = []
        found.append(self.t(x))
        found.append(self.u(x))
        for _ in range(self.n):
            found.append(self.v(x))
        return found


class _Several:
    each: Any

    def listed(self, x: Any) -> Any:
        return [one(x) for one in self.each]


_Form = tuple[Any, ...]


def _form(code: types.CodeType) -> _Form:
    """A function's instructions, and those of the functions inside it, without the names of attributes."""
    inner = tuple(_form(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return (code.co_code, code.co_argcount, code.co_kwonlyargcount, code.co_flags & _KIND, len(code.co_names), inner)


def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = (name for one in code.co_consts if isinstance(one, types.CodeType) for name in _names(one))
    return (*code.co_names, *inner)


_FORMS: dict[_Form, tuple[tuple[str, ...], type]] = {
    _form(function.__code__): (_names(function.__code__), tuple if function.__name__ in ("paired", "named_pair") else list)
    for kind in (_Alike, _Unlike, _MultiCrop, _Several)
    for function in vars(kind).values()
    if isinstance(function, types.FunctionType)
}


def views_of(transform: Any) -> ViewTransforms | None:
    """Return the views' transforms, for ddlp's Views or an object whose ``__call__`` has the byte code of a known form.

    The known forms return a list or a pair of results for one image. One or two attributes make them: ``[self.t(x),
    self.t(x)]``, the same with two variables, or ``[self.t(x) for _ in range(self.n)]``. Or each transform in one attribute
    makes one: ``[one(x) for one in self.each]``. Or a list gets those of two attributes, and some of a third one, by
    ``append``, as DINO's own class does. None: the object has none of these forms.
    """
    kind = type(transform)
    if kind is Views:
        return ViewTransforms(tuple(transform.transforms), list)
    call: Any = kind.__call__ if callable(transform) else None
    code = getattr(call, "__code__", None)
    if call is None or code is None or call.__closure__ or (form := _form(code)) not in _FORMS:
        return None
    names, gathered = _FORMS[form]
    found = dict(zip(_names(code), names, strict=True))
    usual: Any = object.__getattribute__
    held: dict[str, Any] = {}
    for name, meant in found.items():
        if meant == "range":
            if name != "range" or "range" in call.__globals__:
                return None
        elif meant == "append":  # of the list that the function has made
            if name != "append":
                return None
        elif kind.__getattribute__ is not usual or hasattr(kind, name) or name not in vars(transform):
            return None
        else:
            held[meant] = vars(transform)[name]
    if "each" in held:
        each = held["each"]
        return ViewTransforms(tuple(each), gathered) if type(each) in (list, tuple) and 0 < len(each) <= _MOST else None
    if "v" in held:
        n = held["n"]
        several = (held["t"], held["u"], *(held["v"],) * n) if type(n) is int and 0 <= n <= _MOST else None
        return None if several is None else ViewTransforms(several, gathered)
    if "n" in held:
        n = held["n"]
        return ViewTransforms((held["t"],) * n, gathered) if type(n) is int and 0 < n <= _MOST else None
    return ViewTransforms((held["t"], held.get("u", held["t"])), gathered)
