"""Brings the samples of batches into memory before a worker makes them, if they come from a slow storage."""

from __future__ import annotations

import contextlib
import threading

from csd_engine.data.base import Fetch
from ddlp.schedule.ranges import RangeSet
from ddlp.sources.base import EpochSink, Resources

__all__ = ["FetchAhead"]

MOST = 64  # batches; each takes a descriptor


class FetchAhead:
    """The batches of one epoch that are in memory, or on their way, before they are asked for. Any thread may use it.

    How much is fetched ahead is the storage's choice (`csd_engine.data.base.Reader.fetch`).

    Args:
        resources: the epoch's.
        sink: tells which batches the host makes next.
    """

    def __init__(self, resources: Resources, sink: EpochSink) -> None:
        self._resources, self._sink = resources, sink
        self._lock = threading.Lock()
        self._fetches: dict[int, Fetch] = {}  # by position
        self._taken = RangeSet()
        self._closed = False

    def take(self, position: int) -> Fetch | None:
        """Return the fetch of a batch that is made now, and begin those of later ones. The caller closes it."""
        with self._lock:
            if self._closed:
                return None
            fetch = self._fetches.pop(position, None)
            self._taken.add(position)
        if fetch is None:
            fetch = self._begin(position, False)
        try:
            if fetch is not None:
                fetch.hurry()  # first, so that it makes room for later ones
            self._go_on()
        except BaseException:
            if fetch is not None:
                fetch.close()
            raise
        return fetch

    def close(self) -> None:
        """Drop all that nobody has taken."""
        with self._lock:
            self._closed = True
            fetches, self._fetches = self._fetches, {}
        for fetch in fetches.values():
            fetch.close()

    def _go_on(self) -> None:
        """Fetch what the host makes next, as far as the storage wants, and drop what others make."""
        coming = self._sink.for_host(2 * MOST)
        with self._lock:
            dropped = [self._fetches.pop(position) for position in list(self._fetches) if position not in coming]
            for position in coming:
                if self._closed or len(self._fetches) >= MOST:
                    break
                if position in self._fetches or position in self._taken:
                    continue
                fetch = None
                with contextlib.suppress(OSError, KeyError):  # no more descriptors; or a batch that the plan has forgotten
                    fetch = self._begin(position, True)
                if fetch is None:
                    break
                self._fetches[position] = fetch
        for request in dropped:
            request.close()

    def _begin(self, position: int, ahead: bool) -> Fetch | None:
        return self._resources.reader.fetch(self._resources.to_read(self._resources.plan.sources(position)), ahead)
