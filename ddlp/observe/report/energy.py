"""The report's section on energy: results as `ddlp energy` and the meters have saved them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ddlp.observe.energy.result import EnergyResult
from ddlp.observe.report.words import Cell, number, seconds, table

__all__ = ["energy_section"]


def energy_section(results: Sequence[EnergyResult], source: Path | None) -> str:
    """A table with a line for each result: joules by part and a batch, cost, CO2. Each modelled figure is marked."""
    parts = list(dict.fromkeys(part.part for one in results for part in one.parts))
    head = ["", "epoch", "time", *(f"{part}, J" for part in parts), "total, J", "J/batch", "J/image", "cost", "CO2, g"]
    head.append("total is")
    rows: list[list[Cell]] = []
    for one in results:
        joules = {part.part: f"{number(part.joules)}{' (modelled)' if part.modelled else ''}" for part in one.parts}
        per_image = one.total_j / one.samples if one.samples else None
        totals = [
            number(one.total_j), number(one.j_per_batch), number(per_image), f"{one.cost:.3g} {one.tariff.currency}",
            number(one.co2_g),
        ]  # fmt: skip
        said = f" ({one.how})" if "modelled" in one.how else ""
        rows.append([
            one.label, "-" if one.epoch is None else str(one.epoch), seconds(one.seconds),
            *(joules.get(part, "-") for part in parts), *(f"{total}{said}" for total in totals), one.how,
        ])  # fmt: skip
    notes = dict.fromkeys(text for one in results for text in (*one.notes, *(f"no meter: {why}" for why in one.absent)))
    how = dict.fromkeys(f"{part.part}, {part.how}" for one in results for part in one.parts)
    listed = "".join(f"<li>{escape(text)}</li>" for text in (*how, *notes))
    return (
        f'<section class="energy"><h2>Energy</h2><p class="lead">As saved in <code>{escape(str(source))}</code>. '
        "Modelled is watts times time, not measured.</p>"
        f"{table(head, rows)}<ul class='notes'>{listed}</ul></section>"
    )
