"""A loader's numbers as TensorBoard scalars, for any writer that has ``add_scalar``.

    scalars = ddlp.observe.Scalars(SummaryWriter("runs/tb"), loader, every=100)
    for epoch in range(90):
        for images, labels in loader:
            ...
            scalars.step()
        scalars.epoch()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddlp.errors import DDLPError
from ddlp.loader import DDLPLoader
from ddlp.observe.energy.result import EnergyResult
from ddlp.observe.pace import Live, Pace, Window, live, overall

__all__ = ["Scalars"]


class Scalars:
    """Writes a loader's numbers: within epochs below ``<tag>/``, of whole epochs below ``<tag>_epoch/``.

    Args:
        writer: has ``add_scalar(tag, value, step)``: torch.utils.tensorboard's SummaryWriter, tensorboardX's, and others.
        loader: the loader.
        every: one call of `step` in so many writes; the values are of the time since the write before.
        tag: the first part of all names.
    """

    def __init__(self, writer: Any, loader: DDLPLoader, every: int = 100, tag: str = "ddlp") -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer={writer!r}: expected an object with add_scalar(tag, value, step), as SummaryWriter")
        if every < 1:
            raise ValueError(f"every={every!r}: a number of steps, 1 or more")
        self._writer, self._loader, self._every, self._tag = writer, loader, every, tag
        self._calls = 0
        self._since_last = Window(0.0)

    def step(self, step: int | None = None) -> None:
        """After a step of training. ``step``: where on the axis; None: the batches delivered in all epochs so far."""
        self._calls += 1
        if self._calls % self._every:
            return
        now = live(self._loader)
        at = now.total.batches_host + now.total.batches_csd if step is None else step
        self._write(self._tag, at, _moment(now, self._since_last.pace(now)))

    def epoch(self, epoch: int | None = None, energy: EnergyResult | None = None) -> None:
        """After an epoch. ``epoch``: where on the axis; None: the loader's own number. ``energy``: what a meter measured of it.

        Raises DDLPError before the first epoch.
        """
        now = live(self._loader)
        if not now.total.epochs:
            raise DDLPError("Scalars.epoch(): no epoch has begun; call it after iterating over the loader")
        at = now.report.epoch if epoch is None else epoch
        self._write(f"{self._tag}_epoch", at, _epoch(now, energy))

    def _write(self, tag: str, at: int, values: Iterator[tuple[str, float | None]]) -> None:
        for name, value in values:
            if value is not None:
                self._writer.add_scalar(f"{tag}/{name}", value, at)


def _speeds(now: Live, pace: Pace) -> Iterator[tuple[str, float | None]]:
    report = now.report
    yield "images_per_s", pace.samples_per_s
    yield "rate_host", report.rate_cpu
    yield "rate_csd", report.rate_csd
    yield "bound_fraction", pace.samples_per_s / now.bound if now.bound else None
    yield "csd_share", report.batches_csd / max(1, report.batches_cpu + report.batches_csd)
    for cause, part in pace.waiting.items():
        yield f"waiting/{cause}", part


def _moment(now: Live, pace: Pace) -> Iterator[tuple[str, float | None]]:
    yield from _speeds(now, pace)
    quota = sum(device.quota for device in now.devices)
    yield "spool_fill", sum(device.held for device in now.devices) / quota if quota else None
    yield "ready_batches", now.ready_host + now.ready_csd


def _epoch(now: Live, energy: EnergyResult | None) -> Iterator[tuple[str, float | None]]:
    report = now.report
    yield from _speeds(now, overall(now))
    yield "seconds", report.seconds
    yield "host_cpu_s", report.host_cpu_s if report.host_cpu_s else None  # of another loader it is not measured
    yield "leases_taken_back", report.leases_taken_back
    yield "leases_lost", report.leases_lost
    if energy is None:
        return
    yield "joules" if energy.how == "measured" else "joules_modelled", energy.total_j
    for part in energy.counted:
        yield f"joules{'_modelled' if part.modelled else ''}/{part.part}", part.joules
