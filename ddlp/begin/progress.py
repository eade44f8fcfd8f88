"""`Progress`: where a loader is: the number of its next epoch, and the point at which that one goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from ddlp.epoch.iterator import EpochMemory
from ddlp.sampling import checkpoint as resuming
from ddlp.sampling.merged import rest_of
from ddlp.sources.host import stateful_workers as stateful
from ddlp.sources.host.memories import UserCodeMemory

__all__ = ["Memory", "Progress", "stays"]

Memory = EpochMemory | UserCodeMemory
"""The part of its last epoch that a loader keeps: its numbers and its state outlive the iterator."""


class Progress:
    """Where a loader is.

    Attributes:
        epoch: the number of the next epoch.
        resume: where it goes on; by default it begins.
        rest: the index sampler for what a merged state has left of an epoch, while that epoch begins.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.resume = resuming.Resume()
        self.rest: Any = None
        self._loaded: dict[str, Any] | None = None  # the state that was loaded, until an epoch begins with it
        self._cut: dict[str, Any] = {}  # how the last epoch was cut into batches
        self._dealt: dict[str, Any] = {}  # how it was dealt out to ranks

    @property
    def merged(self) -> bool:
        """Whether the next epoch's order, or the last one's, is what a merged state has left."""
        return self.resume.deals is not None or "merged" in self._dealt

    @contextlib.contextmanager
    def going_on(self, resume: resuming.Resume, index_sampler: Any) -> Iterator[None]:
        """Put what is left of the epoch in the place of the sampler, if the state was merged from several ranks'."""
        if resume.deals is not None:
            self.rest = rest_of(resume.deals, index_sampler)
        try:
            yield
        finally:
            self.rest = None

    def begins(self, loader: DataLoader) -> resuming.Resume:
        """Return where the epoch that begins goes on. The loader's generators and data set get the states of that point."""
        if self.resume.seed is None and not stays(loader):  # no epoch has begun: it draws a base seed of its own
            self.resume = replace(self.resume, base_seed=None)
        stateful.load_here(loader, self.resume)
        self.resume = resuming.drawn_on(loader, self.resume)
        return self.resume

    def began(self, loader: DataLoader, cut: dict[str, Any]) -> None:
        """Note that the epoch has begun. ``cut``: into these batches."""
        resume, self.resume, self._loaded, self._cut = self.resume, resuming.Resume(), None, cut
        self.epoch += 1
        self._dealt = resuming.dealt(loader, resume)

    def set_epoch(self, loader: DataLoader, epoch: int) -> None:
        """Set the number of the next epoch, and pass it on."""
        if self._loaded is not None and epoch != self.epoch and not self.resume.partly:
            # The loaded state is another epoch's. Only the states of data sets that go on from epoch to epoch still count.
            base_seed = self.resume.base_seed if stays(loader) else None
            workers = stateful.kept(loader, self.resume)
            self._loaded = resuming.between(epoch, workers, self.resume.sampler, base_seed)
            self.resume, _ = resuming.load(self._loaded)
        self.epoch = epoch
        resuming.set_epoch(loader, epoch)
        dataset: Any = loader.dataset
        if callable(getattr(dataset, "set_epoch", None)):  # by this number Hugging Face's streams shuffle anew
            dataset.set_epoch(epoch)

    def state(self, loader: DataLoader, last: Memory | None, base_seed: int | None, by_count: bool) -> dict[str, Any]:
        """Return the loader's state.

        Args:
            loader: the loader.
            last: its last epoch's memory.
            base_seed: of workers that stay; None: none do.
            by_count: the caller counts batches, and takes the epoch for over once it has all.
        """
        if self._loaded is not None:
            return {**self._loaded, "epoch": self.epoch}
        state = None if last is None else last.state(by_count)
        if state is None:
            workers = None if last is None else last.between()
            state = resuming.between(self.epoch, workers, resuming.sampler_state(loader), base_seed)
            return {**state, "generators": resuming.next_draws(loader)}
        generators = resuming.next_draws(loader, order_drawn=state["order"] is not None)
        return {**state, "generators": generators, "cut": self._cut, **self._dealt}

    def load(self, loader: DataLoader, index_sampler: Any, state: dict[str, Any], resume: resuming.Resume, epoch: int) -> None:
        """Have the next epoch go on at ``resume``, which comes of ``state``.

        Raises ValueError if it does not fit the loader.
        """
        with self.going_on(resume, index_sampler):
            resume.check(resuming.cut(loader))
        stateful.check_workers(loader, resume)
        if resume.generators:
            resume = replace(resume, at_load=resuming.next_draws(loader, "torch" not in resume.generators))
        self.resume, self.epoch, self._loaded = resume, epoch, state


def stays(loader: DataLoader) -> bool:
    """Whether workers are the same from epoch to epoch. DataLoader then draws its base seed once."""
    return loader.persistent_workers and loader.num_workers > 0
