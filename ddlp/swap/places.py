"""What `ddlp run` says: a line for each place of the script where loaders are made, and at the end what was gained there."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from typing import Any

from ddlp.stats.live import Sums
from ddlp.stats.report import Counts
from ddlp.swap.comparison import Comparison
from ddlp.swap.lines import say_of_first_rank

__all__ = ["PLACES", "Place", "place_of", "print_gains"]


@dataclass
class Place:
    """A place of the script, and all loaders of one kind that were made there."""

    name: str
    said: set[str] = field(default_factory=set)
    compared: Comparison | str | None = None  # None: not yet, or not swapped; str: why it was not measured
    _running: dict[int, Counts] = field(default_factory=dict)  # by id, of epochs whose iterators are alive
    _ended: list[Sums] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print a line about this place, once."""
        if text not in self.said:
            self.said.add(text)
            say_of_first_rank(f"{self.name}: {text}")

    def count(self, iterator: Any, counts: Counts) -> None:
        """Note that an epoch of one of its loaders has begun."""
        self._running[id(counts)] = counts
        weakref.finalize(iterator, self._end, counts).atexit = False

    def _end(self, counts: Counts) -> None:
        self._ended.append(Sums().plus(counts))
        del self._running[id(counts)]

    def gain(self) -> str | None:
        """Return the gain in one line; None if nothing was swapped or measured here."""
        sums = self._ended + [Sums().plus(counts) for counts in self._running.values()]
        seconds = sum(epoch.seconds for epoch in sums)
        if not seconds:
            return None
        samples, waited = sum(epoch.samples for epoch in sums), sum(sum(epoch.waiting.values()) for epoch in sums)
        parts = [f"{samples:,} samples in {seconds:.1f} s, of which training waited {waited:.1f} s"]
        by_host, by_devices = sum(epoch.batches_host for epoch in sums), sum(epoch.batches_csd for epoch in sums)
        if by_devices:
            parts.append(f"devices made {by_devices / (by_devices + by_host):.0%} of the batches")
        if isinstance(self.compared, Comparison):
            parts.append(str(self.compared))
            would_wait = samples / self.compared.torchs_per_s - (seconds - waited)
            if would_wait > waited:
                parts.append(f"with DataLoader training would have waited some {would_wait:.1f} s (an estimate)")
            else:
                parts.append("DataLoader would have kept up with these training steps as well (an estimate)")
        elif self.compared is not None:
            parts.append(f"the gain was not measured: {self.compared}")
        else:  # torch's own DataLoader
            cpu_s = sum(epoch.host_cpu_s for epoch in sums) / max(1, by_host)
            parts.append(f"to make a batch took {cpu_s:.3g} s of processor time")
        return "; ".join(parts)


PLACES: dict[str, Place] = {}
os.register_at_fork(after_in_child=PLACES.clear)  # they are the parent's


def place_of(loader: Any, where: str) -> Place:
    """The place of a loader that was made at ``where``."""
    batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    workers = f"{loader.num_workers} worker" + ("" if loader.num_workers == 1 else "s")
    batches = "no batches" if loader.batch_sampler is None else f"batch {batch_size or '?'}"
    name = f"{where} DataLoader({type(loader.dataset).__name__}, {batches}, {workers})"
    return PLACES.setdefault(name, Place(name))


def print_gains() -> None:
    """Print the gain of each place, at the end of the script."""
    for place in PLACES.values():
        gain = place.gain()
        if gain is not None:
            place.say(gain)
