"""ddlp: a drop-in for PyTorch's DataLoader that prepares each epoch from both ends.

The host's CPU works from the head of the epoch. An engine on a computer next to the data works from its tail.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ddlp.process.version import __version__ as __version__

if TYPE_CHECKING:
    from ddlp.auto.decide import Goal, Power, Prices
    from ddlp.caching.settings import Cache
    from ddlp.data.huggingface import HuggingFaceImages
    from ddlp.data.images import ImageArrays, ImageFiles
    from ddlp.data.objects.dataset import ImageObjects
    from ddlp.data.objects.tars import TarObjects
    from ddlp.data.tars import TarImages
    from ddlp.devices.device import Device
    from ddlp.errors import DDLPError, Untranslatable
    from ddlp.evaluation import Evaluated, Evaluation
    from ddlp.loader import DDLPLoader
    from ddlp.pools.cards import CardPool
    from ddlp.pools.local import LocalPool
    from ddlp.pools.on_ray import RayPool
    from ddlp.sampling.merge_states import merge_states
    from ddlp.stats.report import EpochReport
    from ddlp.transforms import CachePoint
    from ddlp.translate.user_operators import load_operators

__all__ = [
    "Cache",
    "CachePoint",
    "CardPool",
    "DDLPError",
    "DDLPLoader",
    "Device",
    "EpochReport",
    "Evaluated",
    "Evaluation",
    "Goal",
    "HuggingFaceImages",
    "ImageArrays",
    "ImageFiles",
    "ImageObjects",
    "LocalPool",
    "Power",
    "Prices",
    "RayPool",
    "TarImages",
    "TarObjects",
    "Untranslatable",
    "load_operators",
    "merge_states",
]

_WHERE = {
    "Cache": "ddlp.caching.settings",
    "CachePoint": "ddlp.transforms",
    "CardPool": "ddlp.pools.cards",
    "DDLPError": "ddlp.errors",
    "DDLPLoader": "ddlp.loader",
    "Device": "ddlp.devices.device",
    "EpochReport": "ddlp.stats.report",
    "Evaluated": "ddlp.evaluation",
    "Evaluation": "ddlp.evaluation",
    "Goal": "ddlp.auto.decide",
    "HuggingFaceImages": "ddlp.data.huggingface",
    "ImageArrays": "ddlp.data.images",
    "ImageFiles": "ddlp.data.images",
    "ImageObjects": "ddlp.data.objects.dataset",
    "LocalPool": "ddlp.pools.local",
    "Power": "ddlp.auto.decide",
    "Prices": "ddlp.auto.decide",
    "RayPool": "ddlp.pools.on_ray",
    "TarImages": "ddlp.data.tars",
    "TarObjects": "ddlp.data.objects.tars",
    "Untranslatable": "ddlp.errors",
    "load_operators": "ddlp.translate.user_operators",
    "merge_states": "ddlp.sampling.merge_states",
}
_MODULES = ("decode", "observe", "transforms")


def __getattr__(name: str) -> Any:
    """Import a public name or module at its first use: torch takes seconds to import, and `ddlp status` does not need it."""
    if name in _MODULES:
        return importlib.import_module(f"ddlp.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'ddlp' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    if name == "DDLPLoader":
        importlib.import_module("ddlp.sources.host.torch_workers").postpone_in_workers_of_streams()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
