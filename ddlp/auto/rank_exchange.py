"""Carries what the ranks of a training say to each other for `strategy="auto"`: a thread beside the epoch, and torch's store.

The store is the one by which torch.distributed's ranks have found each other, at MASTER_ADDR and MASTER_PORT. The thread has a
connection of its own: that of the process group does one thing at a time, and a collective would wait for us. Nothing here is a
collective, and the training thread never waits for this one.

Below a prefix that names the run and the loader, the store has

    RANK            what a rank has offered last: a window that it has measured, or that it is ready to measure one
    RANK/number     the number of that; -1: the rank decides by itself
    agreed/N        what was agreed, number N; the last ones are kept
    agreed          how many there are so far
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch

from csd_engine.protocol.fields import optional
from ddlp.auto.agreement import Agreed, Agreement, WindowFigures
from ddlp.process.ranks import here

__all__ = ["RankExchange", "agreement_of"]

ANSWER_S = 10.0  # a store that takes longer counts as gone
FIRST_S, MOST_S = 0.02, 1.0  # between two looks into the store: short while an answer is due, then longer and longer
END_S = 1.0  # the thread is waited for so long at the epoch's end
KEPT = 16  # agreements that are kept for ranks which lag behind

_loaders: Counter[str] = Counter()  # loaders of each kind


def agreement_of(kind: str, sources: tuple[str, ...]) -> Agreement | None:
    """Return this rank's part in a loader's agreement; None if torch.distributed has no process group, or one of one rank.

    Args:
        kind: a text that is the same for this loader on all ranks. Loaders of one kind are told apart by their order.
        sources: the names of the loader's sources.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
        return None
    name = hashlib.blake2b(kind.encode(), digest_size=8).hexdigest()
    _loaders[name] += 1
    ranks = here()
    if ranks is None:
        lost = "MASTER_ADDR and MASTER_PORT do not say where the ranks meet"
        return Agreement(name, distributed.get_rank(), distributed.get_world_size(), sources, lost=lost)
    return Agreement(f"{ranks.run}/{name}-{_loaders[name]}", ranks.rank, ranks.ranks, sources)


class RankExchange:
    """The thread of one epoch. ``agreement``: the loader's. ``environment``: says where the store is."""

    def __init__(self, agreement: Agreement, environment: Mapping[str, str] = os.environ) -> None:
        self._agreement, self._environment = agreement, environment
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="ddlp-ranks", daemon=True)
        self._sent = -1
        self._offered: dict[int, WindowFigures | None] = {}  # rank 0: by the other ranks

    def start(self) -> None:
        """Start the thread."""
        self._agreement.wake = self._wake.set
        self._thread.start()

    def close(self) -> None:
        """End the thread. One whose store does not answer is left to itself after a second."""
        self._closing = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)
            if self._thread.is_alive():
                self._agreement.lost = "the ranks' store does not answer"

    def _run(self) -> None:
        agreement, pause_s = self._agreement, FIRST_S
        try:
            store = self._store()
            while not (self._closing or agreement.lost):
                pause_s = FIRST_S if self.look(store) else min(2 * pause_s, MOST_S)
                if self._wake.wait(pause_s):
                    self._wake.clear()
                    pause_s = FIRST_S
            if agreement.lost:
                store.set(f"{agreement.rank}/number", "-1")
        except Exception as error:  # the training must go on, whatever it is
            first, *_ = f"{error}".strip().splitlines() or [type(error).__name__]
            agreement.lost = agreement.lost or f"the ranks' store does not answer ({first[:200]})"

    def _store(self) -> Any:
        distributed, host, port = torch.distributed, self._environment["MASTER_ADDR"], int(self._environment["MASTER_PORT"])
        socket.create_connection((host, port), ANSWER_S).close()  # where nobody listens torch would try for long, and aloud
        timeout = timedelta(seconds=ANSWER_S)
        store = distributed.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
        return distributed.PrefixStore(f"ddlp/{self._agreement.name}", store)

    def look(self, store: Any) -> bool:
        """Do once what there is to do. Returns whether there was anything."""
        return self._lead(store) if self._agreement.leads else self._follow(store)

    def _lead(self, store: Any) -> bool:
        """Say what counts, as soon as that is clear."""
        agreement = self._agreement
        if not agreement.heard:
            self._publish(store, Agreed(known=agreement.known, sources=agreement.sources))
            return True
        own = agreement.to_send
        if own is None:
            return False
        number, window = own
        for rank in set(range(1, agreement.ranks)) - self._offered.keys():
            sent = store.add(f"{rank}/number", 0)  # add 0 reads a number without waiting for it
            if sent == number:
                self._offered[rank] = optional(WindowFigures.from_data)(json.loads(store.get(f"{rank}")))
            elif sent < 0:
                agreement.left(rank)
            elif not (agreement.late or rank in agreement.absent):
                return False  # it would not do anyway
        agreed = agreement.agree({0: window, **self._offered})
        if agreed is None:
            return False
        self._offered.clear()
        self._publish(store, agreed)
        return True

    def _publish(self, store: Any, agreed: Agreed) -> None:
        number = self._agreement.heard
        store.set(f"agreed/{number}", agreed.to_json())
        store.set("agreed", str(number + 1))
        if number >= KEPT:
            with contextlib.suppress(RuntimeError):
                store.delete_key(f"agreed/{number - KEPT}")
        self._agreement.hear(agreed)

    def _follow(self, store: Any) -> bool:
        """Take what was agreed, and send what was measured."""
        agreement = self._agreement
        number = agreement.heard
        if store.add("agreed", 0) > number:
            agreement.hear(Agreed.from_json(store.get(f"agreed/{number}")))
            return True
        own = agreement.to_send
        if own is None or self._sent == number:
            return False
        store.set(f"{agreement.rank}", json.dumps(None if own[1] is None else asdict(own[1])))
        store.set(f"{agreement.rank}/number", str(number))
        self._sent = number
        return True
