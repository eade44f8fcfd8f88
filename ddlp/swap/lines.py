"""The script's places and what is said of them. This module imports neither torch nor a loader: many scripts need no more."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from types import FrameType
from typing import Any

from ddlp.process.ranks import here
from ddlp.process.user_warnings import user_frame
from ddlp.swap.settings import say, settings

__all__ = ["SAID", "late", "left_alone", "made_at", "may_be_known", "say_of_first_rank", "unknown", "what_would_help"]

# How the paths of Python's own code and of commands that pip has installed begin.
_PYTHONS = os.path.join(os.path.dirname(os.__file__), ""), os.path.join(sys.prefix, "bin", ""), "<frozen "
_KNOWN = ("ddlp", "timm", "torchvision")  # packages with data sets that ddlp knows
SAID: set[str] = set()  # the lines of this process
_OWN: set[str] = set()  # the classes of the script's own data sets, by name
_ALONE: weakref.WeakValueDictionary[tuple[int, str], Any] = weakref.WeakValueDictionary()  # data sets, by id and what was said
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=SAID.clear)
    os.register_at_fork(after_in_child=_ALONE.clear)


def made_at() -> str:
    """Return the line at which the script is now, as FILE:LINE; an installed package's only where no other is known."""
    frame, _ = user_frame()
    caller: FrameType | None = frame
    while caller is not None and _installed(caller.f_code.co_filename):
        caller = caller.f_back
    frame = caller or frame
    path = os.path.relpath(frame.f_code.co_filename)
    if path.startswith(os.pardir):
        path = os.path.join(*frame.f_code.co_filename.split(os.sep)[-2:])
    return f"{path}:{frame.f_lineno}"


def _installed(path: str) -> bool:
    """Whether the code of this file is not the user's own, as far as its path tells."""
    return path.startswith(_PYTHONS) or any(f"{os.sep}{name}{os.sep}" in path for name in ("site-packages", "dist-packages"))


def say_of_first_rank(text: str) -> None:
    """Print one line, with the rank where there are several; nothing in other ranks than the first."""
    ranks = here()
    if ranks is None or ranks.rank == 0:
        say(text if ranks is None else f"rank 0 of {ranks.ranks}: {text}")


def late() -> str:
    """Return what ddlp does for a loader that is left alone, as the end of a line."""
    return "; JPEGs that it opens by Pillow are decoded late" if settings().postpone else ""


def unknown(dataset: Any) -> str:
    """Return why a loader is left alone whose data set ddlp does not know, with what to write instead where that is known."""
    kind, instead = type(dataset), ""
    if kind.__module__.partition(".")[0] == "datasets":
        columns = (getattr(dataset, "features", None) or {}).items()
        image = next((name for name, feature in columns if type(feature).__name__ == "Image"), None)
        if image is not None:
            instead = f"; ddlp.HuggingFaceImages(dataset, transform, {image!r}) in its place would be swapped"
    elif not hasattr(kind, "__iter__"):
        _OWN.add(kind.__name__)
    return f"{kind.__name__}'s own code makes its samples{instead}"


def what_would_help() -> str:
    """Return what the script's own data sets could tell, where they have JPEGs; "" where there are none."""
    names = " or ".join(sorted(_OWN))
    return f". A {names} that names its files by a method __ddlp__ would be swapped (docs/settings.md)" if names else ""


def left_alone(kind: str, dataset: Any, why: str) -> None:
    """Say, once for each place, that a loader is made there which stays as it is.

    A second loader of the same data set gets no line: accelerate and others make theirs around the script's.
    """
    words = f"{kind}({type(dataset).__name__}): left alone: {why}{late()}"
    if _ALONE.get((id(dataset), words)) is dataset is not None:
        return
    with contextlib.suppress(TypeError):  # a list, say
        _ALONE[id(dataset), words] = dataset
    text = f"{made_at()} {words}"
    if text not in SAID:
        SAID.add(text)
        say_of_first_rank(text)


def may_be_known(dataset: Any) -> bool:
    """Whether ddlp may know how this data set makes its samples, by the packages of its classes alone."""
    kind = type(dataset)
    if kind.__module__ == "torch.utils.data.dataset" and kind.__name__ in ("Subset", "ConcatDataset"):
        parts = [dataset.dataset] if kind.__name__ == "Subset" else dataset.datasets
        return all(map(may_be_known, parts))
    return hasattr(kind, "__ddlp__") or any(base.__module__.partition(".")[0] in _KNOWN for base in kind.__mro__)
