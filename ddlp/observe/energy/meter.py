"""`EnergyMeter`: what an epoch, or anything else between two moments, takes in energy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from csd_engine.errors import EngineError
from ddlp.errors import DDLPError
from ddlp.observe.energy.device import DeviceSensors
from ddlp.observe.energy.external import ExternalMeter
from ddlp.observe.energy.model import CSD, HOST, PaperModel, Tariff
from ddlp.observe.energy.nvml import find_gpus
from ddlp.observe.energy.result import MACHINE, EnergyResult, PartEnergy
from ddlp.observe.energy.sources import YOURS, Source, local_sources
from ddlp.observe.energy.tally import Tally
from ddlp.process.ranks import here

if TYPE_CHECKING:
    from ddlp.devices.device import Device
    from ddlp.stats.report import EpochReport

__all__ = ["EnergyMeter"]

_TROUBLE = (DDLPError, EngineError, OSError)
_LAST_READING_S = 10.0
_LONGEST_GAP_S = 5.0  # at least: a thread may be late on a busy machine
_ENOUGH = 0.98  # if this part of the time was metered, it counts as all


class _Reader:
    """One source while it is measured, and the thread that reads it and closes it at the end."""

    def __init__(self, source: Source, clock: Callable[[], float]) -> None:
        self.source = source
        self.tallies: dict[str, tuple[str, Tally]] = {}  # sensor -> its part and joules
        self.trouble = ""
        self._clock = clock
        self._longest_s = max(_LONGEST_GAP_S, 10 * source.interval_s)
        self._ended_s = float("inf")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddlp-energy", daemon=True)

    def start(self) -> None:
        """Read it for the first time. If that may take long, its thread does it, and the caller does not wait."""
        if self.source.prompt:
            self._read()
        self._thread.start()

    def stop(self, ended_s: float) -> None:
        """Read it for the last time, see `start`."""
        self._ended_s = ended_s  # a later reading counts as one at this time
        if self.source.prompt:
            self._read()
        self._stop.set()

    def join(self) -> None:
        """Wait for its thread, at most `_LAST_READING_S`."""
        if self._thread.ident is None:
            self.source.close()
            return
        self._thread.join(_LAST_READING_S)
        if self._thread.is_alive():
            self.trouble = "it did not answer any more"

    @property
    def parts(self) -> set[str]:
        """What it has measured."""
        return {part for part, tally in self.tallies.values() if tally.covered_s > 0}

    def _run(self) -> None:
        try:
            if not self.source.prompt:
                self._read()
            while not self._stop.wait(self.source.interval_s):
                self._read()
            if not self.source.prompt:
                self._read()
        finally:
            self.source.close()

    def _read(self) -> None:
        with self._lock:
            before_s = self._clock()
            try:
                readings = self.source.read()
            except _TROUBLE as error:
                self.trouble = str(error)
                return
            now_s = min((before_s + self._clock()) / 2, self._ended_s)
            for reading in readings:
                if reading.sensor not in self.tallies:
                    self.tallies[reading.sensor] = reading.part, Tally(self._longest_s)
                self.tallies[reading.sensor][1].add(reading, now_s)


def _devices(csd: str | Device | Iterable[str | Device] | None) -> list[Device]:
    if csd is None:
        return []
    from ddlp.devices.device import Device  # brings zmq, which not every user needs

    devices = [csd] if isinstance(csd, (str, Device)) else csd
    try:
        return [Device.at(device) if isinstance(device, str) else device for device in devices]
    except ValueError as error:
        raise DDLPError(str(error)) from None


class EnergyMeter:
    """Measures what happens within ``with``. It measures anew each time, so one meter is enough for all epochs of a run.

        meter = EnergyMeter.auto()
        with meter:
            for images, labels in loader: ...
        print(meter.result(loader.report(), workers=loader.num_workers))

    It counts the whole computer, with all its processes: if several ranks share one, let one rank measure. That rank knows only
    its own report and workers. The result counts the same for each other rank, since all train as many batches.

    Args:
        sources: what is read; `auto` finds them.
        absent: meters that are not there, and why, for the results.
        model: the model that stands in for missing meters of the host and the devices; None: no model.
        devices: how many devices the run uses, metered or not.
        tariff: price and emissions.
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        sources: Sequence[Source] = (),
        absent: Sequence[str] = (),
        *,
        model: PaperModel | None = PaperModel(),  # noqa: B008  (immutable)
        devices: int = 0,
        tariff: Tariff = Tariff(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sources = tuple(sources)
        self.absent = tuple(absent)
        self._model = model
        self._devices = devices
        self._tariff = tariff
        self._clock = clock
        self._readers: list[_Reader] = []
        self._failed: list[str] = []
        self._began_s = 0.0
        self._running = False
        self._seconds: float | None = None

    @classmethod
    def auto(
        cls,
        csd: str | Device | Iterable[str | Device] | None = None,
        external: Iterable[str] = (),
        *,
        csd_sensors: Iterable[str] = (),
        model: PaperModel | None = PaperModel(),  # noqa: B008
        tariff: Tariff = Tariff(),  # noqa: B008
        sys: str = "/sys",
    ) -> EnergyMeter:
        """A meter of all that can be measured here: RAPL, hwmon, NVIDIA's GPUs, the devices' own sensors.

        Args:
            csd: the devices, as DDLPLoader's ``csd=``; None: the engine on this machine, which the host's meters see.
            external: meters of yours, see `ddlp.observe.energy.external`. Sensors found here for the same parts are not used.
            csd_sensors: which of the devices' sensors count; none: those that together are the whole device.
            model, tariff: see the class.
            sys: where /sys is.

        Raises:
            DDLPError: an external meter that does not work, or a device that is not known.
        """
        meters = [ExternalMeter(spec) for spec in external]
        yours = {meter.part for meter in meters}
        local, absent = local_sources(sys, yours)
        gpus, no_gpus = find_gpus()
        if gpus is not None and "gpu" in yours:
            no_gpus, gpus = f"{gpus.name}: {YOURS}", None
        sources: list[Source] = [*local, *([gpus] if gpus is not None else [])]
        absent += [no_gpus] if no_gpus else []
        devices = _devices(csd)
        if CSD in yours:
            absent += [f"{device.label}: {YOURS}" for device in devices]
        else:
            sources += [DeviceSensors(device, tuple(csd_sensors)) for device in devices]
        for meter in meters:
            meter.open()
            sources.append(meter)
        return cls(sources, absent, model=model, devices=len(devices), tariff=tariff)

    def __enter__(self) -> EnergyMeter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to measure; what was measured before is forgotten. Raises DDLPError while a measurement is under way."""
        if self._running:
            raise DDLPError("this EnergyMeter measures already; stop it first, or make another one")
        self._readers, self._failed, self._seconds, self._running = [], [], None, True
        try:
            for source in self.sources:
                try:
                    source.open()
                    self._readers.append(_Reader(source, self._clock))
                except _TROUBLE as error:
                    self._failed.append(f"{source.name}: {error}")
            self._began_s = self._clock()
            for reader in self._readers:
                reader.start()
        except BaseException:
            self.stop()
            self._seconds = None
            raise

    def stop(self) -> None:
        """Read all meters for the last time and let them go. Does nothing where nothing is measured."""
        if not self._running:
            return
        self._running = False
        ended_s = self._clock()
        self._seconds = ended_s - self._began_s
        for reader in self._readers:
            reader.stop(ended_s)
        for reader in self._readers:
            reader.join()
            for _, tally in reader.tallies.values():
                tally.finish(self._began_s, ended_s)

    def result(
        self,
        report: EpochReport | None = None,
        *,
        workers: int = 0,
        batches: int | None = None,
        samples: int | None = None,
        label: str = "",
        host_cpu_s: float | None = None,
    ) -> EnergyResult:
        """The last measurement. The model's figures stand in for the host and the devices if nothing measured them.

        Args:
            report: the loader's, of the epoch that was measured: strategy, batches, samples, the host's times.
            workers: worker processes beside the training one, for the model; of several ranks, this one's.
            batches, samples: of all ranks on this computer; for use without a report, or if more than its epoch was measured.
            label: what it is called in comparisons; the strategy by default.
            host_cpu_s: processor seconds of the host, without a report.

        Raises:
            DDLPError: nothing was measured, or the measurement is under way.
        """
        if self._seconds is None or self._running:
            raise DDLPError("nothing was measured yet: result() comes after the with block (or after stop())")
        seconds = self._seconds
        strategy = report.strategy if report is not None else None
        notes = [text for reader in self._readers for _, tally in reader.tallies.values() for text in tally.notes]
        notes += [f"{reader.source.name}: {reader.trouble}" for reader in self._readers if reader.trouble]
        those = here()
        ranks = 1 if those is None else those.local_ranks
        parts = self._measured(seconds, notes)
        self._add_modelled(parts, strategy, workers, ranks, seconds, notes)
        if ranks > 1:
            notes.append(f"{ranks} ranks on this computer: the report and the workers are one's, and count {ranks} times")
        if int(os.environ.get("LOCAL_RANK") or 0):
            notes.append("every rank's meter counts the whole computer: add up those of one rank a computer only")
        preparing_s = None
        if report is not None:
            rank_batches = report.batches_cpu + report.batches_csd
            batches = ranks * rank_batches if batches is None else batches
            samples = ranks * report.samples if samples is None else samples
            host_cpu_s = (ranks * report.host_cpu_s or None) if host_cpu_s is None else host_cpu_s
            if report.rate_cpu and rank_batches:
                preparing_s = ranks * report.samples * report.batches_cpu / rank_batches / report.rate_cpu
            elif not report.batches_cpu:
                preparing_s = 0.0
        return EnergyResult(
            label=label or strategy or "run",
            strategy=strategy,
            epoch=report.epoch if report is not None else None,
            seconds=seconds,
            batches=batches,
            samples=samples,
            workers=workers,
            parts=tuple(parts),
            host_cpu_s=host_cpu_s,
            host_preparing_s=preparing_s,
            tariff=self._tariff,
            notes=tuple(dict.fromkeys(notes)),
            absent=(*self.absent, *self._failed),
        )

    def _measured(self, seconds: float, notes: list[str]) -> list[PartEnergy]:
        by_part: dict[str, list[tuple[str, Tally]]] = {}
        for reader in self._readers:
            for sensor, (part, tally) in reader.tallies.items():
                if tally.silent:
                    notes.append(f"{sensor} gave no reading: it slept all the time, or can't be read; its joules are missing")
                if tally.covered_s > 0:
                    by_part.setdefault(part, []).append((sensor, tally))
        parts = []
        for part, those in by_part.items():
            covered = min(1.0, min(tally.covered_s for _, tally in those) / seconds) if seconds > 0 else 0.0
            if covered < _ENOUGH:
                notes.append(f"{part} was metered for {covered:.0%} of the time only; the rest is missing in its joules")
            names = tuple(sensor for sensor, _ in those)
            parts.append(PartEnergy(part, sum(tally.joules for _, tally in those), False, names, covered))
        return parts

    def _unmetered(self) -> int:
        """How many devices no meter has measured. There is at least one device: the engine on this computer."""
        metering = [reader.source for reader in self._readers if CSD in reader.parts]
        if any(isinstance(source, ExternalMeter) for source in metering):
            return 0  # a meter of the user's counts them all
        return max(0, max(1, self._devices) - len(metering))

    def _add_modelled(
        self, parts: list[PartEnergy], strategy: str | None, workers: int, ranks: int, seconds: float, notes: list[str]
    ) -> None:
        if self._model is None:
            return
        there, unmetered = {part.part for part in parts}, self._unmetered()
        strategy = strategy or ("wrr" if self._devices else None)
        watts = self._model.watts(strategy, workers, ranks=ranks, devices=unmetered)
        host_measured = bool(there & {HOST, MACHINE})
        if HOST in watts and not host_measured:
            parts.append(_modelled(HOST, watts[HOST], seconds))
        if CSD not in watts or not unmetered:
            return
        if self._devices:
            # A part of its own, beside the measured devices.
            parts.append(_modelled(f"unmetered {CSD}" if CSD in there else CSD, watts[CSD], seconds))
        elif host_measured:
            notes.append("the engine ran on this computer: its joules are among the host's")
        else:
            notes.append("csd: the engine ran on this computer; the watts are a device's that would prepare as fast")
            parts.append(_modelled(CSD, watts[CSD], seconds))


def _modelled(part: str, power_w: float, seconds: float) -> PartEnergy:
    return PartEnergy(part, power_w * seconds, True, (f"{power_w:g} W",), 1.0)
