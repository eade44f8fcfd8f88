"""The rules by which FastFlow and Cachew choose, to compare `ddlp.auto.decide` with.

Written anew after descriptions and what the released code does; papers and code differ. Both choose remote workers for
TensorFlow. Here a source is a worker, and the host goes on preparing beside it, by our schedule and not by their fixed split:
that is in their favour.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ddlp.auto.decide import ocycle_ratio, path_limit
from ddlp.auto.measured import Measured, OffloadPath

__all__ = ["CACHEW_CODE", "CACHEW_PAPER", "FASTFLOW_CODE", "FASTFLOW_PAPER", "Cachew", "CachewScaling", "FastFlow"]


@dataclass(frozen=True)
class FastFlow:
    """FastFlow (Um et al., PVLDB 16(5), 2023, Algorithm 1): offload only if training outruns the loader clearly.

    The code is github.com/SamsungLabs/FastFlow at f2e3a336: ``has_bottleneck`` in fastflow/model.py, the number of workers in
    fastflow/autoscaler/scaler.py. It never takes a decision back: its scaling while training is an empty function, and its
    second threshold (``offloading_speed_up_threshold``) is read nowhere.

    Attributes:
        bottleneck: offload if Gthp / Lthp is above this.
        scales: use ceil((Gthp - Lthp) / Rthp - 0.1) workers, at least one; False: one.
    """

    bottleneck: float
    scales: bool

    def choose(self, measured: Measured) -> tuple[OffloadPath, ...]:
        """Return the sources, those with the highest calibrated Rthp first."""
        l_thp = measured.host_batches_per_s
        if measured.step_s is None or l_thp is None or 1 / measured.step_s <= self.bottleneck * l_thp:
            return ()

        def calibrated(path: OffloadPath) -> float:  # Rthp, and what the host could make beside
            return _r_thp(measured, path) + l_thp * (1 - ocycle_ratio(measured, path))

        best = sorted(measured.paths, key=calibrated, reverse=True)
        if not best:
            return ()
        lacking = (1 / measured.step_s - l_thp) / max(_r_thp(measured, best[0]), 1e-9)
        count = max(1, math.ceil(lacking - 0.1)) if self.scales else 1
        return tuple(best[:count])


@dataclass(frozen=True)
class Cachew:
    """Cachew (Graur et al., USENIX ATC 2022, section 4.3): add workers while a batch becomes clearly quicker.

    The code is github.com/eth-easl/cachew, tensorflow/core/data/service/easl/scaling_utils.cc at 1c03540f.

    Attributes:
        gain: add a worker while the last one has made batches quicker by more than this part.
        loss: take one away while the batches become slower by less than this part.
        growth: look again if the batch time, or the queue of ready batches, has grown by more than this part.
        stable_windows: windows of steps without a change before it looks again.
    """

    gain: float
    loss: float
    growth: float
    stable_windows: int

    def choose(self, measured: Measured, batch_s: Callable[[tuple[OffloadPath, ...]], float]) -> tuple[OffloadPath, ...]:
        """Return the sources at which it comes to rest. It has no "none": it begins with one worker.

        ``batch_s`` measures a window with these sources: seconds a batch. Sources join in the order of ``measured.paths``, as
        workers of a pool do.
        """
        scaling = CachewScaling(self, most=len(measured.paths))
        while measured.paths and scaling.scaling:
            scaling.window(batch_s(measured.paths[: scaling.workers]))
        return measured.paths[: scaling.workers]


class CachewScaling:
    """Cachew's rule while it runs: `window` takes a window's figures, and ``workers`` says how many there should be.

    Attributes:
        workers: how many workers there should be: 1 to ``most``.
        scaling: it is still looking for the number.
    """

    def __init__(self, rule: Cachew, most: int) -> None:
        self.rule, self.most = rule, most
        self.workers, self.scaling = 1, True
        self._before: tuple[int, float] | None = None  # workers and batch time of the last other number
        self._converged = (0.0, 0.0)  # batch time and queue at that number
        self._stable = 0
        self._queue = 0.0

    def window(self, batch_s: float, queue: float = 0.0) -> None:
        """Note a window: the mean seconds a batch, and how many batches were ready on average."""
        if not self.scaling:
            self._look_again(batch_s, queue)
        elif self._before is None:
            self._go_on(+1, batch_s, queue)
        else:
            others, before_s = self._before
            up = self.workers > others
            if (1 - batch_s / before_s > self.rule.gain) if up else (1 - batch_s / before_s > -self.rule.loss):
                self._go_on(+1 if up else -1, batch_s, queue)
            else:
                self.workers = others
                self._rest(before_s, self._queue)

    def _go_on(self, by: int, batch_s: float, queue: float) -> None:
        if not 1 <= self.workers + by <= self.most:
            self._rest(batch_s, queue)
            return
        self._before, self._queue = (self.workers, batch_s), queue
        self.workers += by

    def _rest(self, batch_s: float, queue: float) -> None:
        self._converged, self._stable, self.scaling = (batch_s, queue), 0, False

    def _look_again(self, batch_s: float, queue: float) -> None:
        self._stable += 1
        if self._stable <= self.rule.stable_windows:
            return
        self._stable = 0
        was_s, was_queue = self._converged
        by = -1 if was_queue and queue / was_queue > 1 + self.rule.growth and self.workers > 1 else 0
        by = by or (+1 if batch_s / was_s > 1 + self.rule.growth and self.workers < self.most else 0)
        if by:
            self.scaling = True
            self._go_on(by, batch_s, queue)


def _r_thp(measured: Measured, path: OffloadPath) -> float:
    """Rthp as both would measure it, from end to end: with the transfer, and with a host that does nothing but take batches."""
    taken = math.inf
    if path.host_cpu_s_per_batch and measured.host_processors is not None:
        taken = measured.host_processors / path.host_cpu_s_per_batch
    return min(path_limit(path)[0], taken)


FASTFLOW_PAPER = FastFlow(bottleneck=1.1, scales=True)
FASTFLOW_CODE = FastFlow(bottleneck=1.3, scales=False)  # its defaults: autoscale_enabled is False
CACHEW_PAPER = Cachew(gain=0.03, loss=0.03, growth=0.40, stable_windows=10)
CACHEW_CODE = Cachew(gain=0.07, loss=0.03, growth=0.50, stable_windows=20)
