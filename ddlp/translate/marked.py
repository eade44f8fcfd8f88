"""Finds a `ddlp.CachePoint` in a data set's transform, and whether ddlp knows what stands before it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from csd_engine.transforms.containers import leaves
from csd_engine.transforms.prefix import draw_nothing
from csd_engine.transforms.user import User
from ddlp.errors import Untranslatable
from ddlp.transforms import CachePoint
from ddlp.translate.datasets import PortableSet, translate_dataset
from ddlp.translate.transforms import Translation, names_of, operator_counts, steps_of, translate_steps, view_transforms
from ddlp.translate.values import KEEP

__all__ = ["CodeBeforePoint", "Marked", "marked_in"]


class Marked(NamedTuple):
    """A transform with a `CachePoint`.

    Attributes:
        before, behind: its steps before and behind the point.
        point: the last one in it.
        operators: how many of the pipeline's operators stand before the point, which draw nothing. None: ddlp does not know all
            steps before it, or a random one is among them.
        told_by: what tells the steps before the point from others: the known operators' parameters, and the point's key.
    """

    before: tuple[Any, ...]
    point: CachePoint
    behind: tuple[Any, ...]
    operators: int | None
    told_by: str

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
        ValueError: a random operator stands before the point, or the user's code does and the point has no key.
    """
    try:
        portable = translate_dataset(dataset)
    except Untranslatable:
        return None
    first = portable.parts[0] if portable.parts else None
    if first is None or first.keys is not None or first.transforms is not None or view_transforms(first.transform) is not None:
        return None
    if any(part.transform is not first.transform or part.mode != first.mode for part in portable.parts):
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
    behind = tuple(steps[at + 1 :])
    try:
        known = translate_steps(before, first.mode, as_pil)[0]
    except Untranslatable as why:
        if not point.key:
            raise ValueError(
                f"CachePoint() stands behind {why.operator}, which ddlp does not know, so no change of it would be noticed. "
                "Write CachePoint(key='...') with a name and version of your own for the steps before it, such as 'deskew 1', "
                "and change the key when these steps change"
            ) from why
        return portable, Marked(before, point, behind, None, point.key)
    operators = None
    if not drawing and draw_nothing(known.pipeline.operators):
        operators = sum(operator_counts(before, first.mode, as_pil))
    return portable, Marked(before, point, behind, operators, f"{point.key} {_digest(known)}")


def _digest(known: Translation) -> str:
    """Return what tells known steps from others, 32 hex digits."""
    values = known.epilogue
    digest = hashlib.blake2b(digest_size=16, person=b"ddlp steps")
    digest.update(repr((known.pipeline.digest, known.crops, known.image_type, values.dtype, values.noise)).encode())
    for tensor in (values.table, values.fills):
        digest.update(b"" if tensor is None else tensor.numpy().tobytes())
    return digest.hexdigest()


def _draws(step: Any, mode: str, as_pil: bool) -> bool:
    """Return whether a step is a known operator that draws random numbers. Of others their draws tell, when they run."""
    try:
        known = translate_steps([step], mode, as_pil)[0]
    except Untranslatable:
        return False
    operators = list(leaves(known.pipeline.operators))
    return known.crops == 1 and not any(isinstance(operator, User) for operator in operators) and not draw_nothing(operators)
