"""The metadata of a file (EXIF and the like), for images whose pixels the kernel has made.

Pillow keeps them in an image's `info`, from which `getexif()` reads too, and passes them on from step to step. Reading a header
with Pillow takes a tenth of a sample's time, and functions that work on arrays never need it. So the header is read only when
something asks for it. Pillow's own steps do ask: since Pillow 13 they copy the items of the image from which they start.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

__all__ = ["FileInfo", "Header"]


class Header:
    """A file's header, read at most once. It can be read while its sample is made, until `close`.

    Args:
        read: returns what Pillow keeps in an opened image's `info`.
    """

    def __init__(self, read: Callable[[], Dict[Any, Any]]) -> None:
        self._read: Optional[Callable[[], Dict[Any, Any]]] = read
        self._content: Optional[Dict[Any, Any]] = None

    def info(self) -> Dict[Any, Any]:
        """The header's content. RuntimeError after `close`, unless it was read before."""
        if self._content is None:
            if self._read is None:
                raise RuntimeError("info and getexif() of an operator's image were asked for after the operator had returned")
            self._content = self._read()
        return self._content

    def close(self) -> None:
        """End the reading: the sample is made, and the buffer may hold another file's bytes from now on."""
        self._read = None


class FileInfo(dict):
    """An image's `info`, which is filled at the first access. `copy`, by which older Pillow passes it on, is no access."""

    def __init__(self, header: Header) -> None:
        super().__init__()
        self._header: Optional[Header] = header

    def copy(self) -> Dict[Any, Any]:
        """Return a new dict with the same content."""
        return dict(self) if self._header is None else FileInfo(self._header)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def _fill(self) -> None:
        header = self._header
        if header is not None:
            content = header.info()
            self._header = None
            for key, value in content.items():
                dict.__setitem__(self, key, value)


def _looking(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(dict, name)

    def method(self: FileInfo, *arguments: Any, **named: Any) -> Any:
        self._fill()
        return plain(self, *arguments, **named)

    method.__name__, method.__doc__ = name, plain.__doc__
    return method


for _name in (
    "__contains__", "__delitem__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__repr__", "__reversed__",
    "__setitem__", "clear", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values",
    "__or__", "__ior__", "__ror__",
):  # fmt: skip
    if hasattr(dict, _name):  # Python 3.8 has no | of dicts
        setattr(FileInfo, _name, _looking(_name))
