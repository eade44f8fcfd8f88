"""The messages between host and engine, a frozen dataclass each; every field knows what it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Tuple, Type

from csd_engine.machine.sensors import MAX_JOULES, MAX_WATTS, PARTS, Reading
from csd_engine.protocol.aead import CIPHERS
from csd_engine.protocol.fields import MAX_INT
from csd_engine.protocol.fields import an_object as _object
from csd_engine.protocol.fields import anything as _anything
from csd_engine.protocol.fields import checked as _checked
from csd_engine.protocol.fields import count as _count
from csd_engine.protocol.fields import file as _file
from csd_engine.protocol.fields import hex32 as _hex32
from csd_engine.protocol.fields import integer as _integer
from csd_engine.protocol.fields import items as _items
from csd_engine.protocol.fields import kind as _kind
from csd_engine.protocol.fields import list_of as _list
from csd_engine.protocol.fields import name as _name
from csd_engine.protocol.fields import no_or_name as _no_or_name
from csd_engine.protocol.fields import number as _number
from csd_engine.protocol.fields import optional as _optional
from csd_engine.protocol.fields import rate as _rate
from csd_engine.protocol.fields import seconds as _seconds
from csd_engine.protocol.fields import shared_file as _shared_file
from csd_engine.protocol.fields import signed as _signed
from csd_engine.protocol.fields import text as _text
from csd_engine.protocol.fields import truth as _truth
from csd_engine.protocol.fields import tuple_of as _tuple
from csd_engine.protocol.fields import versions as _versions

__all__ = [
    "AskCache",
    "AskSensors",
    "AskStatus",
    "AskStream",
    "CacheState",
    "CloseJob",
    "Failed",
    "Fetch",
    "FetchSealed",
    "FilePart",
    "Hello",
    "JobClosed",
    "JobOpen",
    "JobStatus",
    "Lease",
    "Look",
    "MAX_PART_BYTES",
    "MESSAGES",
    "Measured",
    "Message",
    "NeedFile",
    "NeedParcel",
    "NoPart",
    "NoStream",
    "OF_PROBE",
    "OpenJob",
    "ParcelPart",
    "Part",
    "Ping",
    "Pong",
    "Probe",
    "ProbeDone",
    "Published",
    "Reading",
    "Refused",
    "Release",
    "Retires",
    "Seen",
    "Sensors",
    "Status",
    "StreamOpen",
    "Welcome",
]

MAX_PART_BYTES = 1 << 20  # of a file, a parcel or a batch, in one message
OF_PROBE = -1  # in a parcel's messages instead of a lease: of the job's next probe

Item = Tuple[int, int]


class JobStatus(NamedTuple):
    """One open job in Status; `host` tells hosts apart without naming them (8 hex digits of a hash of key and address)."""

    host: str
    job: str  # its directory below the spool
    samples: int  # of the data set
    batch: int
    batches_made: int
    images_per_s: float  # of the last seconds
    batches_waiting: int  # made, in the spool, not yet fetched
    batches_queued: int  # leased, not begun
    held_back: str  # why its next batch is not begun; empty: no reason, or no worker is free


_job_status = _tuple(
    _text(r"[0-9a-f]{0,8}", "at most 8 hex digits"), _name, _count, _count, _count, _rate, _count, _count, _anything
)

_parcel = _integer(OF_PROBE, MAX_INT)

_part = _text("|".join(PARTS), "a part of a computer")
_joules = _number(0, MAX_JOULES)
_reading = _tuple(_anything, _part, _optional(_joules), _optional(_number(-MAX_WATTS, MAX_WATTS)), _joules)


@dataclass(frozen=True)
class Message:
    """Base of all messages."""


@dataclass(frozen=True)
class Hello(Message):
    """Host: the first message. An engine that speaks another protocol answers Refused."""

    protocol: int = _checked(_count)
    version: str = _checked(_anything)


@dataclass(frozen=True)
class Welcome(Message):
    """Engine: versions of its parts; quota in batches and bytes over all jobs; spool as a path on the device."""

    versions: Dict[str, str] = _checked(_versions)
    quota_batches: int = _checked(_count)
    quota_bytes: int = _checked(_count)
    spool: str = _checked(_anything)
    workers: int = _checked(_count)


@dataclass(frozen=True)
class Refused(Message):
    """Engine: it refuses `job`, or the whole connection if `job` is empty."""

    job: str = _checked(_no_or_name)
    reason: str = _checked(_anything)


@dataclass(frozen=True)
class OpenJob(Message):
    """Host: open a job. Pipeline, data set and layout are plain data; each is parsed by its own package. `run` to `after_lower`
    say which rank of which training run it is for (`csd_engine.service.jobs.Member`). `most_pixels`: the engine leaves larger
    images to the host, which may warn of them; null: it has its own limit alone.
    """

    job: str = _checked(_name)
    pipeline: Dict[str, Any] = _checked(_object)
    dataset: Dict[str, Any] = _checked(_object)
    layout: Dict[str, Any] = _checked(_object)
    run: str = _checked(_no_or_name, "")
    rank: int = _checked(_count, 0)
    after_lower: bool = _checked(_truth, False)
    most_pixels: Optional[int] = _checked(_optional(_count), None)


@dataclass(frozen=True)
class JobOpen(Message):
    """Engine: the job is open; its batch files appear in `directory` below the spool."""

    job: str = _checked(_name)
    directory: str = _checked(_name)


@dataclass(frozen=True)
class NeedFile(Message):
    """Engine: send the part of this manifest or array that begins at byte `offset`; answered once per part (flow control)."""

    kind: str = _checked(_kind)
    fingerprint: str = _checked(_hex32)
    offset: int = _checked(_count)


@dataclass(frozen=True)
class FilePart(Message):
    """Host: a piece of a file of `total` bytes, from `offset`. The second frame holds it; a manifest's is zlib-compressed."""

    kind: str = _checked(_kind)
    fingerprint: str = _checked(_hex32)
    offset: int = _checked(_count)
    total: int = _checked(_count)


@dataclass(frozen=True)
class Look(Message):
    """Host: what does the engine see in the host's `file` below the spool? It also asks for a file of the engine's own."""

    file: str = _checked(_shared_file)


@dataclass(frozen=True)
class Seen(Message):
    """Engine: digest of that file's content (empty: not seen), and a file of the engine's below the spool with its digest."""

    file: str = _checked(_shared_file)
    digest: str = _checked(_anything)
    own: str = _checked(_name)
    own_digest: str = _checked(_hex32)


@dataclass(frozen=True)
class Probe(Message):
    """Host: prepare these items and tell the digests. The host compares them with its own."""

    job: str = _checked(_name)
    seed: int = _checked(_signed)
    epoch: int = _checked(_count)
    items: Tuple[Item, ...] = _checked(_list(_tuple(_count, _count), 256))


@dataclass(frozen=True)
class ProbeDone(Message):
    """Engine: `csd_engine.prepare.sample.sample_digest` of each item, in order. For an item that failed: 'error: ' and the
    reason, 'refused: ' if a user's operator does not run there, or 'left: ' if only the host may make it.
    """

    job: str = _checked(_name)
    digests: Tuple[str, ...] = _checked(_list(_anything, 256))
    versions: Dict[str, str] = _checked(_versions)


@dataclass(frozen=True)
class Lease(Message):
    """Host: prepare this batch. Leases of a job are begun in the order sent."""

    job: str = _checked(_name)
    lease: int = _checked(_count)
    identity: str = _checked(_hex32)
    seed: int = _checked(_signed)
    epoch: int = _checked(_count)
    items: Tuple[Item, ...] = _checked(_items)


@dataclass(frozen=True)
class NeedParcel(Message):
    """Engine: send the part of this lease's parcel that begins at byte `offset`; answered once per part (flow control).

    Only of jobs whose data set is carried (`csd_engine.data.carried`). The engine asks for a few leases' parcels ahead.
    """

    job: str = _checked(_name)
    lease: int = _checked(_parcel)
    offset: int = _checked(_count)


@dataclass(frozen=True)
class ParcelPart(Message):
    """Host: a part of a parcel of `total` bytes, from `offset`, in the second frame.

    `digest`: `csd_engine.batchfile.checksum.Checksum` of the whole parcel.
    """

    job: str = _checked(_name)
    lease: int = _checked(_parcel)
    offset: int = _checked(_count)
    total: int = _checked(_count)
    digest: str = _checked(_hex32)


@dataclass(frozen=True)
class Published(Message):
    """Engine: the batch file is complete under its name; `file` is relative to the spool; busy_s without waits."""

    job: str = _checked(_name)
    lease: int = _checked(_count)
    file: str = _checked(_file)
    file_bytes: int = _checked(_count)
    busy_s: float = _checked(_seconds)


@dataclass(frozen=True)
class Measured(Message):
    """Engine: (samples, busy seconds) of batches that it has made for other ranks of this job's run."""

    job: str = _checked(_name)
    batches: Tuple[Tuple[int, float], ...] = _checked(_list(_tuple(_count, _seconds), 256))


@dataclass(frozen=True)
class Fetch(Message):
    """Host: send these bytes of a published batch file; `number` is repeated in the answer. The host asks for a few parts
    ahead, no more: nothing else bounds what waits in the engine to be sent.
    """

    number: int = _checked(_count)
    job: str = _checked(_name)
    lease: int = _checked(_count)
    offset: int = _checked(_count)
    length: int = _checked(_integer(1, MAX_PART_BYTES))


@dataclass(frozen=True)
class Part(Message):
    """Engine: bytes of a batch file from `offset`, in the second frame. Answers come in the order of the questions."""

    number: int = _checked(_count)
    offset: int = _checked(_count)


@dataclass(frozen=True)
class NoPart(Message):
    """Engine: the bytes from `offset` cannot be sent."""

    number: int = _checked(_count)
    offset: int = _checked(_count)
    reason: str = _checked(_anything)


@dataclass(frozen=True)
class AskStream(Message):
    """Host: open a connection for sealed parts, by this cipher. Sent only to an engine whose Welcome has `stream` among its
    versions: the ciphers that it knows, the one that it is best at first. The second frame is the ticket, 32 random bytes, by
    which the engine shall know that connection.
    """

    cipher: str = _checked(_text("|".join(CIPHERS), "a cipher"))


@dataclass(frozen=True)
class StreamOpen(Message):
    """Engine: connect to this TCP port, and send the ticket. The second frame is the key of its records, 32 random bytes."""

    port: int = _checked(_integer(1, 65535))


@dataclass(frozen=True)
class NoStream(Message):
    """Engine: there is no connection for sealed parts now; they come as before, as answers to Fetch."""

    reason: str = _checked(_anything)


@dataclass(frozen=True)
class FetchSealed(Message):
    """Host: send the `size` bytes of a published batch file over the connection for sealed parts. `number` is new."""

    number: int = _checked(_count)
    job: str = _checked(_name)
    lease: int = _checked(_count)
    size: int = _checked(_count)


@dataclass(frozen=True)
class Failed(Message):
    """Engine: the batch could not be made. `fatal`: every other lease of the job would fail as well."""

    job: str = _checked(_name)
    lease: int = _checked(_count)
    reason: str = _checked(_anything)
    fatal: bool = _checked(_truth)


@dataclass(frozen=True)
class Release(Message):
    """Host: the batch was delivered, or is not wanted any more: stop between two samples; its file may go."""

    job: str = _checked(_name)
    lease: int = _checked(_count)


@dataclass(frozen=True)
class Ping(Message):
    """Host: alive; `waiting` names the jobs whose training step waits for a batch now."""

    waiting: Tuple[str, ...] = _checked(_list(_name, 1024))


@dataclass(frozen=True)
class Pong(Message):
    """Engine: alive. progress holds (job, lease, samples done) of each lease begun; note says what holds leases
    back.
    """

    progress: Tuple[Tuple[str, int, int], ...] = _checked(_list(_tuple(_name, _count, _count), 4096))
    spool_batches: int = _checked(_count)
    spool_bytes: int = _checked(_count)
    free_bytes: int = _checked(_count)
    note: str = _checked(_anything)


@dataclass(frozen=True)
class Retires(Message):
    """Engine: it is about to end, and begins no more leases. It finishes those that it has begun, (job, lease) each, and ends
    when they are released.
    """

    begun: Tuple[Tuple[str, int], ...] = _checked(_list(_tuple(_name, _count), 4096))


@dataclass(frozen=True)
class AskStatus(Message):
    """Host: what is the state of the device? The answer is for people; nothing depends on it."""


@dataclass(frozen=True)
class Status(Message):
    """Engine: its jobs, those of other hosts too, and the computer it runs on. Memory is that of the service and its
    workers together; temperature_c is None where it cannot be read.
    """

    versions: Dict[str, str] = _checked(_versions)
    uptime_s: float = _checked(_seconds)
    workers: int = _checked(_count)
    cores: int = _checked(_count)  # that it may use
    jobs: Tuple[JobStatus, ...] = _checked(_list(lambda value: JobStatus(*_job_status(value)), 1024))
    images: int = _checked(_count)  # since it started
    images_per_s: float = _checked(_rate)
    resident_bytes: int = _checked(_count)  # pages shared between them count once a process
    private_bytes: int = _checked(_count)
    memory_total_bytes: int = _checked(_count)
    memory_available_bytes: int = _checked(_count)
    spool_batches: int = _checked(_count)
    spool_bytes: int = _checked(_count)
    free_bytes: int = _checked(_count)
    quota_batches: int = _checked(_count)
    quota_bytes: int = _checked(_count)
    reserve_bytes: int = _checked(_count)
    temperature_c: Optional[float] = _checked(_optional(_number(-273.15, 1000)))
    load: Tuple[float, float, float] = _checked(_tuple(_rate, _rate, _rate))  # of 1, 5 and 15 minutes
    note: str = _checked(_anything)  # what is wrong; empty: nothing


@dataclass(frozen=True)
class AskSensors(Message):
    """Host: what do the power and energy sensors say?"""


@dataclass(frozen=True)
class Sensors(Message):
    """Engine: a `csd_engine.machine.sensors.Reading` of each sensor that its user may read; none if there is no sensor."""

    readings: Tuple[Reading, ...] = _checked(_list(lambda value: Reading(*_reading(value)), 256))


@dataclass(frozen=True)
class AskCache(Message):
    """Host: what does the engine's cache hold? Sent only to an engine whose Welcome has `cache` among its versions."""


@dataclass(frozen=True)
class CacheState(Message):
    """Engine: the bytes that its cache holds, and may hold; the samples of leases that came from it, and those that did not,
    since the engine started. Jobs of which nothing is kept do not count.
    """

    bytes: int = _checked(_count)
    quota_bytes: int = _checked(_count)
    hits: int = _checked(_count)
    misses: int = _checked(_count)


@dataclass(frozen=True)
class CloseJob(Message):
    """Host: the job is over; everything of it is removed."""

    job: str = _checked(_name)


@dataclass(frozen=True)
class JobClosed(Message):
    """Engine: nothing of the job is left."""

    job: str = _checked(_name)


HOST_MESSAGES: Tuple[Type[Message], ...] = (
    Hello, OpenJob, FilePart, Look, Probe, Lease, ParcelPart, Fetch, Release, Ping, AskStatus, AskSensors, AskCache, AskStream,
    FetchSealed, CloseJob,
)  # fmt: skip
ENGINE_MESSAGES: Tuple[Type[Message], ...] = (
    Welcome, Refused, JobOpen, NeedFile, Seen, ProbeDone, NeedParcel, Published, Measured, Part, NoPart, Failed, Pong,
    Retires, Status, Sensors, CacheState, StreamOpen, NoStream, JobClosed,
)  # fmt: skip
MESSAGES = HOST_MESSAGES + ENGINE_MESSAGES
