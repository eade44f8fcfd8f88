"""`python -m tests.recipes` writes the table of docs/recipes.md from the list of recipes. Measured columns stay as they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.recipes import RECIPES
from tests.recipes.recipe import EQUAL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
BEGIN = "<!-- The table begins: python -m tests.recipes makes it. -->"
END = "<!-- The table ends. -->"
_HEAD = "| recipe | goes | bits | DataLoader | ddlp | times DataLoader |\n| --- | --- | --- | --- | --- | --- |"


def written(page: str) -> str:
    """Return the page with the table that follows from the list. Raises ValueError if a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no table: it must have the lines {BEGIN} and {END}")
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    measured = {row[0].strip(): [cell.strip() for cell in row[3:]] for row in rows}
    ways = Counter(recipe.way for recipe in RECIPES)
    equal = sum(recipe.bits == EQUAL for recipe in RECIPES)
    parts = [
        f"{len(RECIPES)} recipes: {ways['whole']} go whole, {ways['prefix']} by prefix, {ways['host']} on the host; {equal} "
        "have `DataLoader`'s bits."
    ]
    for recipe in RECIPES:
        heading = f"### {recipe.group}"
        if heading not in parts:
            parts += [heading, _HEAD]
        cells = [recipe.name, recipe.way, recipe.bits, *measured.get(recipe.name, ["", "", ""])]
        parts[-1] += f"\n| {' | '.join(cells)} |"
    return "\n\n".join([before + BEGIN, *parts, END + after])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
