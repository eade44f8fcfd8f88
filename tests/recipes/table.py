"""The outcomes as docs/recipes.md shows them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import spread
from ddlp.errors import DDLPError
from tests.recipes.recipe import Recipe
from tests.recipes.trial import SAME, Outcome

__all__ = ["BEGIN", "END", "SLOW", "around", "shown", "summary", "write"]

BEGIN = "<!-- The table begins: python -m tests.recipes --write docs/recipes.md makes it. -->"
END = "<!-- The table ends. -->"
#: No recipe should be slower than this, in times DataLoader's rate.
SLOW = 0.95
_HEAD = "| recipe | works | goes | bits | DataLoader | ddlp | times DataLoader |\n| --- | --- | --- | --- | --- | --- | --- |"


def shown(recipes: Sequence[Recipe], outcomes: Mapping[str, Outcome]) -> str:
    """Return the table in Markdown, with a heading for each group."""
    parts: list[str] = []
    for recipe in recipes:
        heading = f"### {recipe.group}"
        if heading not in parts:
            parts += [heading, _HEAD]
        parts[-1] += "\n" + _row(recipe, outcomes.get(recipe.name))
    return "\n\n".join(parts)


def _row(recipe: Recipe, outcome: Outcome | None) -> str:
    if outcome is None or outcome.missing:
        why = "not tried" if outcome is None else f"not tried: pip install {' '.join(outcome.missing)}"
        cells = [why, "", "", "", "", ""]
    else:
        timed = bool(outcome.ours)
        speeds = [f"{statistics.median(one):,.0f}" if timed else "" for one in (outcome.theirs, outcome.ours)]
        works = "yes" if outcome.works else f"no: {outcome.error or 'wrong bits'}"
        cells = [works, outcome.goes, outcome.bits, *speeds, spread(outcome.ratio, ".2f") if timed else ""]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in [recipe.name, *cells]) + " |"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return a summary of all outcomes in a few lines."""
    tried = [one for one in outcomes if not one.missing]
    ways = {way: sum(one.goes == way for one in tried) for way in ("whole", "prefix", "host")}
    lines = [
        f"{len(outcomes)} recipes: {sum(one.works for one in tried)} work, {len(outcomes) - len(tried)} not tried for want of "
        f"a package. {ways['whole']} go whole, {ways['prefix']} by prefix, {ways['host']} on the host. "
        f"Bits compared: {sum(one.bits == SAME for one in tried)} equal, "
        f"{sum(bool(one.bits) and not one.works and not one.error for one in tried)} wrong."
    ]
    slow = [one for one in tried if one.ours and statistics.median(one.ratio) < SLOW]
    if slow:
        named = ", ".join(f"{one.name} ({statistics.median(one.ratio):.2f})" for one in slow)
        lines.append(f"Below {SLOW} times DataLoader: {named}.")
    broken = [one.name for one in tried if not one.works]
    if broken:
        lines.append(f"Do not work: {', '.join(broken)}.")
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put `text` between the two marks of the page, and leave the rest of it alone. Raises DDLPError as `around` does."""
    before, after = around(path)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def around(path: Path) -> tuple[str, str]:
    """Return the texts above and below the page's table.

    Raises:
        DDLPError: the page can't be read, or one of the marks is missing.
    """
    try:
        page = path.read_text()
    except OSError as error:
        raise DDLPError(f"--write {path} can't be read: {error.strerror}. It must be a page with the line {BEGIN}") from None
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DDLPError(f"--write {path} has no table of recipes: it must have the lines {BEGIN} and {END}")
    return before, after
