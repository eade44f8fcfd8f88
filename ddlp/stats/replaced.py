"""The samples of an epoch that were replaced, since their images are bad: how many, which, and whether there are too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddlp.errors import DDLPError

__all__ = ["MOST_NAMED", "Replaced", "ReplacedSamples"]

MOST_NAMED = 100  # bad samples that a report names


@dataclass(frozen=True)
class Replaced:
    """A bad sample in a batch, and the one that has its place.

    Attributes:
        place: the sample's place in its batch.
        source: the source index of the sample that was put there.
        where: the bad sample's file or array row.
        why: why it could not be prepared.
    """

    place: int
    source: int
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass
class ReplacedSamples:
    """Counts the delivered samples of an epoch that were replaced.

    Attributes:
        most: the largest share of the epoch's samples that may be replaced.
        samples: the number of samples in the epoch.
        before: the number that was replaced before a resume.
    """

    most: float = 0.0
    samples: int = 0
    before: int = 0
    _by_batch: dict[int, int] = field(default_factory=dict)  # position of a batch -> how many in it
    named: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """The number of samples that were replaced, those before a resume included."""
        return self.before + sum(self._by_batch.values())

    def without(self, position: int | None) -> int:
        """The same, less those in one batch: training has not got it."""
        return len(self) - (0 if position is None else self._by_batch.get(position, 0))

    def add(self, position: int, replaced: Sequence[Replaced]) -> str | None:
        """Count those of a delivered batch. Returns a warning with the epoch's first one."""
        first = not self.named
        self._by_batch[position] = len(replaced)
        self.named += map(str, replaced[: MOST_NAMED - len(self.named)])
        if not first:
            return None
        return (
            f"a sample could not be prepared, and another one of its batch has its place (on_error='replace'): {replaced[0]}. "
            "No warning follows for further ones; loader.report() names them."
        )

    @property
    def error(self) -> DDLPError | None:
        """The error to raise if too many samples were replaced, else None."""
        if len(self) <= self.most * self.samples:
            return None
        return DDLPError(
            f"on_error='replace': {len(self)} of the epoch's {self.samples} samples could not be prepared, more than "
            f"max_replaced={self.most:g} allows. The last ones: {'; '.join(self.named[-3:])}. Check these files (missing, "
            "truncated, not images) or leave them out of the data set; or set max_replaced= higher."
        )
