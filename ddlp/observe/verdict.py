"""What the checker found: for each promise whether the epoch kept it, and how many cases were examined."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddlp.errors import DDLPError

__all__ = ["BITS", "COMPLETE", "LABELS", "ONCE", "ORDER", "UNCHANGED", "Claim", "Refuted", "Verdict"]

ONCE, ORDER, BITS, LABELS, COMPLETE, UNCHANGED = (
    "each sample once", "order", "same bits", "labels", "complete before use", "unchanged after delivery",
)  # fmt: skip


class Refuted(DDLPError):
    """An epoch has broken a promise."""


@dataclass
class Claim:
    """One promise. ``looked_at``: how many cases were examined; ``against``: what refutes it."""

    name: str
    looked_at: int = 0
    of: str = ""  # what the cases are
    against: list[str] = field(default_factory=list)
    unseen: str = ""  # why some or all cases could not be examined

    def leave_out(self, why: str) -> None:
        """Note why a case could not be examined. Each reason is noted once."""
        if why not in self.unseen:
            self.unseen = "; ".join(filter(None, (self.unseen, why)))

    @property
    def state(self) -> str:
        """``refuted``; ``proved`` for the cases that were examined; ``not checked`` if none was."""
        return "refuted" if self.against else "proved" if self.looked_at else "not checked"

    def __str__(self) -> str:
        said = f"{self.looked_at} {self.of}" if self.looked_at else ""
        if self.against:
            said = self.against[0] + (f" (and {len(self.against) - 1} more)" if len(self.against) > 1 else "")
        return f"{self.state:11} {self.name}: " + "; ".join(filter(None, (said, self.unseen)))


@dataclass
class Verdict:
    """The verdict on one epoch, or on its part so far (``over`` tells which)."""

    epoch: int
    strategy: str
    claims: dict[str, Claim]
    over: bool = False

    @property
    def refuted(self) -> bool:
        """True where a promise was broken."""
        return any(claim.against for claim in self.claims.values())

    def __str__(self) -> str:
        begun = f"epoch {self.epoch}, {self.strategy}, checked" + ("" if self.over else " as far as it went")
        outcome = "REFUTED" if self.refuted else "nothing found"
        return "\n".join([f"{begun}: {outcome}", *(f"  {claim}" for claim in self.claims.values())])
