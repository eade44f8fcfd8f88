"""Several results side by side: means of each label's (epochs, seeds), and ratios to one of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlp.errors import DDLPError
from ddlp.observe.energy.model import CSD
from ddlp.observe.energy.result import MACHINE, EnergyResult
from ddlp.stats.words import aligned

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
    for result in results:
        groups.setdefault(result.label, []).append(result)
    if not groups:
        raise DDLPError("no results to compare")
    baseline = next(iter(groups)) if baseline is None else baseline
    if baseline not in groups:
        raise DDLPError(f"no result is called {baseline!r}, only {', '.join(groups)}")
    per_batch = all(result.batches for result in results)
    reference = _mean(_joules(groups[baseline], per_batch))
    return [_summary(label, those, per_batch, reference) for label, those in groups.items()]


def _joules(those: Iterable[EnergyResult], per_batch: bool) -> list[float]:
    return [result.total_j / _share(result, per_batch) for result in those]


def _share(result: EnergyResult, per_batch: bool) -> int:
    return result.batches if per_batch and result.batches else 1


def _mean(values: Iterable[float]) -> float | None:
    samples = list(values)
    return statistics.fmean(samples) if samples else None


def _summary(label: str, those: list[EnergyResult], per_batch: bool, reference: float | None) -> Summary:
    shares = [_share(result, per_batch) for result in those]
    joules = _joules(those, per_batch)
    parts: dict[str, list[float]] = {}
    for result, share in zip(those, shares, strict=True):
        for part in result.parts:
            parts.setdefault(part.part, []).append(part.joules / share)
    pairs = list(zip(those, shares, strict=True))
    return Summary(
        label=label,
        unit="batch" if per_batch else "run",
        runs=len(those),
        seconds=statistics.fmean(result.seconds / share for result, share in pairs),
        joules=statistics.fmean(joules),
        least_j=min(joules),
        most_j=max(joules),
        ratio=statistics.fmean(joules) / reference if reference else None,
        parts={part: statistics.fmean(values) for part, values in parts.items()},
        modelled=tuple(dict.fromkeys(part.part for result in those for part in result.parts if part.modelled)),
        host_preparing_s=_mean(
            result.host_preparing_s / share for result, share in pairs if result.host_preparing_s is not None
        ),
        host_cpu_s=_mean(result.host_cpu_s / share for result, share in pairs if result.host_cpu_s is not None),
        cost=statistics.fmean(result.cost for result in those),
        currency=those[0].tariff.currency,
        co2_g=statistics.fmean(result.co2_g for result in those),
        how=" / ".join(dict.fromkeys(result.how for result in those)),
    )


def comparison(results: Sequence[EnergyResult], baseline: str | None = None) -> str:
    """The `summaries` as a table. Raises as they do."""
    groups = summaries(results, baseline)
    unit, names = groups[0].unit, list(dict.fromkeys(name for group in groups for name in group.parts))
    reference = groups[0].label if baseline is None else baseline
    head = ["", "runs", f"s/{unit}", f"J/{unit}", "least..most", f"/ {reference}", *names]
    head += [f"host preparing s/{unit}", f"host CPU s/{unit}", f"{groups[0].currency}/run", "g CO2/run", "total is"]
    rows = [head]
    reference_star = next(_star(group) for group in groups if group.label == reference)
    for group in groups:
        star = _star(group)
        spread = f"{group.least_j:.4g}..{group.most_j:.4g}{star}" if group.runs > 1 else "-"
        row = [group.label, str(group.runs), _cell(group.seconds), _cell(group.joules) + star, spread]
        row += [_cell(group.ratio, ".3f") + ("" if group.ratio is None else star or reference_star)]
        row += [_cell(group.parts.get(name)) + ("*" if name in group.modelled else "") for name in names]
        row += [_cell(group.host_preparing_s), _cell(group.host_cpu_s)]
        row += [_cell(group.cost, ".3g") + star, _cell(group.co2_g, ".3g") + star, group.how]
        rows.append(row)
    lines = aligned(rows, left=(0, len(head) - 1))
    if any(group.modelled for group in groups):
        lines.append("* modelled by watts times time, in whole or in part, not measured")
    if len({group.how for group in groups}) > 1:
        lines.append("not all totals are of one kind (last column): compare the parts that were measured in all")
    if {CSD, MACHINE} <= set(names):
        lines.append("machine and csd are added: where that machine powers the device, its joules are in both")
    return "\n".join(lines)


def _star(summary: Summary) -> str:
    """The mark beside a total that is modelled, in whole or in part."""
    return "*" if "modelled" in summary.how else ""


def _cell(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)
