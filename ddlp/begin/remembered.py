"""Where `auto` keeps what it measures of a loader, for the next run of the same: `ddlp.auto.store`, by the loader's parts."""

from __future__ import annotations

import re
from typing import Any

from torch.utils.data import DataLoader

from csd_engine.machine.computer import cpu_model, processors
from ddlp.auto.store import Stored
from ddlp.config import LoaderConfig
from ddlp.process.ranks import here
from ddlp.process.version import __version__
from ddlp.translate.portable import Portable

__all__ = ["devices_of", "workers_of"]


def devices_of(loader: DataLoader, config: LoaderConfig, portable: Portable, model: str) -> Stored:
    """Return where a loader keeps what ``strategy="auto"`` measures. ``model``: a name of what is trained; empty: none."""
    sources = [(device.label, device.address) for device in config.engine_devices]
    sources += [(source.name, type(source).__qualname__) for source in config.own_sources]
    sources += [] if config.pool is None else [("pool", repr(config.pool))]
    return Stored({
        **_parts(loader, config, portable), "of": "devices", "model": model, "sources": sorted(sources),
        "settings": [loader.num_workers, loader.prefetch_factor, config.backend, config.transfer],
    })  # fmt: skip


def workers_of(loader: DataLoader, config: LoaderConfig, portable: Portable | None) -> Stored:
    """Return where a loader keeps its number of workers."""
    settings = [config.postpone_decoding, loader.pin_memory]
    return Stored({**_parts(loader, config, portable), "of": "workers", "settings": settings})


def _parts(loader: DataLoader, config: LoaderConfig, portable: Portable | None) -> dict[str, Any]:
    """What counts in any case. ``portable``: None for user code, of which only the names are known."""
    dataset: Any = loader.dataset
    samples: list[Any]
    pipeline: list[Any]
    if portable is None:
        samples = [type(dataset).__module__, type(dataset).__qualname__, len(dataset)]
        pipeline = [_written(getattr(dataset, name, None)) for name in ("transform", "transforms", "target_transform")]
    else:
        samples = [[part.name for part in portable.dataset.parts], len(portable.dataset), repr(portable.dataset.some_places())]
        pipeline = [portable.pipeline.to_data(), str(portable.epilogue.dtype), portable.views, portable.rest is None]
    ranks = here()
    return {
        "ddlp": __version__, "samples": samples, "pipeline": [*pipeline, config.decode, config.own_steps],
        "batch_size": loader.batch_size, "processors": round(float(processors()), 2), "cpu": cpu_model(),
        "ranks": 1 if ranks is None else ranks.local_ranks, "accelerator": str(config.target or ""),
    }  # fmt: skip


def _written(thing: Any) -> str:
    """Return how an object writes itself, without addresses in memory."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
    except Exception:  # the user's own __repr__
        return type(thing).__qualname__
