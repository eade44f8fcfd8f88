"""Recipes: data sets and transforms that people train with. The test here tries each; docs/recipes.md lists them.

`RECIPES` is the list, in the page's order. Its modules define the recipes: `operators` and `presets` of torchvision and timm,
`views` of self-supervised training, `usercode`, `datasets`, and `others`, which do not classify images. `fakes` makes each data
set's files in their real layout.
"""

from __future__ import annotations

from tests.recipes import datasets, operators, others, presets, usercode, views
from tests.recipes.recipe import Recipe

RECIPES: list[Recipe] = [
    *operators.RECIPES, *presets.RECIPES, *views.RECIPES, *usercode.RECIPES, *datasets.RECIPES, *others.RECIPES,
]  # fmt: skip
