"""A recipe: a data set, its transforms, and the loader's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: Writes a data set's files below an empty folder, from JPEG files in RGB.
MakeFiles = Callable[[Path, Sequence[Path]], None]
#: Opens the data set below that folder with a transform, as its users do.
OpenSet = Callable[[Path, Any], Any]
#: Returns the transform, for training, or with fixed draws (True), so that two loaders must give the same samples.
MakeTransform = Callable[[bool], Any]

Way = Literal["whole", "prefix", "host"]
Draws = Literal["none", "fixed", "free"]

EQUAL, BY_ONE, NOT_COMPARED = "equal", "off by 1 of 255 in less than 1 of 10,000 values", "not compared"


@dataclass(frozen=True)
class Recipe:
    """One row of the table in docs/recipes.md, and one case of the test.

    Attributes:
        name: its name, a few words; unique.
        group: the heading above it in the table.
        files: writes the data set's files.
        opened: opens the data set with the transform.
        transform: makes the transform.
        way: "whole": ddlp's kernel runs all of the transform. "prefix": it runs the first operators, user code the others.
            "host": all of it runs as user code, in torch's workers.
        draws: "none": nothing is random. "fixed": the draws can be fixed. "free": they can't, so bits are not compared.
        blurs: it has a GaussianBlur, whose values may be `BY_ONE`.
        needs: packages beside ddlp's own, by their names for pip.
        options: the loader's arguments beside `batch_size`, `num_workers` and `shuffle`.
        batch: `batch_size`; None if the data set makes batches.
        stream: whether the data set is an IterableDataset.
    """

    name: str
    group: str
    files: MakeFiles
    opened: OpenSet
    transform: MakeTransform
    way: Way = "whole"
    draws: Draws = "fixed"
    blurs: bool = False
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = 16
    stream: bool = False

    @property
    def bits(self) -> str:
        """What the table says of its bits."""
        return NOT_COMPARED if self.draws == "free" else BY_ONE if self.blurs else EQUAL
