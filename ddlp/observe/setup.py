"""What `ddlp plan` plans for: measured or described figures of a run, and what its energy and time cost."""

from __future__ import annotations

from dataclasses import dataclass

from ddlp.auto.decide import Power, Prices
from ddlp.auto.measured import Measured, OffloadPath

__all__ = ["Setup"]


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
        assumed: what was neither measured nor given, and has been assumed.

    Raises ValueError for figures that are missing or contradict each other.
    """

    measured: Measured
    batches: int
    workers: int = 1
    batch_bytes: float | None = None
    power: Power | None = None
    prices: Prices | None = None
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.measured.step_s is None:
            raise ValueError("the time of a training step is not known; give step_s in the file of --setup")
        if self.measured.host_batches_per_s is None:
            raise ValueError("the host's rate is not known; give host_rate in the file of --setup, of all its workers together")
        for name, value in (("batches", self.batches), ("workers", self.workers)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
        for path in self.engines:
            if path.batches_per_s is None:
                raise ValueError(f"the rate of engine {path.source} is not known; give --engine {path.source}=RATE")
            if path.spool_bytes is not None and path.spool_bytes < (path.bytes_per_batch or 0.0):
                raise ValueError(f"the spool of engine {path.source} has no room for a batch; give it a larger one (room)")
        names = [path.source for path in self.engines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"engine {twice[0]} is there {names.count(twice[0])} times; give each a name of its own")

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
