"""`SwappedLoader`: what `DataLoader(...)` gives in a script that `ddlp run` runs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from csd_engine.transforms.prefix import draw_nothing
from ddlp.begin.travel import Travel
from ddlp.config import LoaderConfig
from ddlp.epoch.iterator import EpochIterator
from ddlp.errors import Untranslatable
from ddlp.loader import DDLPLoader
from ddlp.recording.dataloader import measured_epoch
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.schedule.strategies import DATALOADER, Order, Ordered, strategy_class
from ddlp.swap.comparison import BATCHES, compare
from ddlp.swap.lines import late, made_at
from ddlp.swap.places import Place, place_of
from ddlp.swap.settings import settings
from ddlp.translate.portable import Portable, own_collate
from ddlp.translate.transforms import names_of

__all__ = ["SwappedLoader"]


class _Travel(Travel):
    """Warns of nothing: `SwappedLoader` says for each loader what happens. ``why``: the last samples could not travel."""

    why: Untranslatable

    def now(self, loader: DataLoader, config: LoaderConfig, compare: bool = True) -> Portable | None:
        """Return the parts that can travel, as the data set is now; None if torch's own workers prepare it."""
        try:
            portable = self.translated(loader, config)
            portable = self.as_described(portable) if compare else portable
        except Untranslatable as error:
            self.why = error
            return None
        if settings().only_exact and (changes := _changes(portable, loader)):
            self.why = Untranslatable("--only-exact", f"where it is swapped, {changes}", ())
            return None
        return portable


class SwappedLoader(DDLPLoader):
    """A `DDLPLoader` if ddlp can prepare the samples, up to the user's own steps at least; otherwise torch's own DataLoader.

    Each iter() decides this anew, since scripts may set ``dataset.transform`` later. Under ``--strategy dataloader`` it is
    torch's own in any case.
    """

    _is_accelerate_prepared = False  # so that accelerate wraps ours: it shares samples and moves batches
    _travel_type = _Travel
    _travel: _Travel

    @functools.wraps(DDLPLoader.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._made_at = made_at()
        super().__init__(*args, **{"csd": settings().csd or None, "record": settings().record, **kwargs})

    def _config(self) -> LoaderConfig:
        config, name = super()._config(), settings().strategy
        if name in (None, DATALOADER) or config.strategy is not None:
            return config
        given = strategy_class(name)
        free = config.order_is_free() and (not given.needs_length or is_built_in(self._index_sampler))
        return replace(config, strategy=given if free or given.order is Order.SAMPLER else Ordered)

    def _begin(self, kept: Any) -> Any:
        config, place = self._config(), place_of(self, self._made_at)
        if settings().strategy == DATALOADER:
            place.say("measured, dataloader: torch's own, as it is")
            return self._as_torchs(kept, place)
        if (portable := self._travel.now(self, config)) is None:
            why = self._travel.why
            place.say(f"left alone: {why.operator}: {why.why}{late()}")
            return self._as_torchs(kept, place)
        changes = _changes(portable, self)
        strategy, given = config.chosen, settings().strategy
        instead = "" if given in (None, strategy.name) else f" ({given} would change the order)"
        first = f"; timing DataLoader's own workers first, on {BATCHES} batches" if settings().compare else ""
        place.say(f"swapped, {strategy.name}: {strategy.line}{instead}{changes and f'; {changes}'}{first}")
        if place.compared is None:
            place.compared = compare(self) if settings().compare else "--no-compare"
        iterator = super()._begin(kept)
        place.count(iterator, self._parts.life.last)
        return iterator

    def _as_torchs(self, kept: Any, place: Place) -> Any:
        """Begin an epoch of torch's own DataLoader. It is measured if that is wanted."""
        if isinstance(kept, EpochIterator):
            kept = None
        if settings().strategy == DATALOADER or self.record is not None:
            iterator = measured_epoch(self, self._parts.life, self.record, kept)
            place.count(iterator, self._parts.life.last)
            return iterator
        if kept is None:
            return DataLoader._get_iterator(self)
        kept._reset(self)
        return kept


def _changes(portable: Portable, loader: DataLoader) -> str:
    """Return what is not to the bit as with DataLoader, in words: which random numbers are others; "" if none are."""
    parts = [] if draw_nothing(portable.pipeline.operators) else ["random crops, flips and colours are drawn by ddlp"]
    if portable.rest is not None:
        steps = dict.fromkeys(names_of(view[:1])[0] for view in portable.rest.views if view)
        own = f"what stands from {' or '.join(steps)} on" if steps else ""
        if not steps and own_collate(loader) is not None:
            own = f"the collate_fn {getattr(loader.collate_fn, '__name__', type(loader.collate_fn).__name__)}"
        if own:
            parts.append(f"{own} runs as it is, with random numbers of a seed for each sample")
    return ", ".join(parts)
