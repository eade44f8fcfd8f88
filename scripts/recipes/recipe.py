"""What a recipe is: a data set, its transforms, and the loader's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: Writes a data set's files below a folder that is empty, from photographs: JPEG files in RGB of about 110 kB.
MakeFiles = Callable[[Path, Sequence[Path]], None]
#: Opens a data set below that folder with a transform, as its users do.
OpenSet = Callable[[Path, Any], Any]
#: The transform, for a training or with its draws fixed (True): so that two loaders must give the same samples.
MakeTransform = Callable[[bool], Any]

Draws = Literal["none", "fixed", "free"]


@dataclass(frozen=True)
class Recipe:
    """One row of the table.

    Attributes:
        name: says it in a few words; unique.
        group: the heading it stands under.
        covers: the names of operators, presets and data sets that it is there for.
        files: writes the data set's files.
        opened: opens the data set with the transform.
        transform: makes the transform.
        draws: "none": nothing in it is random. "fixed": its draws can be fixed. "free": they can't, so bits are not compared.
        needs: packages beside ddlp's own, as pip knows them.
        options: the loader's arguments beside `batch_size`, `num_workers` and `shuffle`.
        batch: `batch_size`; None where the data set makes batches.
        workers: `num_workers` of both loaders.
        stream: an IterableDataset.
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
