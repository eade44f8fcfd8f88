"""A recipe: a data set, its transforms, and the loader's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: Writes a data set's files below an empty folder, from photographs: JPEG files in RGB of about 110 kB.
MakeFiles = Callable[[Path, Sequence[Path]], None]
#: Opens the data set below that folder with a transform, as its users do.
OpenSet = Callable[[Path, Any], Any]
#: Returns the transform, for training, or with fixed draws (True), so that two loaders must give the same samples.
MakeTransform = Callable[[bool], Any]

Draws = Literal["none", "fixed", "free"]


@dataclass(frozen=True)
class Recipe:
    """One row of the table.

    Attributes:
        name: its name, a few words; unique.
        group: the heading above it in the table.
        covers: the names of the operators, presets and data sets that it tries.
        files: writes the data set's files.
        opened: opens the data set with the transform.
        transform: makes the transform.
        draws: "none": nothing is random. "fixed": the draws can be fixed. "free": they can't, so bits are not compared.
        needs: packages beside ddlp's own, by their names for pip.
        options: the loader's arguments beside `batch_size`, `num_workers` and `shuffle`.
        batch: `batch_size`; None if the data set makes batches.
        workers: `num_workers` of both loaders.
        stream: whether the data set is an IterableDataset.
    """

    name: str
    group: str
    covers: tuple[str, ...]
    files: MakeFiles
    opened: OpenSet
    transform: MakeTransform
    draws: Draws = "fixed"
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = 16
    workers: int = 1
    stream: bool = False
