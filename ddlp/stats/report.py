"""What an epoch did: who made how much, how long training waited, and how far it was from the bound."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from csd_engine.cache.shelf import CacheCounts
from csd_engine.machine.sizes import size_text
from ddlp.schedule.ledger import Ledger, Side
from ddlp.schedule.rates import Rates
from ddlp.stats.engines import MOST_CHANGES, Change, DeviceLive, devices_live
from ddlp.stats.engines import rows as engine_rows
from ddlp.stats.replaced import ReplacedSamples
from ddlp.stats.thread_cpu import thread_cpu_s
from ddlp.stats.waiting import Ceiling, WaitingVerdict, judge

CAUSES = ("start", "host", "csd", "transfer")
"""What training waited for: the epoch's first batch; a batch in work on the host; one in work on a device; one that a device
had made already, on its way into memory."""


@dataclass(frozen=True)
class EpochReport:
    """An epoch (or the part of it so far). Times in seconds, rates in samples a second, each side alone."""

    strategy: str
    epoch: int
    batches_cpu: int
    batches_csd: int
    samples: int
    seconds: float
    waiting_s: float  # the training loop waited for a batch
    host_cpu_s: float  # processor time of the host's workers and of bringing the devices' batches in; 0: not measured
    rate_cpu: float | None
    rate_csd: float | None  # of the devices at work; a lost one does not count any more
    notes: tuple[str, ...] = ()  # remarks on the devices
    waiting: Mapping[str, float] = field(default_factory=dict)  # waiting_s by `CAUSES`
    leases_taken_back: int = 0  # the host had the batch first, or the device retired before it began it
    leases_lost: int = 0  # the device failed, was gone, or its file was damaged: the host made the batch
    replaced: int = 0  # samples with bad images, which others have the place of; those before a resume included
    replaced_samples: tuple[str, ...] = ()  # the first of these, each with the reason; those before a resume are not named
    devices: Mapping[str, float] = field(default_factory=dict)  # rate_csd by the devices' names
    workers: int | None = None  # `num_workers`; None: not known
    processors: int | None = None  # of this computer, for this rank's process; None: not known
    ceiling: Ceiling | None = None  # by `DDLPLoader.replay`
    travels: bool = True  # a device could prepare the samples; False: only torch's own workers can, as of user code
    engines: tuple[DeviceLive, ...] = ()  # devices and engines of pools, at this moment or at the epoch's end
    changes: tuple[Change, ...] = ()  # of their number since the epoch began, the last 64; the first to join are no change
    cache: CacheCounts | None = None  # samples that used the host's cache, and what was written to it; None: there is none

    @property
    def bound_s(self) -> float | None:
        """The least time in which both sides together prepare these samples: n / (r_cpu + r_csd)."""
        rates = [r for r in (self.rate_cpu, self.rate_csd) if r]
        return self.samples / sum(rates) if rates else None

    @property
    def verdict(self) -> WaitingVerdict:
        """Whether training waits for data, what that costs, and what would help."""
        batches, start_s = self.batches_cpu + self.batches_csd, self.waiting.get("start", 0.0)
        batch = max(1.0, self.samples / max(1, batches))
        return judge(
            batches,
            self.seconds - start_s,
            self.waiting_s - start_s,
            start_s=start_s,
            ceiling=self.ceiling,
            host_per_s=self.rate_cpu / batch if self.rate_cpu and self.batches_cpu else None,
            devices_per_s={name: rate / batch for name, rate in self.devices.items()},
            workers=self.workers if self.batches_cpu else None,
            processors=self.processors,
            travels=self.travels,
        )

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._rows())
        return "\n".join([self._title(), *(f"{name:{width}}  {text}" for name, text in self._rows())])

    def _repr_html_(self) -> str:
        """As a table, for notebooks."""
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._rows())
        return f"<table><caption>{escape(self._title())}</caption>{rows}</table>"

    def _title(self) -> str:
        speed = f", {self.samples / self.seconds:,.0f} samples/s" if self.seconds else ""
        return f"epoch {self.epoch}, {self.strategy}: {self.samples:,} samples in {self.seconds:.2f} s{speed}"

    def _rows(self) -> list[tuple[str, str]]:
        """The rows below the title: a name and a text."""
        causes = ", ".join(f"{cause} {seconds:.2f} s" for cause, seconds in self.waiting.items() if seconds >= 0.005)
        share = f", {self.waiting_s / self.seconds:.0%} of the time" if self.seconds else ""
        rates = ((self.rate_cpu, "this host"), (self.rate_csd, "devices"))
        measured = [f"{who} {rate:,.0f} samples/s" for rate, who in rates if rate]
        itself = self.workers == 0 and not self.travels
        rows = [
            ("batches", f"{self.batches_cpu:,} by this host, {self.batches_csd:,} by devices"),
            ("preparing", f"{self.waiting_s:.2f} s{share}, by the training thread itself (num_workers=0)")
            if itself
            else ("waiting", f"{self.waiting_s:.2f} s{share}" + (f": {causes}" if causes else "")),
            ("alone", ", ".join(measured) or "not measured"),
        ]
        if self.bound_s is not None:
            rows.append(("bound", f"{self.bound_s:.2f} s, the least time for these samples at these rates"))
        if self.host_cpu_s:
            rows.append(("host CPU", f"{self.host_cpu_s:.2f} s of processor time"))
        if self.leases_taken_back or self.leases_lost:
            rows.append(("leases", f"{self.leases_taken_back:,} taken back by this host, {self.leases_lost:,} lost"))
        if self.replaced:
            first = f", the first {self.replaced_samples[0]}" if self.replaced_samples else ""
            rows.append(("replaced", f"{self.replaced:,} samples that could not be prepared, by others{first}"))
        if self.cache is not None:
            kept = f"{self.cache.hits:,} samples used it, {self.cache.misses:,} did not"
            rows.append(("cache", f"{kept}; {size_text(self.cache.written_bytes)} written"))
        rows += engine_rows(self.engines, self.changes)
        rows.append(("verdict", str(self.verdict)))
        return rows + [("note", text) for text in self.notes]


@dataclass
class Counts:
    """What an epoch has counted so far; times are the monotonic clock's.

    ``ledger``: the epoch's, if it has one. Without a ledger, torch's own workers prepare the batches. Then ``before`` is the
    number of batches delivered before a resume, and ``rates`` has how fast the workers are.
    """

    ledger: Ledger | None = None
    epoch: int = 0
    strategy: str = "cpu"  # for the report, if there is no ledger
    before: int = 0
    rates: Rates = field(default_factory=Rates)
    sides: dict[Side, int] = field(default_factory=lambda: {Side.HOST: 0, Side.CSD: 0})
    samples: int = 0
    waiting: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    host_cpu_s: float = 0.0
    queued_s: float = 0.0  # in which the host's workers had work and no processor; ddlp's own tell it at their end
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    first_s: float | None = None  # when the first batch was delivered
    process_cpu_s: float = 0.0  # of the whole process from the first delivered batch to the epoch's end; 0 before that
    batch_bytes: int | None = None  # of the first batch's tensors, if torch's own workers prepare; None: not known
    asked_s: float | None = None  # since when training waits for a batch; None: it does not
    replaced: ReplacedSamples = field(default_factory=ReplacedSamples)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    _published: dict[int, float] = field(default_factory=dict)  # position -> when
    _cpu_before_s: float | None = None  # the process's, when the first batch was delivered

    @property
    def seconds(self) -> float:
        """From its beginning to its end, or until now."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s

    @property
    def waiting_now_s(self) -> float:
        """How long training has waited by now for the batch that it wants."""
        asked_s = self.asked_s
        return 0.0 if asked_s is None or self.ended_s is not None else time.monotonic() - asked_s

    @property
    def taken_back(self) -> int:
        """Leases of batches that the host had first, or that a device had not begun when it retired."""
        return 0 if self.ledger is None else self.ledger.taken_back

    @property
    def lost(self) -> int:
        """Leases that came to nothing on the device's side."""
        return 0 if self.ledger is None else self.ledger.came_back

    def _devices(self) -> list[str]:
        """The devices at work or about to join; after the epoch, only those at work.

        Each epoch looks for a lost device anew, and may be over before it finds the device.
        """
        if self.ledger is None:
            return []
        if self.ended_s is None:
            return self.ledger.devices_there
        return [name for name, account in self.ledger.devices.items() if account.alive]

    def changed(self, device: str, reason: str) -> None:
        """A device has come or goes: the number of those at work is another one."""
        assert self.ledger is not None
        engines = sum(account.alive and not account.retiring for account in self.ledger.devices.values())
        self.changes.append(Change(time.monotonic() - self.started_s, engines, device, reason))

    def over(self) -> None:
        """All batches are delivered, or the epoch is broken off."""
        self.ended_s = time.monotonic()
        if self._cpu_before_s is not None:
            self.process_cpu_s = time.process_time() - self._cpu_before_s

    def published(self, position: int) -> None:
        """A device has made this batch."""
        self._published[position] = time.monotonic()

    def delivered(self, position: int, side: Side, samples: int, asked_s: float, got_s: float) -> None:
        """A batch of ``samples`` samples was delivered. Training waited for it from ``asked_s`` to ``got_s``."""
        published_s = self._published.pop(position, asked_s)
        if not self.samples:
            self.waiting["start"] += got_s - asked_s
            self.first_s, self._cpu_before_s = got_s, time.process_time()
        elif side is Side.HOST:
            self.waiting["host"] += got_s - asked_s
        else:
            there_s = max(asked_s, published_s)
            self.waiting["csd"] += there_s - asked_s
            self.waiting["transfer"] += got_s - there_s
        self.asked_s = None
        self.sides[side] += 1
        self.samples += samples

    def made(self, samples: int, busy_s: float, cpu_s: float) -> float:
        """One of torch's own workers has made a batch. It took ``busy_s`` seconds, and ``cpu_s`` processor seconds.

        Returns the batch's size as a part of a full batch.
        """
        self.rates.first_batches(samples)
        part = samples / max(1, self.rates.full_batch)
        self.rates.host.add(busy_s, part)
        self.rates.host_cpu.add(cpu_s, part)
        self.host_cpu_s += cpu_s
        return part

    def cpu(self, before: float) -> float:
        """Count this thread's processor seconds since ``before``, by `thread_cpu_s`; returns those until now."""
        now = thread_cpu_s()
        self.host_cpu_s += now - before
        return now

    def report(self, strategy: str, rates: Rates, full_batch: int, notes: tuple[str, ...]) -> EpochReport:
        """As a report; ``full_batch`` turns batches a second into samples."""
        r_cpu, r_csd = rates.host.per_s, rates.csd_per_s(self._devices())
        devices = {name: r * full_batch for name in self._devices() if (r := rates.csd_per_s([name])) is not None}
        return EpochReport(
            strategy=strategy,
            epoch=self.epoch,
            batches_cpu=self.sides[Side.HOST],
            batches_csd=self.sides[Side.CSD],
            samples=self.samples,
            seconds=self.seconds,
            waiting_s=sum(self.waiting.values()),
            host_cpu_s=self.host_cpu_s,
            rate_cpu=None if r_cpu is None else r_cpu * full_batch,
            rate_csd=None if r_csd is None else r_csd * full_batch,
            notes=notes,
            waiting=dict(self.waiting),
            leases_taken_back=self.taken_back,
            leases_lost=self.lost,
            replaced=len(self.replaced),
            replaced_samples=tuple(self.replaced.named),
            devices=devices,
            travels=self.ledger is not None,
            engines=() if self.ledger is None else devices_live(self.ledger, rates, full_batch),
            changes=tuple(self.changes),
        )
