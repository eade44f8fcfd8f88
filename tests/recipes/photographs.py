"""The JPEG files from which all fakes are made: in RGB, with ImageNet's sizes, 110 kB on average."""

from __future__ import annotations

import itertools
from pathlib import Path

from ddlp.sampledata.imagefolder import encode
from ddlp.sampledata.plan import LARGEST, plan_image

_DETAIL = 1.0  # found by trial: files of 110 kB on average


def make_photographs(root: Path, count: int) -> list[Path]:
    """Write `count` of them below `root`. Raises SampleDataError if the packages with the photographs are missing."""
    root.mkdir(parents=True)
    found: list[Path] = []
    for position in itertools.count():
        if len(found) == count:
            return found
        plan = plan_image(0, True, position)
        if plan.kind in ("420", "444", "progressive") and plan.size != LARGEST:
            path = root / f"{position:05d}.jpg"
            encode(0, plan, _DETAIL, path)
            found.append(path)
    raise AssertionError  # never
