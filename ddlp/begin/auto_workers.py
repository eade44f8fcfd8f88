"""``num_workers="auto"``: a loader is measured, `ddlp.auto.workers` decides, and the next run begins with that."""

from __future__ import annotations

import math
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from csd_engine.machine.computer import memory, processors
from csd_engine.protocol.fields import integer
from csd_engine.protocol.schema import checked_fields
from ddlp.auto.store import Stored
from ddlp.auto.workers import LEAST, AutoWorkers, Figures
from ddlp.begin.remembered import workers_of
from ddlp.config import LoaderConfig
from ddlp.process.ranks import here
from ddlp.sampling.checkpoint import is_stateful
from ddlp.schedule.ledger import Side
from ddlp.schedule.rates import Rate
from ddlp.sources.host.own_steps import in_processes
from ddlp.stats.live import Life
from ddlp.translate.portable import Portable

__all__ = ["LoaderWorkers", "number_of_workers"]

PROCESS_BYTES = 256 << 20  # a worker process with torch and a data set, beside the pages that it shares


def number_of_workers(num_workers: Any, prefetch_factor: int | None) -> tuple[int, LoaderWorkers | None]:
    """Return the number of workers, and what measures it if ``num_workers`` is "auto". Raises ValueError for any other text."""
    if not isinstance(num_workers, str):
        return num_workers, None
    if num_workers != "auto":
        raise ValueError(f"num_workers={num_workers!r}: a number of workers, 0 or more, or 'auto'")
    workers = LoaderWorkers(prefetch_factor)
    return workers.auto.count, workers


class LoaderWorkers:
    """Measures the epochs of one loader, and sets its ``num_workers`` and ``prefetch_factor`` between them.

    Args:
        prefetch_factor: that the user has given; None: it is chosen as well.
    """

    def __init__(self, prefetch_factor: int | None) -> None:
        ranks = here()
        self._prefetch_factor = prefetch_factor
        self.auto = AutoWorkers(processors() / (1 if ranks is None else ranks.local_ranks))
        self._stored: Stored | None = None  # where the decision is kept; None: not known yet
        self._fixed = ""  # why the number stays
        self._portable: Portable | None = None  # of the epoch under way
        self._in_processes = True
        self._start_each_epoch = False
        self._before: dict[str, tuple[int, float]] = {}  # of each rate at the epoch's beginning: batches and seconds
        self._judged_s: float | None = None  # when the last epoch began that was judged

    def __reduce__(self) -> tuple[type[LoaderWorkers], tuple[int | None]]:
        """An unpickled copy begins anew, since another computer may have other rates."""
        return LoaderWorkers, (self._prefetch_factor,)

    @property
    def line(self) -> str:
        """One line for the user: how many workers, and why."""
        return f"num_workers='auto': {self.auto.line}" + (f"; {self._fixed}" if self._fixed else "")

    def take(self, count: int) -> int:
        """Go on with the number of workers that a saved state has. Returns it."""
        self.auto.count = count
        return count

    def begin(self, loader: DataLoader, config: LoaderConfig, portable: Portable | None, life: Life) -> bool:
        """Set the loader's number of workers for the epoch that begins. Returns whether it has changed."""
        before, dataset = loader.num_workers, loader.dataset
        if portable is None and (isinstance(dataset, IterableDataset) or is_stateful(dataset)):
            self._fixed = "it stays, since what such a data set gives depends on it"
        elif config.backend != "native":
            self._fixed = "it stays, since DALI's own threads are not measured"
        else:
            self._fixed = ""
            if self._stored is None:
                self._stored = workers_of(loader, config, portable)
                if (decision := self._stored.read(_checked)) is not None:
                    self.auto.know(decision["workers"], decision["prefetch"])
        vars(loader)["num_workers"] = self.auto.count  # not by assignment: that is the user's own choice
        if self._prefetch_factor is None:
            vars(loader)["prefetch_factor"] = self.auto.prefetch
        self._portable = portable
        self._in_processes = portable is None or (portable.rest is not None and in_processes(config.own_steps, self.auto.count))
        self._start_each_epoch = portable is None and not loader.persistent_workers
        self._before = {name: (rate.count, rate.total_s) for name, rate in _rates(life).items()}
        return bool(before != self.auto.count)

    def ended(self, life: Life) -> None:
        """Judge the loader's last epoch, if it was long enough, and keep the decision. Any thread may call this."""
        began_s = life.last.started_s
        if self._fixed or began_s == self._judged_s or (figures := self._figures(life)) is None:
            return
        self._judged_s = began_s
        self.auto.measured(figures, memory().available or math.inf)  # 0: it can't be read
        if self._stored is not None:
            self._stored.write({"workers": self.auto.count, "prefetch": self.auto.prefetch})

    def _figures(self, life: Life) -> Figures | None:
        """Return the figures of the last epoch; None: it had too few batches."""
        counts, rates = life.last, _rates(life)
        host_batches, batches = counts.sides[Side.HOST], sum(counts.sides.values())
        means = {name: rate.mean_since(self._before.get(name, (0, 0.0))) for name, rate in rates.items()}
        start_s, seconds = counts.waiting["start"], counts.seconds
        if host_batches < LEAST or not means["busy"] or not means["step"] or seconds <= start_s:
            return None
        portable, full = self._portable, life.rates.full_batch
        pixels = 0 if portable is None else full * life.rates.sample_bytes * portable.epilogue.dtype.itemsize
        in_threads_s = 0.0 if portable is None else counts.host_cpu_s
        workers, starting_s = rates["busy"].parallel, 0.0
        measured = rates["busy"].count - self._before.get("busy", (0, 0.0))[0]
        if self._start_each_epoch and counts.first_s is not None:  # then its first batch was made
            starting_s = max(0.0, counts.first_s - counts.started_s - means["busy"])
        return Figures(
            count=workers,
            busy_s=means["busy"],
            cpu_s=means["cpu"],
            queued_s=counts.queued_s / measured,
            step_s=means["step"],
            step_cpu_s=max(0.0, counts.process_cpu_s - in_threads_s) / batches,
            spread=rates["busy"].spread,
            period_s=(seconds if self._start_each_epoch else seconds - start_s) / batches,
            waited=(sum(counts.waiting.values()) - start_s) / (seconds - start_s),
            batch_bytes=pixels or counts.batch_bytes or 0,
            worker_bytes=PROCESS_BYTES if self._in_processes else 0,
            start_s=starting_s / workers,
            batches=batches,
        )


def _rates(life: Life) -> dict[str, Rate]:
    return {"busy": life.rates.host, "cpu": life.rates.host_cpu, "step": life.rates.training}


def _checked(data: Any) -> dict[str, int]:
    """Return what was kept. Raises ValueError for anything else."""
    count = integer(1, 1 << 20)
    return checked_fields("the number of workers", data, {"workers": count, "prefetch": count}, {})
