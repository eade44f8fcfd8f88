"""What `ddlp plan` plans for: measured or described figures of a run, and what its energy and time cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ddlp.planning.decide import Power, Prices
from ddlp.planning.measured import Measured, OffloadPath

__all__ = ["Move", "Setup"]


class Move(NamedTuple):
    """An engine joins or leaves while an epoch runs."""

    seconds: float  # since the epoch's beginning
    engine: str
    joins: bool


@dataclass(frozen=True)
class Setup:
    """A run to plan for. Each engine has one path.

    Attributes:
        measured: the figures; step time, the host's rate and each engine's rate must be known.
        batches: of an epoch.
        workers: of the host; together they have the host's rate.
        batch_bytes: bytes of a batch, if known.
        power: watts; None: no energy is told.
        prices: None: no cost is told.
        moves: joins and leaves. An engine whose first move is a join is not there at the beginning.
        assumed: what was neither measured nor given, and has been assumed.

    Raises ValueError for figures that are missing or contradict each other.
    """

    measured: Measured
    batches: int
    workers: int = 1
    batch_bytes: float | None = None
    power: Power | None = None
    prices: Prices | None = None
    moves: tuple[Move, ...] = ()
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.measured.step_s is None:
            raise ValueError("the time of a training step is not known; give --step-s SECONDS")
        if self.measured.host_batches_per_s is None:
            raise ValueError("the host's rate is not known; give --host-rate BATCHES_A_SECOND, of all its workers together")
        for name, value in (("batches", self.batches), ("workers", self.workers)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
        for path in self.engines:
            if path.batches_per_s is None:
                raise ValueError(f"the rate of engine {path.source} is not known; give --engine {path.source}=BATCHES_A_SECOND")
            if path.spool_bytes is not None and path.spool_bytes < (path.bytes_per_batch or 0.0):
                raise ValueError(f"the spool of engine {path.source} has no room for a batch; give it a larger one (room=)")
        names = [path.source for path in self.engines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"engine {twice[0]} is there {names.count(twice[0])} times; give each a name of its own")
        self._check_moves(names)

    def _check_moves(self, names: list[str]) -> None:
        for name in dict.fromkeys(move.engine for move in self.moves):
            if name not in names:
                raise ValueError(f"{name!r} joins or leaves, and is no engine here; there are: {', '.join(names) or 'none'}")
            own = [move for move in self.moves if move.engine == name]
            for move in own:
                if not math.isfinite(move.seconds) or move.seconds < 0:
                    raise ValueError(f"{name} joins or leaves at {move.seconds} s; give seconds since the epoch began")
            for one, other in pairwise(own):
                if one.joins == other.joins:
                    verb = "joins" if one.joins else "leaves"
                    raise ValueError(f"{name} {verb} at {one.seconds:g} s and again at {other.seconds:g} s; joins and leaves "
                                     "of an engine come by turns")  # fmt: skip

    @property
    def engines(self) -> tuple[OffloadPath, ...]:
        """The engines' paths."""
        return self.measured.paths

    @property
    def step_s(self) -> float:
        """Seconds of a training step."""
        assert self.measured.step_s is not None
        return self.measured.step_s

    @property
    def host_rate(self) -> float:
        """Batches a second of the host."""
        assert self.measured.host_batches_per_s is not None
        return self.measured.host_batches_per_s

    @property
    def absent(self) -> frozenset[str]:
        """Engines that are not there at the beginning."""
        first = {move.engine: move.joins for move in reversed(self.moves)}
        return frozenset(name for name, joins in first.items() if joins)

    def with_engines(self, paths: tuple[OffloadPath, ...]) -> Setup:
        """The same with these engines. A new one has the watts and the price of the first one of before."""
        like = self.engines[0].source if self.engines else None
        names = {path.source for path in paths}

        def of_all(known: Mapping[str, float]) -> dict[str, float]:
            return {name: known.get(name, known.get(like, 0.0) if like is not None else 0.0) for name in names}

        return replace(
            self, measured=replace(self.measured, paths=paths),
            power=None if self.power is None else replace(self.power, engine_watts=of_all(self.power.engine_watts)),
            prices=None if self.prices is None else replace(self.prices, engine_per_h=of_all(self.prices.engine_per_h)),
            moves=tuple(move for move in self.moves if move.engine in names),
        )  # fmt: skip

    def with_workers(self, workers: int) -> Setup:
        """The same with so many workers on the host, each as fast as one is now, as far as the processors suffice.

        One processor is left to training. If the number of processors is not known, there are enough.
        """
        rate, p_cycle = self.host_rate / self.workers * workers, self.measured.host_cpu_s_per_batch
        processors = self.measured.host_processors
        if p_cycle is not None and processors is not None:
            rate = min(rate, max((processors - 1) / p_cycle, self.host_rate))
        return replace(self, workers=workers, measured=replace(self.measured, loader_batches_per_s=rate))
