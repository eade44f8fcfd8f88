"""`DDLPLoader.fill_cache`: makes what a loader's cache keeps, without training."""

from __future__ import annotations

from ddlp.begin.loader_view import LoaderView
from ddlp.caching.filling import Filled, fill, fill_kept
from ddlp.errors import DDLPError

__all__ = ["fill_cache"]


def fill_cache(view: LoaderView, progress: bool) -> Filled:
    """Do what `DDLPLoader.fill_cache` says. Raises DDLPError if nothing can be kept."""
    loader, config, parts = view.torch, view.config, view.parts
    if config.cache is False:
        raise DDLPError("fill_cache(): this loader has no cache; give it cache=ddlp.Cache(directory, size) or cache='auto'")
    now = view.travel.now(loader, config)
    if now is None:
        why = parts.keep_samples(loader.dataset, loader.num_workers, config, None, view.travel)
        if parts.kept is not None:
            return fill_kept(parts.kept, loader, view.progress.epoch, progress)
    elif (shelved := parts.cache_for(config, now, loader.num_workers)) is not None:
        return fill(shelved, now, max(1, loader.num_workers), progress)
    else:
        why = "" if parts.cache is None else parts.cache.line
    raise DDLPError(f"fill_cache(): nothing can be kept: {why}. loader.explain() lists what is in the way")
