"""The script's places and what is said of them. This module imports neither torch nor a loader: many scripts need no more."""

from __future__ import annotations

import os
from typing import Any

from ddlp.process.ranks import here
from ddlp.process.user_warnings import user_frame
from ddlp.swap.settings import say, settings

__all__ = ["SAID", "late", "left_alone", "made_at", "may_be_known", "say_of_first_rank"]

_KNOWN = ("ddlp", "timm", "torchvision")  # packages with data sets that ddlp knows
SAID: set[str] = set()  # the lines of this process
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=SAID.clear)


def made_at() -> str:
    """Return the line at which the script is now, as FILE:LINE."""
    frame, _ = user_frame()
    path = os.path.relpath(frame.f_code.co_filename)
    if path.startswith(os.pardir):
        path = os.path.join(*frame.f_code.co_filename.split(os.sep)[-2:])
    return f"{path}:{frame.f_lineno}"


def say_of_first_rank(text: str) -> None:
    """Print one line, with the rank where there are several; nothing in other ranks than the first."""
    ranks = here()
    if ranks is None or ranks.rank == 0:
        say(text if ranks is None else f"rank 0 of {ranks.ranks}: {text}")


def late() -> str:
    """Return what ddlp does for a loader that is left alone, as the end of a line."""
    return "; JPEGs that it opens by Pillow are decoded late" if settings().postpone else ""


def left_alone(kind: str, dataset: Any, why: str) -> None:
    """Say, once for each place, that a loader is made there which stays as it is."""
    text = f"{made_at()} {kind}({type(dataset).__name__}): left alone: {why}{late()}"
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
