"""The state of a loader in mid-epoch: which batches were delivered, and how to make their order again.

The batches of torch's own samplers are drawn again from the generator's state. Any other sampler is run again up to the point
to which it had been read. It runs from the states that torch's, numpy's and random's generators had, and, if it has a
``state_dict``, from its own state. A batch is identified by its position in that order. So a state records how its loader cut
the epoch into batches, and fits only a loader that cuts it in the same way.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from csd_engine.errors import quote
from csd_engine.protocol.schema import Misfit
from ddlp.errors import DDLPError
from ddlp.process.user_warnings import warn_user
from ddlp.sampling.epoch_plan import EpochPlan, is_built_in
from ddlp.sampling.generator_states import States, capture, draw_base_seed, put, restored
from ddlp.sampling.merged import Deals
from ddlp.sampling.sampler_order import default_device
from ddlp.sampling.state_schema import check_state
from ddlp.sampling.torch_loader import OrderSource, index_sampler_of
from ddlp.schedule.ranges import RangeSet
from ddlp.stats.live import length

FORMAT = 2


def is_stateful(thing: Any) -> bool:
    """True for an object with both ``state_dict`` and ``load_state_dict``, as torchdata's ``Stateful`` asks."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def sampler_of(loader: DataLoader | OrderSource) -> Any:
    """Return the sampler of single indices, or the batch sampler if it has none."""
    outer = index_sampler_of(loader)
    batches = getattr(outer, "batch_sampler", outer)  # accelerate's shard has such an attribute
    return getattr(batches, "sampler", batches)


def _with_epochs(loader: DataLoader | OrderSource) -> list[Any]:
    """Return the batch sampler and the sampler within it, if they have ``set_epoch``."""
    outer, inner = index_sampler_of(loader), sampler_of(loader)
    both = [outer] if inner is outer else [outer, inner]
    return [sampler for sampler in both if callable(getattr(sampler, "set_epoch", None))]


def set_epoch(loader: DataLoader | OrderSource, epoch: int) -> None:
    """Call ``set_epoch`` of the batch sampler and of the sampler within it, if they have it."""
    for sampler in _with_epochs(loader):
        sampler.set_epoch(epoch)


def _generators(loader: DataLoader | OrderSource) -> dict[str, torch.Generator]:
    """Return the torch generators that the order may be drawn from. For torch's own samplers that is only the sampler's."""
    own = getattr(sampler_of(loader), "generator", None)
    own = own if isinstance(own, torch.Generator) else torch.default_generator
    if is_built_in(index_sampler_of(loader)):
        return {"sampler": own}
    return {"sampler": own, "loader": loader.generator or torch.default_generator, "torch": torch.default_generator}


def _order_state(loader: DataLoader | OrderSource) -> States:
    """Return the states from which the order that is drawn next can be made again."""
    states = capture(_generators(loader), python=not is_built_in(index_sampler_of(loader)))
    epochs = (getattr(sampler, "epoch", None) for sampler in _with_epochs(loader))
    states["sampler_epoch"] = next((epoch for epoch in epochs if isinstance(epoch, int)), None)
    states["sampler_state"] = sampler_state(loader)
    return states


def _stateful_sampler(loader: DataLoader | OrderSource) -> Any:
    """Return the user's batch sampler, else the sampler within it, if it has a ``state_dict``; None if neither has one."""
    outer = index_sampler_of(loader)
    if is_built_in(outer):
        return None
    return next((sampler for sampler in (outer, sampler_of(loader)) if is_stateful(sampler)), None)


def sampler_state(loader: DataLoader | OrderSource) -> Any:
    """Return the state of the user's sampler; None if it has none. It is to be called between two epochs."""
    sampler = _stateful_sampler(loader)
    if sampler is None:
        return None
    try:
        return copy.deepcopy(sampler.state_dict())
    except Exception:  # DataLoader never calls state_dict: an error in it must not end the training
        return None


def load_sampler_state(loader: DataLoader | OrderSource, state: Any) -> None:
    """Give the user's sampler the state that `sampler_state` returned. Do nothing if that was None."""
    sampler = _stateful_sampler(loader)
    if state is not None and sampler is not None:
        sampler.load_state_dict(copy.deepcopy(state))


def first_batch(loader: DataLoader) -> list[Any]:
    """Return a list of the first batch (without batches: the first index) that the sampler would give; empty: there is none.

    The generators stay as they are, and so does the sampler. Raises DDLPError if a sampler of the user's can't be copied.
    """
    sampler, generators = index_sampler_of(loader), _generators(loader)
    if not is_built_in(sampler):
        shared = (loader.dataset, *generators.values())
        try:
            sampler = copy.deepcopy(sampler, {id(part): part for part in shared})  # iter() may change what it keeps
        except Exception as error:
            raise DDLPError(
                f"{type(sampler).__name__} can't be copied ({type(error).__name__}: {error}), and to read the sampler itself "
                "would change the next epoch. Give it a __deepcopy__, or leave the replay out"
            ) from error
    with restored(capture(generators, python=True), generators):
        return list(itertools.islice(sampler, 1))


def cut(loader: DataLoader, portable: bool | None = None) -> dict[str, Any]:
    """Describe, as plain data, how the loader cuts an epoch into batches. If that differs, a position is another batch.

    ``portable`` is given for an epoch that begins now, and tells its mode. Then the description also has the values that may
    change between two epochs.
    """
    index_sampler, sampler = index_sampler_of(loader), sampler_of(loader)
    own = not is_built_in(index_sampler)
    fields: dict[str, Any] = {
        "sampler": "one of your own" if own else type(sampler).__name__,
        "batch_size": _number(index_sampler, "batch_size"),
        "drop_last": _number(index_sampler, "drop_last"),
        "num_replicas": _number(sampler, "num_replicas") or _number(index_sampler, "num_processes"),
    }
    if portable is not None:
        fields["len(dataset)"] = length(loader.dataset)
        if not (own and _with_epochs(loader)):  # else the length may depend on the epoch
            fields["len(sampler)"] = length(sampler)
        if own:  # with torch's samplers the positions are the same in both modes
            fields["mode"] = "portable" if portable else "user code"
    return fields


def _batches(cut: dict[str, Any]) -> int | None:
    """Return the number of batches of an epoch by the result of `cut`; None if that can't be told from it."""
    samples, size = cut.get("len(sampler)"), cut["batch_size"]
    if samples is None or cut.get("mode") is not None:
        return None
    return samples if size is None else samples // size if cut["drop_last"] else -(-samples // size)


def _number(owner: Any, name: str) -> int | None:
    value = getattr(owner, name, None)
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class Resume:
    """The point at which an epoch goes on; the default is its beginning.

    ``order``: the state of the generators, and the sampler's epoch, from before the order was drawn. ``seed_drawn``: whether
    DataLoader's base seed was drawn after that and before the order. The next three are for a sampler that is read as it goes.
    ``drawn``: how many batches had been read. ``pending``: those of them that were not delivered, each as (indices,
    occurrences). ``times_drawn``: how often each source index was drawn. ``seed``: the seed of the samples' draws; None: not
    drawn yet. ``finished``: nothing of the epoch is left. ``cut``: the result of `cut` when the epoch began. ``workers``: the
    states that `ddlp.sources.host.stateful_workers` keeps for streams and data sets with a state of their own. ``sampler``: the
    state of the user's sampler between two epochs. ``deals``: how the epoch's order was dealt out to ranks before, if their
    states were merged; positions are those of what is left of it then. ``replaced``: how many delivered samples were replaced.
    ``base_seed``: DataLoader's; None: the epoch draws it. ``generators``: the result of `next_draws` when the state was taken.
    ``at_load``: the same when it was loaded; None: that does not count any more.
    """

    delivered: RangeSet = field(default_factory=RangeSet)
    order: States | None = None
    seed_drawn: bool = True
    drawn: int = 0
    pending: tuple[tuple[list[int], list[int]], ...] = ()
    times_drawn: dict[int, int] = field(default_factory=dict)
    seed: int | None = None
    finished: bool = False
    cut: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] | None = None
    sampler: Any = None
    deals: Deals | None = None
    replaced: int = 0
    base_seed: int | None = None
    generators: States | None = None
    at_load: States | None = None

    @property
    def partly(self) -> bool:
        """True if a part of the epoch was delivered. Otherwise all of it comes, or nothing, and no position counts."""
        return bool(self.delivered) or self.drawn > 0

    def check(self, now: dict[str, Any]) -> None:
        """Raise ValueError if positions mean other batches by ``now``, the result of `cut` for the loader."""
        if not self.partly:
            return
        other = [name for name, was in self.cut.items() if name in now and now[name] != was]
        if other:
            before, after = (", ".join(f"{name}={which[name]!r}" for name in other) for which in (self.cut, now))
            raise ValueError(
                f"the state was saved in mid-epoch with {before}, this loader has {after}: the batches that it counts as "
                "delivered are others here. Make the loader as it was until that epoch is over, or leave the state out and "
                "begin the epoch again with set_epoch()"
            )
        samples = now.get("len(dataset)")
        beyond = [index for indices, _ in self.pending for index in indices if samples is not None and index >= samples]
        if beyond:
            raise ValueError(
                f"the state has a batch with sample {beyond[0]}, this loader's data set has {samples} samples. Pass what "
                "state_dict() gave, unchanged, or leave the state out and begin the epoch again with set_epoch()"
            )
        batches = _batches(now)
        if batches is not None and self.delivered and self.delivered.last() >= batches:
            raise ValueError(
                f"the state counts batch {self.delivered.last()} as delivered, this loader's epoch has {batches} batches, from "
                "0 on. Pass what state_dict() gave, unchanged, or leave the state out and begin the epoch again with "
                "set_epoch()"
            )

    def order_of(self, loader: DataLoader | OrderSource) -> States:
        """Return what `state_dict` must keep to make this epoch's order again. Call it just before the order is drawn."""
        return _order_state(loader) if self.order is None else self.order

    @contextlib.contextmanager
    def order_restored(self, loader: DataLoader | OrderSource) -> Iterator[Callable[[], bool]]:
        """Give the generators, while the order is drawn, the states that they had then. Afterwards they are put back.

        Yields a function. It tells whether the draws have come to the states that are put back: from there on they may go on
        in the generators themselves. That is where the saved run was, if nobody else has drawn from them.
        """
        if self.order is None:
            yield lambda: True
            return
        if self.order["sampler_epoch"] is not None:
            set_epoch(loader, self.order["sampler_epoch"])
        generators = _generators(loader)
        # Of torch's default generator a built-in sampler draws before its first index, and never again.
        own = [generator for generator in generators.values() if generator is not torch.default_generator]
        before = [generator.get_state() for generator in own]
        with restored(self.order, generators):
            yield lambda: all(torch.equal(generator.get_state(), state) for generator, state in zip(own, before, strict=True))

    def prepend(self, plan: EpochPlan) -> None:
        """Begin the plan with the undelivered batches that had been read, of a sampler that is read as it goes."""
        plan.go_on_after(self.times_drawn)
        for indices, occurrences in self.pending:
            plan.append(np.asarray(indices, dtype=np.int64), np.asarray(occurrences, dtype=np.int64))


class OnlyNext:
    """Wraps the user's iterator. It calls only next, as DataLoader does: some samplers begin anew at a second iter().

    It keeps the first item in ``order``. By that item a resume can tell whether the order was made again.
    """

    def __init__(self, iterator: Iterator[Any], order: States | None) -> None:
        self._iterator = iterator
        self._order = order

    def __iter__(self) -> OnlyNext:
        return self

    def __next__(self) -> Any:
        item = next(self._iterator)
        if self._order is not None:
            self._order["first"], self._order = _plain(item), None
        return item


def _plain(item: Any) -> list[int] | None:
    """Return a batch's indices, or the single index, as plain data; None if they are objects of the user's."""
    try:
        return [operator.index(index) for index in (item if isinstance(item, (list, tuple)) else [item])]
    except TypeError:
        return None


def _begins_with(items: list[Any], first: list[int]) -> bool:
    return bool(items) and _plain(items[0]) == first


class SamplerStart:
    """The loader's sampler for torch's iterators, which call iter() of it before they draw their base seed.

    On a resume the user's sampler is run again here. torch's own samplers draw nothing before the first batch. A caller that
    asks for their first batch calls `keep_order` before.
    """

    def __init__(self, loader: DataLoader | OrderSource, resume: Resume, seed_drawn: bool) -> None:
        self._loader = loader
        self._resume = resume
        self.seed_drawn = seed_drawn if resume.order is None else resume.seed_drawn
        self.order = resume.order  # None: nothing was drawn yet

    def begin(self, base_seed: int | None, workers: int) -> tuple[Iterator[Any], int]:
        """Begin to read the sampler, then draw the base seed, in DataLoader's order. Returns both.

        With workers, torch's iterator begins the sampler once more after that, and takes the second order. A sampler that draws
        when it is begun has another one then.

        ``base_seed``: the base seed, if it is drawn already, as where the workers of an earlier epoch go on.
        """
        indices = iter(self)
        if base_seed is not None:
            return indices, base_seed
        base_seed = draw_base_seed(self._loader.generator)
        if workers and self._resume.order is None:
            self.seed_drawn, indices = False, iter(self)
        return indices, base_seed

    def keep_order(self) -> None:
        """Keep in ``order`` the states from which the order that is about to be drawn can be made again."""
        self.order = self._resume.order_of(self._loader)

    def __iter__(self) -> Iterator[Any]:
        sampler, resume = index_sampler_of(self._loader), self._resume
        if is_built_in(sampler):
            return iter(sampler)
        if resume.order is None:
            self._leave_last_epoch()
            self.keep_order()
            return OnlyNext(iter(sampler), self.order)
        if resume.finished and resume.order.get("sampler_state") is None:
            return iter(())
        iterator = self._again(resume.order)
        return iter(()) if resume.finished else iterator

    def _leave_last_epoch(self) -> None:
        """Put a sampler with a state between two epochs, where it was when that state was taken.

        A sampler that keeps its place is at the end of the previous epoch. It must be asked for the rest, which is nothing, so
        that it begins anew at the next iter(). Any other sampler begins anew at once, so it must get its state again.
        """
        if self._resume.sampler is None:
            return
        load_sampler_state(self._loader, self._resume.sampler)
        generators = _generators(self._loader)
        with restored(capture(generators, python=True), generators):
            first = next(iter(index_sampler_of(self._loader)), None)
        if first is not None:
            load_sampler_state(self._loader, self._resume.sampler)

    def _again(self, order: States) -> Iterator[Any]:
        """Return the epoch's order again: the part that had been read, and what follows.

        If the previous epoch was left early, a sampler that keeps its place may go on in it at the first iter() after its state
        was loaded. The second iter() then begins this epoch, as it did the first time.
        """
        state, first = order.get("sampler_state"), order.get("first")
        load_sampler_state(self._loader, state)
        head, iterator = self._read_again()
        if state is None or first is None or _begins_with(head, first):
            return itertools.chain(head, iterator)
        head, iterator = self._read_again()
        if not _begins_with(head, first):
            warn_user(
                f"ddlp: {type(_stateful_sampler(self._loader)).__name__} does not give the order again that it gave when the "
                "loader's state was saved: samples may come twice in this epoch, or not at all. After its load_state_dict, "
                "iter() must give what it gave after that state_dict"
            )
        return itertools.chain(head, iterator)

    def _read_again(self) -> tuple[list[Any], Iterator[Any]]:
        with self._resume.order_restored(self._loader):
            iterator = OnlyNext(iter(index_sampler_of(self._loader)), None)
            if self.seed_drawn:
                draw_base_seed(self._loader.generator)
            # At least one item: many samplers draw the whole epoch when they are asked for its first item.
            return list(itertools.islice(iterator, max(1, self._resume.drawn))), iterator


def save(
    delivered: RangeSet,
    order: States | None,
    *,
    seed: int | None,
    base_seed: int | None,
    epoch: int,
    seed_drawn: bool = True,
    plan: EpochPlan | None = None,
    drawn: int = 0,
    finished: bool = False,
    workers: dict[str, Any] | None = None,
    sampler: Any = None,
    replaced: int = 0,
) -> dict[str, Any]:
    """Return the state of a running epoch as plain data, which JSON can store too. The loader adds its `cut`.

    ``plan``: the plan of portable batches whose sampler is read as it goes. ``drawn``: the batches that user code has read of
    such a sampler. ``replaced``: the delivered samples that were replaced, since their images are bad.
    """
    pending, times_drawn, untouched = [], {}, not delivered
    if plan is not None:
        left = [k for k in range(delivered.first_missing(), len(plan)) if k not in delivered]
        pending = [[plan.indices(k), plan.occurrences(k).tolist()] for k in left]
        delivered, drawn, times_drawn = RangeSet(), plan.drawn, plan.times_drawn
        untouched = len(left) == plan.drawn
    if untouched or finished:  # no position counts
        delivered, drawn, pending, times_drawn = RangeSet(), 0, [], {}
    return {
        "format": FORMAT,
        "epoch": epoch,
        "seed": seed,
        "base_seed": base_seed,
        "finished": finished,
        "delivered": [list(pair) for pair in delivered.ranges()],
        "order": order,
        "seed_drawn": seed_drawn,
        "drawn": drawn,
        "pending": pending,
        "seen": {str(k): v for k, v in times_drawn.items()},
        "workers": workers,
        "sampler": sampler,
        **({"replaced": replaced} if replaced else {}),
    }


def dealt(loader: DataLoader, resume: Resume) -> dict[str, Any]:
    """Return what a state also needs to be merged with those of the other ranks. It is called while the epoch begins."""
    fields: dict[str, Any] = {}
    rank = _number(sampler_of(loader), "rank")
    if rank is not None and is_built_in(index_sampler_of(loader)):
        fields["rank"] = rank
    if resume.deals is not None:
        fields["merged"] = resume.deals.to_data()
    return fields


def between(
    epoch: int, workers: dict[str, Any] | None = None, sampler: Any = None, base_seed: int | None = None
) -> dict[str, Any]:
    """Return the state between two epochs: ``epoch`` begins with the next iter().

    ``base_seed``: DataLoader's, if it is not drawn again, since workers persist.
    """
    return save(RangeSet(), None, seed=None, base_seed=base_seed, epoch=epoch, workers=workers, sampler=sampler)


def _drawn_from(loader: DataLoader) -> dict[str, torch.Generator]:
    """Return the generators that the next draws come from, by name: base seeds, and the order of torch's own samplers.

    ``"torch"`` is torch's default generator, ``"loader"`` the loader's own, and ``"sampler"`` its sampler's own.
    """
    used = {"loader": loader.generator}
    if is_built_in(index_sampler_of(loader)):
        used["sampler"] = getattr(sampler_of(loader), "generator", None)
    own = {name: generator for name, generator in used.items() if isinstance(generator, torch.Generator)}
    return own if len(own) == len(used) else {**own, "torch": torch.default_generator}


def next_draws(loader: DataLoader, order_drawn: bool = False) -> States | None:
    """Return the states of the generators that the next draws come from; None if torch draws on an accelerator.

    ``order_drawn``: only those of the loader's own generators, since this epoch's base seed and order are known.
    """
    if default_device().type != "cpu":
        return None
    generators = _drawn_from(loader)
    if order_drawn:
        generators.pop("torch", None)
    return capture(generators, python=False)


def drawn_on(loader: DataLoader, resume: Resume) -> Resume:
    """Return the resume for an epoch that begins now, where nobody has restored the generators since it was loaded.

    A generator that is as it was then, and not as it was in the run that was saved, was forgotten. The loader's own go on from
    their saved states. torch's default generator is left as it is, but this epoch's draws come from its saved state.
    """
    if not resume.generators:
        return resume if resume.at_load is None else replace(resume, at_load=None)
    saved, before = resume.generators, resume.at_load or {}
    now = next_draws(loader) or {}
    names = [name for name in saved if name in now and saved[name] != before.get(name) == now[name]]
    resume = replace(resume, at_load=None)
    forgotten = {name: generator for name, generator in _drawn_from(loader).items() if name in names}
    default = forgotten.pop("torch", None)
    put(saved, forgotten)
    stream = isinstance(loader.dataset, IterableDataset)
    if default is None or resume.order is not None or not (stream or is_built_in(index_sampler_of(loader))):
        return resume
    with restored({"torch": saved["torch"]}, {"torch": default}):
        base_seed = resume.base_seed
        if base_seed is None and loader.generator is None:
            base_seed = draw_base_seed(None)
        own = isinstance(getattr(sampler_of(loader), "generator", None), torch.Generator)
        order = None if stream or own else _order_state(loader)
    return replace(resume, base_seed=base_seed, order=order)


def load(state: dict[str, Any]) -> tuple[Resume, int]:
    """Return the resume and the epoch of a saved state.

    Raises ValueError if ``state`` is not a saved state, or has another format: it names the field, and nothing is used.
    """
    got = state.get("format") if isinstance(state, dict) else None
    if type(got) is not int or got != FORMAT:
        what = f"format {quote(got)}" if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"not a state of DDLPLoader: {what}, expected format {FORMAT}; pass what state_dict() gave")
    try:
        checked = check_state(state)
    except Misfit as error:
        raise ValueError(
            f"not a state of DDLPLoader: {error}. Pass what state_dict() gave, unchanged; if its file is damaged, take an "
            "older one, or leave the state out and begin the epoch again with set_epoch()"
        ) from None
    renamed = {"seen": "times_drawn", "merged": "deals"}
    fields = {renamed.get(name, name): value for name, value in checked.items() if name not in ("format", "epoch", "rank")}
    fields["delivered"] = RangeSet(fields["delivered"])
    if "deals" in fields:
        fields["deals"] = Deals.of_data(fields["deals"])
    return Resume(**fields), checked["epoch"]
