"""Finds a `ddlp.CachePoint` in a data set's transform, and whether ddlp knows what stands before it."""

from __future__ import annotations

from typing import Any, NamedTuple

from csd_engine.transforms.containers import leaves
from csd_engine.transforms.prefix import draw_nothing
from csd_engine.transforms.user import User
from ddlp.errors import Untranslatable
from ddlp.transforms import CachePoint
from ddlp.translate.datasets import PortableSet, translate_dataset
from ddlp.translate.transforms import names_of, operator_counts, steps_of, translate_steps, view_transforms
from ddlp.translate.values import KEEP

__all__ = ["CodeBeforePoint", "Marked", "marked_in"]


class Marked(NamedTuple):
    """A transform with a `CachePoint`.

    Attributes:
        before, behind: its steps before and behind the point.
        point: the last one in it.
        operators: how many of the pipeline's operators stand before the point, which draw nothing. None: ddlp does not know all
            steps before it, or a random one is among them.
    """

    before: tuple[Any, ...]
    point: CachePoint
    behind: tuple[Any, ...]
    operators: int | None

    def __str__(self) -> str:
        return " -> ".join(names_of(self.before)) or "decoding"


class CodeBeforePoint(Untranslatable):
    """What stands before a `CachePoint` runs as user code, and its results are kept. So nothing of it travels."""

    def __init__(self, marked: Marked) -> None:
        super().__init__(
            "CachePoint()", f"the host keeps the results of {marked}, and runs what follows on them",
            ("leave cache= out: CachePoint() then does nothing", KEEP),
        )  # fmt: skip
        self.marked = marked

    def __reduce__(self) -> Any:
        return CodeBeforePoint, (self.marked,)


def marked_in(dataset: Any, as_pil: bool) -> tuple[PortableSet, Marked] | None:
    """Return the data set as parts, and its transform, if a `CachePoint` stands in it and all parts have this transform.

    Args:
        dataset: the loader's.
        as_pil: as of `ddlp.translate.transforms.translate`.

    Raises:
        ValueError: a random operator stands before the point.
    """
    try:
        found = translate_dataset(dataset)
    except Untranslatable:
        return None
    first = found.parts[0] if found.parts else None
    if first is None or first.keys is not None or first.transforms is not None or view_transforms(first.transform) is not None:
        return None
    if any(part.transform is not first.transform or part.mode != first.mode for part in found.parts):
        return None
    steps = [] if first.transform is None else steps_of(first.transform, first.mode)
    at = max((place for place, step in enumerate(steps) if type(step) is CachePoint), default=None)
    if at is None:
        return None
    before, point = tuple(steps[:at]), steps[at]
    drawing = [step for step in before if _draws(step, first.mode, as_pil)]
    if drawing and point.frozen_epochs is None:
        raise ValueError(
            f"CachePoint() stands behind {names_of(drawing)[0]}, which draws random numbers: its first outcome would be kept "
            "for ever. Move CachePoint() before it, or keep each outcome for k epochs by CachePoint(frozen_epochs=k)"
        )
    try:
        operators = None if drawing else sum(operator_counts(before, first.mode, as_pil))
    except Untranslatable:
        operators = None
    if operators and not draw_nothing(translate_steps(before, first.mode, as_pil)[0].pipeline.operators):
        operators = None
    return found, Marked(before, point, tuple(steps[at + 1 :]), operators)


def _draws(step: Any, mode: str, as_pil: bool) -> bool:
    """Return whether a step is a known operator that draws random numbers. Of others their draws tell, when they run."""
    try:
        found = translate_steps([step], mode, as_pil)[0]
    except Untranslatable:
        return False
    operators = list(leaves(found.pipeline.operators))
    return found.crops == 1 and not any(isinstance(one, User) for one in operators) and not draw_nothing(operators)
