"""Makes torch's DataLoader give ours, from an interpreter's start on.

This module does not import torch: a script may set variables that torch reads at its import, and many processes never import
it.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ddlp.swap.settings import say, settings

__all__ = ["wait_for_torch"]

_MODULE = "torch.utils.data.dataloader"


def wait_for_torch() -> None:
    """Swap as soon as torch's loader is imported."""
    sys.meta_path.insert(0, _Watch())
    atexit.register(_at_end)


def _at_end() -> None:
    told = sys.modules.get("ddlp.swap.told")
    if told is not None and told.PLACES:
        told.tell_gains()
    elif settings().fill:
        if os.getpid() == settings().pid and "ddlp.swap.first_use" not in sys.modules:
            say("nothing is filled: no DDLPLoader with cache= was made")
    elif os.getpid() == settings().pid:
        say("no DataLoader was used in this process (processes that it has started tell of theirs)")


class _Watch(MetaPathFinder):
    """The first finder that Python asks for each module. It changes how torch's loader is loaded, and removes itself."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                (_note if settings().fill else _swap)(module.DataLoader)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _swap(torchs: Any) -> None:
    """Make ``torchs``, torch's class, give a `SwappedLoader`, which is a subclass of it.

    The class object stays the same wherever it was imported to: isinstance, subclasses, annotations and pickles see no
    difference. Subclasses are left alone, since they may change anything.
    """

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:  # else it is copied or unpickled
            cls = _class_for(cls, torchs, args, kwargs)
        return object.__new__(cls)

    torchs.__new__ = staticmethod(new)


def _note(torchs: Any) -> None:
    """Have each `DDLPLoader` noted when it is made, for `ddlp cache fill`. Nothing is swapped."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        ours = sys.modules.get("ddlp.loader")
        if ours is not None and isinstance(made, ours.DDLPLoader) and (args or kwargs):
            from ddlp.swap import first_use

            first_use.note(made)
        return made

    torchs.__new__ = staticmethod(new)


def _class_for(wanted: Any, torchs: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if sys.modules["torch.utils.data"].get_worker_info() is not None:  # within a worker of another loader
        return wanted
    try:
        from ddlp.loader import DDLPLoader
        from ddlp.swap import told
        from ddlp.swap.loader import SwappedLoader
    except ImportError as error:
        _say_once(f"no DataLoader is swapped: ddlp can't be used here: {error}. Install what is missing.")
        return wanted
    if wanted is torchs:
        return SwappedLoader
    if not issubclass(wanted, DDLPLoader):
        told.left_alone(wanted, args[0] if args else kwargs.get("dataset"))
    return wanted


_say_once = functools.cache(say)
