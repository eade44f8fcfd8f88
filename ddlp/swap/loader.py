"""`SwappedLoader`: what `DataLoader(...)` gives in a script that `ddlp run` runs."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader

from csd_engine.transforms.prefix import draw_nothing
from ddlp.config import LoaderConfig
from ddlp.epoch.iterator import EpochIterator
from ddlp.errors import Untranslatable
from ddlp.loader import DDLPLoader
from ddlp.recording.dataloader import measured_epoch
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.schedule.strategies import DATALOADER, Order, Ordered, Strategy, strategy_class
from ddlp.swap.comparison import BATCHES, compare
from ddlp.swap.lines import late, made_at
from ddlp.swap.settings import settings
from ddlp.swap.told import Place, place_of
from ddlp.translate.portable import Portable, own_collate
from ddlp.translate.transforms import names_of

__all__ = ["SwappedLoader"]


class SwappedLoader(DDLPLoader):
    """A `DDLPLoader` if ddlp can prepare the samples, up to the user's own steps at least; otherwise torch's own DataLoader.

    Each iter() decides this anew, since scripts may set ``dataset.transform`` later. Under ``--strategy dataloader`` it is
    torch's own in any case.
    """

    _is_accelerate_prepared = False  # so that accelerate wraps ours: it shares samples and moves batches
    _why: Untranslatable

    @functools.wraps(DDLPLoader.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._made_at = made_at()
        super().__init__(*args, **{"csd": settings().csd or None, "record": settings().record, **kwargs})

    def _wanted_strategy(self, config: LoaderConfig) -> type[Strategy]:
        name = settings().strategy
        if name in (None, DATALOADER) or config.strategy is not None:
            return super()._wanted_strategy(config)
        given = strategy_class(name)
        free = self._order_is_free() and (not given.needs_length or is_built_in(self._index_sampler))
        return given if free or given.order is Order.SAMPLER else Ordered

    def _portable_now(self, config: LoaderConfig, compare: bool = True) -> Portable | None:
        try:
            found = self._translated(config)
            found = self._as_described(found) if compare else found
        except Untranslatable as error:
            self._why = error
            return None
        if settings().only_exact and (changes := _changes(found, self)):
            self._why = Untranslatable("--only-exact", f"where it is swapped, {changes}", ())
            return None
        return found

    def _begin(self, kept: Any) -> Any:
        config, place = LoaderConfig.of(self), place_of(self, self._made_at)
        if settings().strategy == DATALOADER:
            place.say("measured, dataloader: torch's own, as it is")
            return self._as_torchs(kept, place)
        if (found := self._portable_now(config)) is None:
            place.say(f"left alone: {self._why.operator}: {self._why.why}{late()}")
            return self._as_torchs(kept, place)
        changes = _changes(found, self)
        strategy, given = self._wanted_strategy(config), settings().strategy
        instead = "" if given in (None, strategy.name) else f" ({given} would change the order)"
        first = f"; timing DataLoader's own workers first, on {BATCHES} batches" if settings().compare else ""
        place.say(f"swapped, {strategy.name}: {strategy.line}{instead}{changes and f'; {changes}'}{first}")
        if place.compared is None:
            place.compared = compare(self) if settings().compare else "--no-compare"
        iterator = super()._begin(kept)
        place.count(iterator, self._life.last)
        return iterator

    def _as_torchs(self, kept: Any, place: Place) -> Any:
        """Begin an epoch of torch's own DataLoader. It is measured if that is wanted."""
        if isinstance(kept, EpochIterator):
            kept = None
        if settings().strategy == DATALOADER or self.record is not None:
            iterator = measured_epoch(self, self.record, kept)
            place.count(iterator, self._life.last)
            return iterator
        if kept is None:
            return DataLoader._get_iterator(self)
        kept._reset(self)
        return kept


def _changes(found: Portable, loader: SwappedLoader) -> str:
    """Return what is not to the bit as with DataLoader, in words: which random numbers are others; "" if none are."""
    parts = [] if draw_nothing(found.pipeline.operators) else ["random crops, flips and colours are drawn by ddlp"]
    if found.rest is not None:
        steps = dict.fromkeys(names_of(view[:1])[0] for view in found.rest.views if view)
        own = f"what stands from {' or '.join(steps)} on" if steps else ""
        if not steps and own_collate(loader) is not None:
            own = f"the collate_fn {getattr(loader.collate_fn, '__name__', type(loader.collate_fn).__name__)}"
        if own:
            parts.append(f"{own} runs as it is, with random numbers of a seed for each sample")
    return ", ".join(parts)
