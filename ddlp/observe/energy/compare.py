"""Several results side by side: means of each label's (epochs, seeds), and ratios to one of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlp.errors import DDLPError
from ddlp.observe.energy.model import CSD
from ddlp.observe.energy.result import MACHINE, EnergyResult
from ddlp.observe.words import aligned

__all__ = ["Summary", "comparison", "summaries"]


@dataclass(frozen=True)
class Summary:
    """The results of one label: means for a ``unit``. That is a batch, or a run if some results lack a number of batches."""

    label: str
    unit: str
    runs: int
    seconds: float
    joules: float
    least_j: float
    most_j: float
    ratio: float | None  # of its joules to the baseline's
    parts: dict[str, float]
    modelled: tuple[str, ...]  # the parts that some result did not measure
    host_preparing_s: float | None
    host_cpu_s: float | None
    cost: float  # of a run, in ``currency``
    currency: str
    co2_g: float  # of a run
    how: str


def summaries(results: Sequence[EnergyResult], baseline: str | None = None) -> list[Summary]:
    """One summary for each label, in the order in which they first come. Unless it is named, the baseline is the first one.

    Raises:
        DDLPError: no results, or none with the baseline's label.
    """
    groups: dict[str, list[EnergyResult]] = {}
    for one in results:
        groups.setdefault(one.label, []).append(one)
    if not groups:
        raise DDLPError("no results to compare")
    baseline = next(iter(groups)) if baseline is None else baseline
    if baseline not in groups:
        raise DDLPError(f"no result is called {baseline!r}, only {', '.join(groups)}")
    per_batch = all(one.batches for one in results)
    reference = _mean(_joules(groups[baseline], per_batch))
    return [_summary(label, those, per_batch, reference) for label, those in groups.items()]


def _joules(those: Iterable[EnergyResult], per_batch: bool) -> list[float]:
    return [one.total_j / _share(one, per_batch) for one in those]


def _share(one: EnergyResult, per_batch: bool) -> int:
    return one.batches if per_batch and one.batches else 1


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def _summary(label: str, those: list[EnergyResult], per_batch: bool, reference: float | None) -> Summary:
    shares = [_share(one, per_batch) for one in those]
    joules = _joules(those, per_batch)
    parts: dict[str, list[float]] = {}
    for one, share in zip(those, shares, strict=True):
        for part in one.parts:
            parts.setdefault(part.part, []).append(part.joules / share)
    pairs = list(zip(those, shares, strict=True))
    return Summary(
        label=label,
        unit="batch" if per_batch else "run",
        runs=len(those),
        seconds=statistics.fmean(one.seconds / share for one, share in pairs),
        joules=statistics.fmean(joules),
        least_j=min(joules),
        most_j=max(joules),
        ratio=statistics.fmean(joules) / reference if reference else None,
        parts={part: statistics.fmean(values) for part, values in parts.items()},
        modelled=tuple(dict.fromkeys(part.part for one in those for part in one.parts if part.modelled)),
        host_preparing_s=_mean(one.host_preparing_s / share for one, share in pairs if one.host_preparing_s is not None),
        host_cpu_s=_mean(one.host_cpu_s / share for one, share in pairs if one.host_cpu_s is not None),
        cost=statistics.fmean(one.cost for one in those),
        currency=those[0].tariff.currency,
        co2_g=statistics.fmean(one.co2_g for one in those),
        how=" / ".join(dict.fromkeys(one.how for one in those)),
    )


def comparison(results: Sequence[EnergyResult], baseline: str | None = None) -> str:
    """The `summaries` as a table. Raises as they do."""
    found = summaries(results, baseline)
    unit, names = found[0].unit, list(dict.fromkeys(name for one in found for name in one.parts))
    reference = found[0].label if baseline is None else baseline
    head = ["", "runs", f"s/{unit}", f"J/{unit}", "least..most", f"/ {reference}", *names]
    head += [f"host preparing s/{unit}", f"host CPU s/{unit}", f"{found[0].currency}/run", "g CO2/run", "total is"]
    rows = [head]
    reference_star = next(_star(one) for one in found if one.label == reference)
    for one in found:
        star = _star(one)
        spread = f"{one.least_j:.4g}..{one.most_j:.4g}{star}" if one.runs > 1 else "-"
        row = [one.label, str(one.runs), _cell(one.seconds), _cell(one.joules) + star, spread]
        row += [_cell(one.ratio, ".3f") + ("" if one.ratio is None else star or reference_star)]
        row += [_cell(one.parts.get(name)) + ("*" if name in one.modelled else "") for name in names]
        row += [_cell(one.host_preparing_s), _cell(one.host_cpu_s)]
        row += [_cell(one.cost, ".3g") + star, _cell(one.co2_g, ".3g") + star, one.how]
        rows.append(row)
    lines = aligned(rows, left=(0, len(head) - 1))
    if any(one.modelled for one in found):
        lines.append("* modelled by watts times time, in whole or in part, not measured")
    if len({one.how for one in found}) > 1:
        lines.append("not all totals are of one kind (last column): compare the parts that were measured in all")
    if {CSD, MACHINE} <= set(names):
        lines.append("machine and csd are added: where that machine powers the device, its joules are in both")
    return "\n".join(lines)


def _star(one: Summary) -> str:
    """The mark beside a total that is modelled, in whole or in part."""
    return "*" if "modelled" in one.how else ""


def _cell(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)
