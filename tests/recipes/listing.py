"""The list of all recipes, in the order of the table."""

from __future__ import annotations

from tests.recipes import datasets, operators, others, presets, usercode, views
from tests.recipes.recipe import Recipe

RECIPES: list[Recipe] = [
    *operators.RECIPES, *presets.RECIPES, *views.RECIPES, *usercode.RECIPES, *datasets.RECIPES, *others.RECIPES,
]  # fmt: skip
