"""Requests in flight: objects come into memory before their turn, as many at a time as pay.

Threads make the requests, one each, while any samples are wanted. obstore's calls for event loops take three times the
processor time of a thread's (380 and 124 us an object of 110 kB). The bytes of some samples lie together in memory that has a
descriptor (memfd), so that the kernel reads them like parts of a file, and no file is written.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from contextlib import closing
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from csd_engine.batchfile.publishing import pwrite
from csd_engine.data.base import Fetch, Origins, Places, Reader, Source
from csd_engine.data.image_files import content, part_of
from csd_engine.data.objects.store import ObjectStore
from csd_engine.data.objects.stored import Listing, Part, Stored, versions_of
from csd_engine.data.objects.window import Window
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import SampleError
from csd_engine.kernels.files import Parts

__all__ = ["ObjectReader", "Requests", "sample_bytes"]

LOOK_UP_S = 0.05  # how often a thread that waits asks whether the samples are wanted still
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # before an object is asked for again; obstore tries it thrice
SPARE = 4  # pieces of memory, each as large as a batch's objects
AHEAD = 2  # windows of samples that may be there, or on their way, before anybody asks


class ObjectReader(Reader):
    """Reads objects, or parts of objects. Any thread may use it; a fork of the process may not.

    Args:
        requests: bring them.
        listing: says which.
    """

    slow = True

    def __init__(self, requests: Requests, listing: Listing) -> None:
        self._requests, self._storage, self._listing = requests, requests.storage, listing

    def __len__(self) -> int:
        return len(self._listing)

    def open(self, index: int) -> Source:
        """See `Reader.open`. It reads the whole object."""
        if not 0 <= index < len(self):
            raise IndexError(f"object {index} of {len(self)}")
        fetch = self.fetch([index])
        assert fetch is not None
        with closing(fetch):
            there = fetch.wait(lambda: True)
            assert there is not None
            return there.open(index)

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        return self._storage.url + self._listing.where(index)

    def versions(self, indices: List[int]) -> Optional[Origins]:
        """See `Reader.versions`. An index file has no ETags."""
        all_of_them = self._versions
        return None if all_of_them is None else Origins(*(column[indices] for column in all_of_them))

    @functools.cached_property
    def _versions(self) -> Optional[Origins]:
        return versions_of(self._storage.url, (self._listing[index] for index in range(len(self))))

    def fetch(self, indices: Sequence[int], ahead: bool = False) -> Optional[Fetch]:
        """See `Reader.fetch`."""
        self._storage.get_ready()
        each = list(dict.fromkeys(indices))
        fetch = _ObjectFetch(self, self._requests, each, [self._listing[index] for index in each])
        return fetch if self._requests.begin(fetch, ahead) else None


def sample_bytes(reader: Reader, index: int, text_of: Callable[[SampleError], str] = str) -> bytes:
    """Return the bytes of a storage's sample. Raises OSError, of the kind that the same file would give.

    ``text_of``: gives the error's text.
    """
    try:
        opened = reader.open(index)
    except SampleError as error:
        cause = error.__cause__
        raise (type(cause) if isinstance(cause, OSError) else OSError)(text_of(error)) from None
    assert isinstance(opened, OpenFile)
    return content(opened)


class _ObjectFetch(Fetch):
    def __init__(
        self, reader: ObjectReader, requests: Requests, indices: List[int], objects: List[Union[Stored, Part]]
    ) -> None:
        self.indices, self.objects = indices, objects
        self.sizes = np.array([sample.size for sample in objects], dtype=np.int64)
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.bytes = int(self.sizes.sum())
        self.errors: Dict[int, OSError] = {}  # by place
        self.urgent = False
        self.asked = 0  # requests begun
        self.over = threading.Event()  # it is closed
        self._requests, self._reader = requests, reader
        self._left = len(objects)
        self._there = threading.Event()
        self.lent = False  # a sample was opened by a descriptor of its own: the memory is not used again
        self._lock = threading.Lock()
        self._writing = 0
        self._descriptor = -1

    def begin(self) -> None:
        self._descriptor = self._requests.memory(self.bytes)
        if not self._left:
            self._there.set()

    def put(self, place: int, data: Any, error: Optional[OSError]) -> None:
        """Take an object's bytes, or the reason why there are none."""
        with self._lock:
            if self.over.is_set():
                return
            self._writing += 1
        if error is None:
            try:
                pwrite(self._descriptor, data, int(self.offsets[place]))
            except OSError as full:
                error = full
        with self._lock:
            self._writing -= 1
            if error is not None:
                self.errors[place] = error
            self._left -= 1
            if not self._left:
                self._there.set()
            self._free_if_unused()

    def hurry(self) -> None:
        """See `Fetch.hurry`."""
        self._requests.hurry(self)

    def wait(self, wanted: Callable[[], bool]) -> Optional[Reader]:
        """See `Fetch.wait`."""
        while not self._there.wait(LOOK_UP_S):
            if not wanted():
                return None
        return _Fetched(self, self._reader, self._descriptor)

    def close(self) -> None:
        """See `Fetch.close`."""
        with self._lock:
            self.over.set()
            self._free_if_unused()
        self._requests.end(self)

    def _free_if_unused(self) -> None:
        if self.over.is_set() and not self._writing and self._descriptor >= 0:
            self._requests.free(self._descriptor, again=not self.lent)
            self._descriptor = -1


class _Fetched(Reader):
    """The samples of a fetch that has ended. For one thread, until the fetch is closed."""

    def __init__(self, fetch: _ObjectFetch, outer: ObjectReader, descriptor: int) -> None:
        self._fetch, self._outer, self._descriptor = fetch, outer, descriptor
        self._places = {index: place for place, index in enumerate(fetch.indices)}

    def __len__(self) -> int:
        return len(self._outer)

    def open(self, index: int) -> Source:
        place = self._places.get(index)
        if place is None:
            return self._outer.open(index)
        if place in self._fetch.errors:
            error = self._fetch.errors[place]
            raise SampleError(self.where(index), f"{type(error).__name__}: {error}") from error
        self._fetch.lent = True
        opened = OpenFile(self.where(index), os.dup(self._descriptor), self._fetch.bytes)
        return part_of(opened, None, int(self._fetch.offsets[place]), int(self._fetch.sizes[place]))

    def places(self, indices: List[int]) -> Optional[Places]:
        fetch = self._fetch
        try:
            places = [self._places[index] for index in indices]
        except KeyError:
            return None
        # A sample without bytes has a path that can't be opened: the kernel stops there, and `open` tells why.
        shared = [-1 if place in fetch.errors else self._descriptor for place in places]
        zeros = np.zeros(len(places), np.int32)
        parts = Parts(fetch.offsets[places], fetch.sizes[places], np.array(shared, dtype=np.int32), zeros)
        return Places([""] * len(places), parts)

    def where(self, index: int) -> str:
        return self._outer.where(index)


class Requests:
    """What is asked of one storage: the fetches in their order, and the threads that make their requests.

    Args:
        storage: has the objects.
        most_bytes: of objects in memory that nobody has asked for yet, with all others.
    """

    def __init__(self, storage: ObjectStore, most_bytes: int) -> None:
        self.storage, self._most_bytes = storage, most_bytes
        self._window = Window()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._open: Dict[_ObjectFetch, None] = {}  # all that hold memory, in the order in which they began
        self._unasked: Dict[_ObjectFetch, None] = {}  # those of them with requests that were not made yet
        self._threads = self._idle = self._running = 0
        self._spare: List[int] = []  # descriptors of memory that is used again: fresh pages cost as much as the bytes in them

    def begin(self, fetch: _ObjectFetch, ahead: bool) -> bool:
        """Queue the requests. False: ``ahead``, and enough is there or on its way."""
        if ahead and not self._room(fetch.bytes):
            return False
        fetch.begin()
        try:
            with self._lock:
                fetch.urgent = not ahead
                self._open[fetch] = None
                if fetch.objects:
                    self._unasked[fetch] = None
                self._call_one()
        except BaseException:
            fetch.close()
            raise
        return True

    def _room(self, size: int) -> bool:
        with self._lock:
            waiting = sum(len(fetch.objects) for fetch in self._open if not fetch.urgent)
            held = sum(fetch.bytes for fetch in self._open)
        return waiting < AHEAD * self._window.size and held + size <= self._most_bytes

    def hurry(self, fetch: _ObjectFetch) -> None:
        """Ask for these objects before those that nobody waits for."""
        with self._lock:
            fetch.urgent = True

    def end(self, fetch: _ObjectFetch) -> None:
        """Drop what a fetch has not asked for. Without any fetch the threads end, each with the request at hand."""
        with self._lock:
            self._open.pop(fetch, None)
            self._unasked.pop(fetch, None)
            if not self._open:
                self._work.notify_all()
                while self._spare:
                    os.close(self._spare.pop())

    def memory(self, size: int) -> int:
        """Return the descriptor of memory for so many bytes; `free` takes it back."""
        with self._lock:
            descriptor = self._spare.pop() if self._spare else os.memfd_create("ddlp-objects", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)  # what a smaller fetch had needed stays
        return descriptor

    def free(self, descriptor: int, again: bool) -> None:
        """Take memory back that no fetch uses any more. ``again``: give it to another one, as no descriptor of it is open."""
        with self._lock:
            if again and len(self._spare) < SPARE and self._open:
                self._spare.append(descriptor)
            else:
                os.close(descriptor)

    # -- under the lock

    def _next(self) -> Optional[Tuple[_ObjectFetch, int]]:
        """Take the next request, if one may be made now."""
        if self._running >= self._window.size or not self._unasked:
            return None
        fetch = next((fetch for fetch in self._unasked if fetch.urgent), None) or next(iter(self._unasked))
        place, fetch.asked = fetch.asked, fetch.asked + 1
        if fetch.asked == len(fetch.objects):
            del self._unasked[fetch]
        self._running += 1
        self._call_one()
        return fetch, place

    def _call_one(self) -> None:
        """Have one more thread look for a request, if there may be one. It does the same, so they soon are enough."""
        if self._running >= self._window.size or not self._unasked:
            return
        if self._idle:
            self._work.notify()
        elif self._threads < self._window.size:
            try:
                threading.Thread(target=self._run, name="ddlp-objects", daemon=True).start()
            except RuntimeError:  # no more threads are allowed: fewer will do, but not none
                if not self._threads:
                    raise
            else:
                self._threads += 1

    # -- a thread

    def _run(self) -> None:
        answered = None  # whether the request before was answered; None: there was none
        while True:
            with self._lock:
                if answered:
                    self._window.answered(time.monotonic(), self._running >= self._window.size)
                self._running -= answered is not None
                while (request := self._next()) is None and self._open:
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if request is None:
                    self._threads -= 1
                    return
            answered = self._answer(*request)

    def _answer(self, fetch: _ObjectFetch, place: int) -> bool:
        """Bring one object, or the reason why it can't be brought. True if it was brought."""
        data: Any = None
        error: Optional[OSError] = None
        for pause_s in (*PAUSES_S, 0.0):
            if fetch.over.is_set():
                return False
            try:
                data = self.storage.read(fetch.objects[place])
                error = None
                break
            except Exception as failed:
                error = self.storage.os_error(failed)
                if not isinstance(error, ConnectionError):
                    break
                with self._lock:
                    self._window.failed()
                fetch.over.wait(pause_s)
        fetch.put(place, data, error)
        return error is None
