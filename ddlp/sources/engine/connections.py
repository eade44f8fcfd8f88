"""How a loader reaches its devices: the embedded engine, engines that the user names, and those of a pool."""

from __future__ import annotations

import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from csd_engine.errors import EngineGone
from csd_engine.protocol.printable import printable
from csd_engine.service.jobs import Member
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.process.ranks import here
from ddlp.sources.engine.dataset_upload import FILES, DatasetUpload
from ddlp.sources.engine.device_link import CardedEngine, link_to
from ddlp.sources.engine.embedded import EmbeddedEngine, EmbeddedOptions, acquire
from ddlp.sources.engine.link import ARRAYS, EngineLink
from ddlp.sources.engine.shared_spool import NotShared, share_spool

EMBEDDED = "embedded engine"
LINGER_S = 5.0  # the embedded engine lives this long after an epoch, since the next epoch mostly begins at once
EngineAt = Device | CardedEngine | EmbeddedOptions
"""An engine that runs elsewhere, or one that this process starts."""

_DROPPED = "the loader was dropped while its device was on the way"


@dataclass(frozen=True)
class EngineConnection:
    """The connection to one device, and the data set files that are sent to it.

    ``shared``: batches come through a spool that host and device both see; otherwise over the socket. ``remark``: the reason,
    for the report. ``engine``: if this process starts it; other loaders may use it too. ``node``: the computer of an engine
    that is a pool's, else empty. ``carried``: this host sends the data set's files with the leases.
    """

    name: str
    link: EngineLink
    upload: DatasetUpload
    shared: bool = True
    remark: str = ""
    engine: EmbeddedEngine | None = None
    node: str = ""
    carried: bool = False

    def close(self) -> None:
        """Let the engine go."""
        if self.engine is not None:
            self.engine.release()
        else:
            self.link.close()
            self.upload.close()

    def member(self, rank_after_rank: bool) -> tuple[Member, int]:
        """This process's place among the ranks that share the device, and the number of those ranks.

        All ranks of a run share a named device. The ranks on one machine share an embedded engine.
        """
        ranks = here()
        embedded = self.engine is not None
        if ranks is None or (embedded and ranks.local_ranks < 2):
            return Member(), 1
        rank, count = (ranks.local_rank, ranks.local_ranks) if embedded else (ranks.rank, ranks.ranks)
        return Member(ranks.run, rank, rank_after_rank), count


class EngineConnections:
    """The devices of one loader. A connection is made when it is first wanted, and kept between epochs.

    Connecting may take long. It blocks only other callers that want the same device; the end of an epoch and `close` never wait
    for it.

    Args:
        devices: that the user names. If there is none, and no pool, the only engine is the embedded one.
        options: of the embedded engine. A pool's engines on this machine have their spools where these options say.
        transfer: how batches come to this host, `DDLPLoader`'s argument.
        pool: returns the pool's engines of this moment by name; None: there is no pool.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        options: EmbeddedOptions,
        transfer: str | None = None,
        pool: Callable[[], Mapping[str, EngineAt]] | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.met: set[str] = set()
        self.told_absent = False  # the user was told, once a loader, that an engine of this process does not start
        self.trouble = ""  # why the pool can't tell its engines now
        self._given: dict[str, EngineAt] = {device.label: device for device in devices}
        if not devices and pool is None:
            self._given[EMBEDDED] = options
        self._options = options
        self._pool = pool
        self._known = self._given
        self._transfer = transfer
        self._lock = threading.RLock()  # at exit no thread can start: a finalizer may run in the thread that holds it
        self._connecting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._opening: set[EngineLink] = set()
        self._places: dict[str, EngineConnection] = {}
        self._epochs: set[object] = set()  # those under way
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices and of the pool's engines of this moment. If the pool can't tell, the last ones hold."""
        if self._pool is not None:
            try:
                self._known, self.trouble = {**self._pool(), **self._given}, ""
            except DDLPError as error:
                self.trouble = str(error)
        return tuple(self._known)

    def is_own(self, name: str) -> bool:
        """Whether this process starts the engine itself."""
        return isinstance(self._known.get(name), EmbeddedOptions)

    def may_be_missing(self, name: str) -> bool:
        """Whether training goes on without the device: it was met before, or it is a pool's, whose engines come and go."""
        return name in self.met or name not in self._given

    def epoch_began(self) -> Callable[[], None]:
        """Note that an epoch uses the devices. Return a function to call at its end, once or more often."""
        epoch = object()
        self._end_unwanted(self.names)
        with self._lock:
            self._epochs.add(epoch)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        return partial(self._epoch_ended, epoch)

    def _epoch_ended(self, epoch: object) -> None:
        """Stop the embedded engine, unless another epoch begins soon."""
        with self._lock:
            self._epochs.discard(epoch)
            self._end_soon()
        self._end_unwanted(self.names)

    def left(self, name: str) -> bool:
        """Whether an engine is not in the pool any more, as of the last look. It is let go then, unless another epoch runs.

        An epoch calls this that is done with the engine.
        """
        if name in self._known:
            return False
        with self._lock:
            others = set(self._places) - {name}
        self._end_unwanted(others, epochs=1)
        return True

    def _end_unwanted(self, wanted: Collection[str], epochs: int = 0) -> None:
        """Leave the engines that are not wanted, unless more than so many epochs run."""
        if self._pool is None:
            return
        with self._lock:
            over: set[str] = set() if len(self._epochs) > epochs else set(self._places).difference(wanted)
            places = [self._places.pop(name) for name in over]
        for place in places:
            place.close()

    def _end_soon(self) -> None:
        if self._epochs or EMBEDDED not in self._places or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(LINGER_S, self._end_if_idle)
        self._timer.daemon = True
        self._timer.name = "ddlp-linger"
        try:
            self._timer.start()
        except RuntimeError:  # the interpreter is shutting down: no thread can start, and the engine ends too
            self._timer = None

    def _end_if_idle(self) -> None:
        with self._lock:
            place = None if self._epochs else self._places.pop(EMBEDDED, None)
        if place is not None:
            place.close()

    def place(self, name: str) -> EngineConnection:
        """Connect to a device. Blocks; raises what the link raises, and EngineGone once this is closed."""
        with self._lock:
            connecting = self._connecting[name]
        with connecting:
            at = self._known.get(name)
            if at is None:
                raise EngineGone("it has left the pool")
            if isinstance(at, EmbeddedOptions):
                own = replace(at, spool=self._options.spool, quota_bytes=self._options.quota_bytes)
                return replace(self._own(name, own), node=self._node(name, at))
            return replace(self._named(name, at), node=self._node(name, at))

    def _node(self, name: str, at: EngineAt) -> str:
        if name in self._given:
            return ""
        if isinstance(at, EmbeddedOptions) or at.address.startswith("ipc://"):
            return socket.gethostname() or "this computer"
        return at.address.removeprefix("tcp://").rpartition(":")[0]

    def check_embedded(self) -> None:
        """Start an embedded engine that is the loader's only device, if it never started. Raise if it does not start."""
        if EMBEDDED in self._given and EMBEDDED not in self.met:
            self.place(EMBEDDED)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineGone(_DROPPED)

    def _own(self, name: str, options: EmbeddedOptions) -> EngineConnection:
        with self._lock:
            self._check_open()
            place = self._places.pop(name, None)
            if place is not None and place.link.lost is None and place.engine is not None and place.engine.ended() is None:
                self._places[name] = place
                return place
        if place is not None:
            place.close()
        engine = acquire(options, self._check_open)  # dropped loaders' threads may wait in there, one after another
        try:
            files = engine.directory / FILES
            files.mkdir(exist_ok=True)
            shared = self._transfer != "stream"
            upload = DatasetUpload(files, files if shared else Path(engine.link.open().spool) / ARRAYS, sent=not shared)
            with self._lock:
                self._check_open()
                place = self._places[name] = EngineConnection(name, engine.link, upload, shared, engine=engine)
                self._end_soon()  # the epoch may be over already
                return place
        except BaseException:
            engine.release()
            raise

    def _named(self, name: str, device: Device | CardedEngine) -> EngineConnection:
        with self._lock:
            self._check_open()
            place = self._places.pop(name, None)
            if place is not None and place.link.lost is None:
                self._places[name] = place
                return place
            link = link_to(device)
            self._opening.add(link)
        if place is not None:
            place.upload.close()
        try:
            place = replace(self._meet(name, link), carried=device.data == "carried")
            with self._lock:
                if not self._closed:
                    self._places[name] = place
                    return place
            place.upload.close()
            raise EngineGone(_DROPPED)
        except BaseException:
            link.close()
            raise
        finally:
            with self._lock:
                self._opening.discard(link)

    def _meet(self, name: str, link: EngineLink) -> EngineConnection:
        """Choose how batches travel: as transfer= says, else through a spool that both sides see, else over the socket."""
        welcome = link.open()
        why = "asked for by transfer='stream'"
        if self._transfer != "stream":
            try:
                return EngineConnection(name, link, share_spool(link), True)
            except DDLPError as error:
                why = printable(str(error))  # it names paths that the engine has told
                if self._transfer not in (None, "auto"):
                    raise NotShared(
                        f"transfer={self._transfer!r}, but {name} and this host share no spool: {why}. Have this host see "
                        f"the directory {printable(welcome.spool)} of the device (NFS or a cluster file system; never one disk "
                        "mounted by two systems) and name it in Device(spool=...), or leave transfer= out: batches then travel "
                        "over the engine's socket."
                    ) from error
        remark = f"batches are sent over the engine's socket: {why}"
        return EngineConnection(name, link, DatasetUpload.sent_to(welcome.spool), False, remark)

    def close(self) -> None:
        """Close all connections, and release the engines that this process has started."""
        if os.getpid() != self.pid:
            return  # in a forked child: the connections are the parent's
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            places, self._places = self._places, {}
            opening = list(self._opening)
        for link in opening:
            link.close()
        for place in places.values():
            place.close()
