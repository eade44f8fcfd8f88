"""Makes torch's DataLoader give ours, and Pillow postponed JPEGs, from an interpreter's start on.

This module imports neither torch nor Pillow: a script may set variables that torch reads at its import, and many processes
never import them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ddlp.swap import lines
from ddlp.swap.settings import say, settings

__all__ = ["wait"]


def wait() -> None:
    """Swap as soon as torch's loader is imported, and postpone as soon as Pillow's plugin for JPEGs is."""
    changes: dict[str, Callable[[Any], None]] = {"torch.utils.data.dataloader": _note if settings().fill else _swap}
    if settings().postpone:
        changes["PIL.JpegImagePlugin"] = _postpone
    sys.meta_path.insert(0, _Watch(changes))
    atexit.register(_at_end)


def _at_end() -> None:
    module = sys.modules.get("ddlp.swap.places")
    postponed = _tell_postponed()
    if module is not None and module.PLACES:
        module.print_gains()
    elif postponed or lines.SAID:
        pass
    elif settings().fill:
        if os.getpid() == settings().pid and "ddlp.swap.first_use" not in sys.modules:
            say("nothing is filled: no DDLPLoader with cache= was made")
    elif os.getpid() == settings().pid:
        say("no DataLoader was used in this process (processes that it has started tell of theirs)")


def _tell_postponed() -> bool:
    """Tell how many images all processes have decoded late, if this is the process that tells. True if there was one."""
    processes = sys.modules.get("multiprocessing")
    is_child = processes is not None and processes.parent_process() is not None
    if settings().pid not in (0, os.getpid()) or is_child or not settings().counts:
        return False
    with contextlib.suppress(OSError):  # the process has ended that the file was in
        if not os.path.getsize(settings().counts):
            return False
    from ddlp import decode
    from ddlp.process.ranks import here

    ranks, savings = here(), decode.total(settings().counts)
    if not savings.images or (ranks is not None and ranks.rank):
        return False
    say(f"{savings}{lines.what_would_help()}")
    return True


class _Watch(MetaPathFinder):
    """The first finder that Python asks for each module. It changes some modules when they are loaded, then removes itself.

    Args:
        changes: what to do with a module once it is loaded, by its name.
    """

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        if not self._changes:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _postpone(plugin: Any) -> None:
    """Have Pillow give postponed images from the process's first JPEG on: until then this costs nothing."""
    opened = plugin.Image.OPEN["JPEG"]

    def first(*arguments: Any) -> Any:
        plugin.Image.OPEN["JPEG"] = opened
        _begin_postponing()
        return plugin.Image.OPEN["JPEG"][0](*arguments)

    first.pillows = opened  # type: ignore[attr-defined]
    plugin.Image.OPEN["JPEG"] = (first, opened[1])


def _begin_postponing() -> None:
    from ddlp import decode

    if settings().postpone and not decode.installed() and decode.install() and settings().counts:
        decode.count_in(settings().counts)


def _swap(module: Any) -> None:
    """Make torch's class give a `SwappedLoader`, which is a subclass of it.

    The class object stays the same wherever it was imported to: isinstance, subclasses, annotations and pickles see no
    difference. Subclasses are left alone, since they may change anything.
    """
    torchs = module.DataLoader

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:  # else it is copied or unpickled
            cls = _class_for(cls, torchs, args, kwargs)
        return object.__new__(cls)

    torchs.__new__ = staticmethod(new)


def _note(module: Any) -> None:
    """Have each `DDLPLoader` noted when it is made, for `ddlp cache fill`. Nothing is swapped."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        instance = object.__new__(cls)
        ours = sys.modules.get("ddlp.loader")
        if ours is not None and isinstance(instance, ours.DDLPLoader) and (args or kwargs):
            from ddlp.swap import first_use

            first_use.note(instance)
        return instance

    module.DataLoader.__new__ = staticmethod(new)


def _class_for(wanted: Any, torchs: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the class of the loader that is being made.

    Where it is left alone nothing of ddlp's loader is imported: that takes a second, and more where torchvision is not there.
    """
    if sys.modules["torch.utils.data"].get_worker_info() is not None:  # within a worker of another loader
        return wanted
    dataset = args[0] if args else kwargs.get("dataset")
    ours = sys.modules.get("ddlp.loader")
    if ours is not None and issubclass(wanted, ours.DDLPLoader):
        _begin_postponing()
        return wanted
    why = _why_alone(wanted, torchs, dataset)
    if why:
        lines.left_alone(wanted.__name__, dataset, why)
        if "PIL.Image" in sys.modules and kwargs.get("num_workers"):
            _begin_postponing()  # here, and not in each worker
        return wanted
    try:
        from ddlp.swap.loader import SwappedLoader
    except ImportError as error:
        _say_once(f"no DataLoader is swapped: ddlp can't be used here: {error}. Install what is missing.")
        return wanted
    _begin_postponing()
    return SwappedLoader


def _why_alone(wanted: Any, torchs: Any, dataset: Any) -> str:
    """Return why a loader is left alone, as far as that can be seen at once; "": it is not."""
    if wanted is not torchs:
        return f"{wanted.__name__} is a subclass of DataLoader, with code of its own"
    if settings().record or settings().strategy == "dataloader" or lines.may_be_known(dataset):
        return ""
    return lines.unknown(dataset)


_say_once = functools.cache(say)
