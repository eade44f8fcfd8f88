"""What each device may hold of an epoch, and holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FAILURES = 3  # leases in a row; fewer may be the data's fault, which fails on the host as well


@dataclass
class Account:
    """What one device may hold and holds."""

    quota: int = 0  # batches in its spool, those being written included
    window: int = 0  # leases not yet published
    alive: bool = False
    joining: bool = True
    expected_s: float = math.inf  # since when it is joining
    left_s: float = 0.0  # when it was lost
    held: int = 0
    hanging: set[int] = field(default_factory=set)  # leases whose fetch was given up, and has not ended
    held_back: bool = False  # it says that it has no room for now
    outstanding: dict[int, int] = field(default_factory=dict)  # lease -> position, in the order given
    failures: int = 0  # leases in a row: it has published none between; a loss and a return end no row

    @property
    def failing(self) -> bool:
        """True where it can't prepare any batch, as it seems."""
        return self.failures >= FAILURES

    @property
    def at_work(self) -> bool:
        """True where it is there, and its spool answers."""
        return self.alive and not self.hanging

    @property
    def there(self) -> bool:
        """At work or about to join; not one that is lost."""
        return self.at_work or self.joining

    @property
    def has_room(self) -> bool:
        """True where it may be given a lease now: there is room in its window and its spool."""
        return self.at_work and self.held < self.quota and len(self.outstanding) < self.window

    @property
    def shut_out(self) -> bool:
        """True where others fill its spool: nothing of this epoch lies there that its delivery could free."""
        return self.held_back and self.held == len(self.outstanding)
