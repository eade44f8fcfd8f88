"""accelerate, whose ``Accelerator.prepare`` puts a loader of its own in the place of each that is not prepared yet.

It asks a loader for ``_is_accelerate_prepared``, and leaves alone what says yes. Nothing else of ``prepare`` reaches the
loader, so this question is where a `DDLPLoader` learns of the Accelerator. It says yes, and does to itself what accelerate's
own loader would have done: its samples are shared among the processes, and the Accelerator is told where an epoch ends.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ddlp.errors import DDLPError
from ddlp.frameworks.shards import can_be_shared, shares_itself
from ddlp.sampling.torch_loader import forget_iterator
from ddlp.stats.live import length

__all__ = ["Prepared", "prepare_where_asked"]

_ASKS = "accelerate.accelerator"


def prepare_where_asked(loader: DataLoader, prepared: Prepared | None) -> Prepared | None:
    """Prepare the loader where an Accelerator asks for a property of it, from within that property. Returns what came of it.

    ``prepared``: what an earlier call has returned: a loader is prepared once.

    Raises ValueError for an Accelerator whose ``dispatch_batches`` is True, and what accelerate raises of its own.
    """
    frame = sys._getframe(2)
    if prepared is not None or frame.f_globals.get("__name__") != _ASKS:
        return prepared
    accelerator, place = (frame.f_locals.get(name) for name in ("self", "device_placement"))
    try:
        return Prepared(loader, accelerator, place)
    except AttributeError as error:  # accelerate would take it for "not prepared", and replace the loader without a word
        raise DDLPError(
            f"this version of accelerate is not known to ddlp ({error}); leave the loader out of Accelerator.prepare, and give "
            "it sampler=torch.utils.data.DistributedSampler(dataset, shuffle=...) and device=accelerator.device"
        ) from error


class Prepared:
    """What an Accelerator has made of a loader, and what its GradientState asks of the loader under way.

    Attributes:
        shared: the samples are shared among the processes, by accelerate's rules.
        remainder: samples of the epoch's last step over all processes; -1: not known, or the last step need not be the last
            of the sampler's order.
    """

    def __init__(self, loader: DataLoader, accelerator: Any, place: bool | None) -> None:
        from accelerate.state import DistributedType, GradientState

        self._loader = weakref.ref(loader)
        self._gradients = GradientState()
        self._theirs: Any = None
        self._at_last = False
        self.remainder = -1
        wanted = accelerator.num_processes > 1 or accelerator.use_seedable_sampler
        if wanted and not shares_itself(loader) and can_be_shared(loader):
            self._share(loader, accelerator)
        self.shared = self._theirs is not None
        if place is None:
            place = accelerator.device_placement and accelerator.distributed_type != DistributedType.XLA
        ours: Any = loader  # a DDLPLoader
        if place and ours.device is None and accelerator.device.type != "cpu":
            ours.device = accelerator.device

    def _share(self, loader: DataLoader, accelerator: Any) -> None:
        """Have accelerate prepare a plain DataLoader of the same samples, and take over how it shares them."""
        if accelerator.num_processes > 1 and accelerator.dispatch_batches:
            raise ValueError(
                "Accelerator(dispatch_batches=True): its first process would read all batches and send the others theirs, but "
                "a DDLPLoader is read in each process. Leave dispatch_batches out"
            )
        dataset, sampler, size = loader.dataset, loader.sampler, loader.batch_size
        in_sampler = isinstance(sampler, BatchSampler)
        if isinstance(dataset, IterableDataset):
            plain = DataLoader(dataset, size, drop_last=loader.drop_last)
        elif size is not None or in_sampler:
            plain = DataLoader(dataset, size, sampler=sampler, drop_last=loader.drop_last)
        else:
            plain = DataLoader(dataset, batch_sampler=loader.batch_sampler)
        # Not to be placed on a device: a stream's batches would be read by one process, and sent to the others.
        prepared = accelerator.prepare_data_loader(plain, device_placement=False)
        accelerator._dataloaders.remove(prepared)  # the loader itself is what it looks after
        self._theirs = getattr(prepared, "dataloader", prepared)  # within torch_xla's
        taken = ("dataset",) if isinstance(dataset, IterableDataset) else ("sampler",) if in_sampler else ("batch_sampler",)
        for name in taken:
            vars(loader)[name] = getattr(self._theirs, name)  # DataLoader refuses to have it set
        forget_iterator(loader)

    def begin(self, epoch: int, in_order: bool) -> None:
        """An epoch is about to begin: have all processes draw one order. ``in_order``: its batches come in that order."""
        self._at_last, self.remainder, theirs = False, -1, self._theirs
        if theirs is not None:
            from accelerate.utils import synchronize_rng_states

            theirs.set_epoch(epoch)
            if theirs.rng_types:
                synchronize_rng_states(theirs.rng_types, theirs.synchronized_generator)
            theirs.begin()  # finds the remainder
            theirs.end()
            self.remainder = theirs.remainder if in_order else -1
        self._gradients._add_dataloader(self)

    def watch(self, iterator: Any) -> Any:
        """The epoch's iterator, at whose end the Accelerator is told so."""
        loader = self._loader()
        if loader is None or not isinstance(loader.dataset, IterableDataset) or length(loader) is not None:
            iterator.on_end = self._end
            return iterator
        return self._one_ahead(iterator)

    def _one_ahead(self, iterator: Any) -> Iterator[Any]:
        """The batches of a stream of unknown length: which is the last one is seen by asking for one more."""
        held = next(iterator, self)
        while held is not self:
            coming = next(iterator, self)
            self._at_last = coming is self
            yield held
            held = coming
        self._end()

    def _end(self) -> None:
        self._gradients._remove_dataloader(self)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether training has the epoch's last batch."""
        loader: Any = self._loader()
        if self._at_last or loader is None:
            return self._at_last
        now = loader.live()
        return now.delivered == (length(loader) if now.batches is None else now.batches)
