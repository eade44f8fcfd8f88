"""What was measured: plain data, printed, written and read, compared."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from csd_engine.protocol.fields import MAX_INT, Check, an_object, count, integer, list_of, number, optional, truth
from csd_engine.protocol.schema import checked_fields, text_of
from ddlp.errors import DDLPError
from ddlp.observe.energy.model import Tariff
from ddlp.stats.words import aligned

__all__ = ["FORMAT", "MACHINE", "EnergyResult", "PartEnergy", "find", "load", "save"]

FORMAT = "ddlp energy 1"
MACHINE = "machine"
_INSIDE_MACHINE = ("cpu", "dram", "gpu")


@dataclass(frozen=True)
class PartEnergy:
    """Joules of one part: ``sensors`` that measured it, or the watts of the model. ``covered``: share of the time, 0 to 1."""

    part: str
    joules: float
    modelled: bool
    sensors: tuple[str, ...]
    covered: float = 1.0

    @property
    def how(self) -> str:
        """Measured or modelled, and by what."""
        return f"{'modelled' if self.modelled else 'measured'}: {', '.join(self.sensors)}"


@dataclass(frozen=True)
class EnergyResult:
    """The energy of one epoch, or of anything else. Energy in joules, times in seconds; None: not known.

    Attributes:
        host_cpu_s: processor time of the host's workers and of bringing the devices' batches in (of a command: all of its).
        host_preparing_s: time for which the host's processor and memory prepared batches, all workers together; divided by
            the batches this is what the paper's Table IX shows.
        absent: the missing meters, and why they are missing.
    """

    label: str
    strategy: str | None
    epoch: int | None
    seconds: float
    batches: int | None
    samples: int | None
    workers: int
    parts: tuple[PartEnergy, ...]
    host_cpu_s: float | None = None
    host_preparing_s: float | None = None
    tariff: Tariff = Tariff()  # noqa: RUF009  (immutable)
    notes: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[PartEnergy, ...]:
        """The parts that add up to the total. If the whole machine is metered, the parts inside it are left out."""
        if any(part.part == MACHINE for part in self.parts):
            return tuple(part for part in self.parts if part.part not in _INSIDE_MACHINE)
        return self.parts

    @property
    def total_j(self) -> float:
        """Joules of all `counted` parts."""
        return sum(part.joules for part in self.counted)

    @property
    def how(self) -> str:
        """Whether the total is ``measured``, ``modelled`` or ``partly modelled``; ``not metered`` where it is nothing."""
        kinds = {part.modelled for part in self.counted}
        return {(): "not metered", (False,): "measured", (True,): "modelled"}.get(tuple(kinds), "partly modelled")

    @property
    def j_per_batch(self) -> float | None:
        """Joules a batch."""
        return self.total_j / self.batches if self.batches else None

    @property
    def cost(self) -> float:
        """The cost by the tariff, in its currency."""
        return self.tariff.cost(self.total_j)

    @property
    def co2_g(self) -> float:
        """Grams of CO2 equivalents."""
        return self.tariff.co2_g(self.total_j)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON, with the derived figures."""
        parts = [{**asdict(part), "how": part.how} for part in self.parts]
        return {
            **asdict(self), "parts": parts, "total_j": self.total_j, "total_how": self.how, "cost": self.cost,
            "co2_g": self.co2_g, "j_per_batch": self.j_per_batch,
        }  # fmt: skip

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> EnergyResult:
        """The result from the data of `to_data`; derived figures are computed again.

        Raises DDLPError for other data: names the field, what was found, and what it must be.
        """
        try:
            given = an_object(data)
            fields = checked_fields("the result", {name: given[name] for name in _RESULT if name in given}, _RESULT, {})
        except ValueError as error:
            raise DDLPError(f"this is no energy result: {error}. Measure again.") from None
        return EnergyResult(**fields)

    def __str__(self) -> str:
        what = [f"{self.label}:", f"{self.seconds:.3f} s"]
        what += [f"{self.batches} batches"] if self.batches is not None else []
        what += [f"{self.samples} samples"] if self.samples is not None else []
        rows = [("", "joules", "J/batch", "W", "")]
        for part in self.parts:
            note = part.how + ("" if part in self.counted else "; inside machine, not added")
            rows.append((part.part, *self._figures(part.joules), note))
        modelled_j = sum(part.joules for part in self.counted if part.modelled)
        part_of_it = f": {modelled_j:.4g} J of it" if self.how == "partly modelled" else ""
        rows.append(("total", *self._figures(self.total_j), self.how + part_of_it))
        lines = [", ".join(what).replace(":,", ":"), *aligned(rows, left=(0, 4))]
        if self.host_preparing_s is not None or self.host_cpu_s is not None:
            lines.append("host CPU and DRAM: " + ", ".join(self._host_times()))
        lines.append(
            f"cost {self.cost:.3g} {self.tariff.currency} at {self.tariff.price_per_kwh:g} a kWh; CO2 {self.co2_g:.3g} g at "
            f"{self.tariff.co2_g_per_kwh:g} g a kWh" + (f" ({self.how})" if self.how != "measured" else "")
        )
        lines += [f"- {text}" for text in self.notes]
        lines += [f"no meter: {text}" for text in self.absent]
        return "\n".join(lines)

    def _figures(self, joules: float) -> tuple[str, str, str]:
        per_batch = f"{joules / self.batches:.4g}" if self.batches else "-"
        return f"{joules:.4g}", per_batch, f"{joules / self.seconds:.4g}" if self.seconds else "-"

    def _host_times(self) -> Iterable[str]:
        for seconds, what in ((self.host_preparing_s, "preparing"), (self.host_cpu_s, "of processor time")):
            if seconds is not None:
                yield f"{seconds:.4g} s {what}" + (f" ({seconds / self.batches:.4g} s a batch)" if self.batches else "")


def _part(value: Any) -> PartEnergy:
    given = an_object(value)
    return PartEnergy(**checked_fields("a part", {name: given[name] for name in _PART if name in given}, _PART, {}))


def _tariff(value: Any) -> Tariff:
    return Tariff(**checked_fields("tariff", value, _TARIFF, {}))


_text: Check = text_of(1 << 16)
_texts = list_of(_text, 1 << 16)
_amount = number(-1e15, 1e15)
_seconds = number(0, 1e10)
_PART: dict[str, Check] = {"part": _text, "joules": _amount, "modelled": truth, "sensors": _texts, "covered": number(0, 1e3)}
_TARIFF: dict[str, Check] = {"price_per_kwh": _amount, "currency": _text, "co2_g_per_kwh": _amount}
_RESULT: dict[str, Check] = {
    "label": _text, "strategy": optional(_text), "epoch": optional(integer(-MAX_INT, MAX_INT)), "seconds": _seconds,
    "batches": optional(count), "samples": optional(count), "workers": count, "parts": list_of(_part, 1 << 16),
    "host_cpu_s": optional(_seconds), "host_preparing_s": optional(_seconds), "tariff": _tariff, "notes": _texts,
    "absent": _texts,
}  # fmt: skip


def save(path: str | os.PathLike[str], results: Sequence[EnergyResult], about: Mapping[str, Any] | None = None) -> None:
    """Write results as JSON; ``about``: what else is worth knowing of the run."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"format": FORMAT, "about": dict(about or {}), "results": [result.to_data() for result in results]}
    path.write_text(json.dumps(data, indent=1) + "\n")


def load(path: str | os.PathLike[str]) -> list[EnergyResult]:
    """Read what `save` wrote. Raises DDLPError for a file that is none of ours."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DDLPError(f"{path} can't be read: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DDLPError(f"{path} is no energy record ({FORMAT!r} is not in it); ddlp energy run --out FILE makes one")
    try:
        results = data.get("results", [])
        if not isinstance(results, list):
            raise DDLPError(f"results is {results!r:.80}; it must be a list")
        return [EnergyResult.from_data(result) for result in results]
    except DDLPError as error:
        raise DDLPError(f"{path}: {error}") from None


def find(run: str | os.PathLike[str]) -> Path | None:
    """The newest file of results in a run's directory: energy*.json or *.energy.json."""
    paths = {path for pattern in ("energy*.json", "*.energy.json") for path in Path(run).glob(pattern)}
    ours = [path for path in paths if FORMAT in path.read_text(errors="replace")[:200]]
    return max(ours, key=lambda path: path.stat().st_mtime, default=None)
