"""The messages between host and engine, a frozen dataclass each; every field knows what it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Tuple, Type

from csd_engine.machine.sensors import MAX_JOULES, MAX_WATTS, PARTS, Reading
from csd_engine.protocol import fields as f
from csd_engine.protocol.aead import CIPHERS

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


_job_status = f.tuple_of(
    f.text(r"[0-9a-f]{0,8}", "at most 8 hex digits"), f.name, f.count, f.count, f.count, f.rate, f.count, f.count, f.anything
)

_parcel = f.integer(OF_PROBE, f.MAX_INT)

_part = f.text("|".join(PARTS), "a part of a computer")
_joules = f.number(0, MAX_JOULES)
_reading = f.tuple_of(f.anything, _part, f.optional(_joules), f.optional(f.number(-MAX_WATTS, MAX_WATTS)), _joules)


@dataclass(frozen=True)
class Message:
    """Base of all messages."""


@dataclass(frozen=True)
class Hello(Message):
    """Host: the first message. An engine that speaks another protocol answers Refused."""

    protocol: int = f.checked(f.count)
    version: str = f.checked(f.anything)


@dataclass(frozen=True)
class Welcome(Message):
    """Engine: versions of its parts; quota in batches and bytes over all jobs; spool as a path on the device."""

    versions: Dict[str, str] = f.checked(f.versions)
    quota_batches: int = f.checked(f.count)
    quota_bytes: int = f.checked(f.count)
    spool: str = f.checked(f.anything)
    workers: int = f.checked(f.count)


@dataclass(frozen=True)
class Refused(Message):
    """Engine: it refuses `job`, or the whole connection if `job` is empty."""

    job: str = f.checked(f.no_or_name)
    reason: str = f.checked(f.anything)


@dataclass(frozen=True)
class OpenJob(Message):
    """Host: open a job. Pipeline, data set and layout are plain data; each is parsed by its own package. `run` to `after_lower`
    say which rank of which training run it is for (`csd_engine.service.jobs.Member`). `most_pixels`: the engine leaves larger
    images to the host, which may warn of them; null: it has its own limit alone.
    """

    job: str = f.checked(f.name)
    pipeline: Dict[str, Any] = f.checked(f.an_object)
    dataset: Dict[str, Any] = f.checked(f.an_object)
    layout: Dict[str, Any] = f.checked(f.an_object)
    run: str = f.checked(f.no_or_name, "")
    rank: int = f.checked(f.count, 0)
    after_lower: bool = f.checked(f.truth, False)
    most_pixels: Optional[int] = f.checked(f.optional(f.count), None)


@dataclass(frozen=True)
class JobOpen(Message):
    """Engine: the job is open; its batch files appear in `directory` below the spool."""

    job: str = f.checked(f.name)
    directory: str = f.checked(f.name)


@dataclass(frozen=True)
class NeedFile(Message):
    """Engine: send the part of this manifest or array that begins at byte `offset`; answered once per part (flow control)."""

    kind: str = f.checked(f.kind)
    fingerprint: str = f.checked(f.hex32)
    offset: int = f.checked(f.count)


@dataclass(frozen=True)
class FilePart(Message):
    """Host: a piece of a file of `total` bytes, from `offset`. The second frame holds it; a manifest's is zlib-compressed."""

    kind: str = f.checked(f.kind)
    fingerprint: str = f.checked(f.hex32)
    offset: int = f.checked(f.count)
    total: int = f.checked(f.count)


@dataclass(frozen=True)
class Look(Message):
    """Host: what does the engine see in the host's `file` below the spool? It also asks for a file of the engine's own."""

    file: str = f.checked(f.shared_file)


@dataclass(frozen=True)
class Seen(Message):
    """Engine: digest of that file's content (empty: not seen), and a file of the engine's below the spool with its digest."""

    digest: str = f.checked(f.anything)
    own: str = f.checked(f.name)
    own_digest: str = f.checked(f.hex32)


@dataclass(frozen=True)
class Probe(Message):
    """Host: prepare these items and tell the digests. The host compares them with its own."""

    job: str = f.checked(f.name)
    seed: int = f.checked(f.signed)
    epoch: int = f.checked(f.count)
    items: Tuple[Item, ...] = f.checked(f.list_of(f.tuple_of(f.count, f.count), 256))


@dataclass(frozen=True)
class ProbeDone(Message):
    """Engine: `csd_engine.prepare.sample.sample_digest` of each item, in order. For an item that failed: 'error: ' and the
    reason, 'refused: ' if a user's operator does not run there, or 'left: ' if only the host may make it.
    """

    job: str = f.checked(f.name)
    digests: Tuple[str, ...] = f.checked(f.list_of(f.anything, 256))


@dataclass(frozen=True)
class Lease(Message):
    """Host: prepare this batch. Leases of a job are begun in the order sent."""

    job: str = f.checked(f.name)
    lease: int = f.checked(f.count)
    identity: str = f.checked(f.hex32)
    seed: int = f.checked(f.signed)
    epoch: int = f.checked(f.count)
    items: Tuple[Item, ...] = f.checked(f.items)


@dataclass(frozen=True)
class NeedParcel(Message):
    """Engine: send the part of this lease's parcel that begins at byte `offset`; answered once per part (flow control).

    Only of jobs whose data set is carried (`csd_engine.data.carried`). The engine asks for a few leases' parcels ahead.
    """

    job: str = f.checked(f.name)
    lease: int = f.checked(_parcel)
    offset: int = f.checked(f.count)


@dataclass(frozen=True)
class ParcelPart(Message):
    """Host: a part of a parcel of `total` bytes, from `offset`, in the second frame.

    `digest`: `csd_engine.batchfile.checksum.Checksum` of the whole parcel.
    """

    job: str = f.checked(f.name)
    lease: int = f.checked(_parcel)
    offset: int = f.checked(f.count)
    total: int = f.checked(f.count)
    digest: str = f.checked(f.hex32)


@dataclass(frozen=True)
class Published(Message):
    """Engine: the batch file is complete under its name; `file` is relative to the spool; busy_s without waits."""

    job: str = f.checked(f.name)
    lease: int = f.checked(f.count)
    file: str = f.checked(f.file)
    busy_s: float = f.checked(f.seconds)


@dataclass(frozen=True)
class Measured(Message):
    """Engine: (samples, busy seconds) of batches that it has made for other ranks of this job's run."""

    job: str = f.checked(f.name)
    batches: Tuple[Tuple[int, float], ...] = f.checked(f.list_of(f.tuple_of(f.count, f.seconds), 256))


@dataclass(frozen=True)
class Fetch(Message):
    """Host: send these bytes of a published batch file; `number` is repeated in the answer. The host asks for a few parts
    ahead, no more: nothing else bounds what waits in the engine to be sent.
    """

    number: int = f.checked(f.count)
    job: str = f.checked(f.name)
    lease: int = f.checked(f.count)
    offset: int = f.checked(f.count)
    length: int = f.checked(f.integer(1, MAX_PART_BYTES))


@dataclass(frozen=True)
class Part(Message):
    """Engine: bytes of a batch file from `offset`, in the second frame. Answers come in the order of the questions."""

    number: int = f.checked(f.count)
    offset: int = f.checked(f.count)


@dataclass(frozen=True)
class NoPart(Message):
    """Engine: the bytes from `offset` cannot be sent."""

    number: int = f.checked(f.count)
    offset: int = f.checked(f.count)
    reason: str = f.checked(f.anything)


@dataclass(frozen=True)
class AskStream(Message):
    """Host: open a connection for sealed parts, by this cipher. Sent only to an engine whose Welcome has `stream` among its
    versions: the ciphers that it knows, the one that it is best at first. The second frame is the ticket, 32 random bytes, by
    which the engine shall know that connection.
    """

    cipher: str = f.checked(f.text("|".join(CIPHERS), "a cipher"))


@dataclass(frozen=True)
class StreamOpen(Message):
    """Engine: connect to this TCP port, and send the ticket. The second frame is the key of its records, 32 random bytes."""

    port: int = f.checked(f.integer(1, 65535))


@dataclass(frozen=True)
class NoStream(Message):
    """Engine: there is no connection for sealed parts now; they come as before, as answers to Fetch."""

    reason: str = f.checked(f.anything)


@dataclass(frozen=True)
class FetchSealed(Message):
    """Host: send the `size` bytes of a published batch file over the connection for sealed parts. `number` is new."""

    number: int = f.checked(f.count)
    job: str = f.checked(f.name)
    lease: int = f.checked(f.count)
    size: int = f.checked(f.count)


@dataclass(frozen=True)
class Failed(Message):
    """Engine: the batch could not be made. `fatal`: every other lease of the job would fail as well."""

    job: str = f.checked(f.name)
    lease: int = f.checked(f.count)
    reason: str = f.checked(f.anything)
    fatal: bool = f.checked(f.truth)


@dataclass(frozen=True)
class Release(Message):
    """Host: the batch was delivered, or is not wanted any more: stop between two samples; its file may go."""

    job: str = f.checked(f.name)
    lease: int = f.checked(f.count)


@dataclass(frozen=True)
class Ping(Message):
    """Host: alive; `waiting` names the jobs whose training step waits for a batch now."""

    waiting: Tuple[str, ...] = f.checked(f.list_of(f.name, 1024))


@dataclass(frozen=True)
class Pong(Message):
    """Engine: alive. progress holds (job, lease, samples done) of each lease begun; note says what holds leases back."""

    progress: Tuple[Tuple[str, int, int], ...] = f.checked(f.list_of(f.tuple_of(f.name, f.count, f.count), 4096))
    note: str = f.checked(f.anything)


@dataclass(frozen=True)
class Retires(Message):
    """Engine: it is about to end, and begins no more leases. It finishes those that it has begun, (job, lease) each, and ends
    when they are released.
    """

    begun: Tuple[Tuple[str, int], ...] = f.checked(f.list_of(f.tuple_of(f.name, f.count), 4096))


@dataclass(frozen=True)
class AskStatus(Message):
    """Host: what is the state of the device? The answer is for people; nothing depends on it."""


@dataclass(frozen=True)
class Status(Message):
    """Engine: its jobs, those of other hosts too, and the computer it runs on. Memory is that of the service and its
    workers together; temperature_c is None where it cannot be read.
    """

    versions: Dict[str, str] = f.checked(f.versions)
    uptime_s: float = f.checked(f.seconds)
    workers: int = f.checked(f.count)
    cores: int = f.checked(f.count)  # that it may use
    jobs: Tuple[JobStatus, ...] = f.checked(f.list_of(lambda value: JobStatus(*_job_status(value)), 1024))
    images: int = f.checked(f.count)  # since it started
    images_per_s: float = f.checked(f.rate)
    resident_bytes: int = f.checked(f.count)  # pages shared between them count once a process
    private_bytes: int = f.checked(f.count)
    memory_total_bytes: int = f.checked(f.count)
    memory_available_bytes: int = f.checked(f.count)
    spool_batches: int = f.checked(f.count)
    spool_bytes: int = f.checked(f.count)
    free_bytes: int = f.checked(f.count)
    quota_batches: int = f.checked(f.count)
    quota_bytes: int = f.checked(f.count)
    reserve_bytes: int = f.checked(f.count)
    temperature_c: Optional[float] = f.checked(f.optional(f.number(-273.15, 1000)))
    load: Tuple[float, float, float] = f.checked(f.tuple_of(f.rate, f.rate, f.rate))  # of 1, 5 and 15 minutes
    note: str = f.checked(f.anything)  # what is wrong; empty: nothing


@dataclass(frozen=True)
class AskSensors(Message):
    """Host: what do the power and energy sensors say?"""


@dataclass(frozen=True)
class Sensors(Message):
    """Engine: a `csd_engine.machine.sensors.Reading` of each sensor that its user may read; none if there is no sensor."""

    readings: Tuple[Reading, ...] = f.checked(f.list_of(lambda value: Reading(*_reading(value)), 256))


@dataclass(frozen=True)
class AskCache(Message):
    """Host: what does the engine's cache hold? Sent only to an engine whose Welcome has `cache` among its versions."""


@dataclass(frozen=True)
class CacheState(Message):
    """Engine: the bytes that its cache holds, and may hold; the samples of leases that came from it, and those that did not,
    since the engine started. Jobs of which nothing is kept do not count.
    """

    bytes: int = f.checked(f.count)
    quota_bytes: int = f.checked(f.count)
    hits: int = f.checked(f.count)
    misses: int = f.checked(f.count)


@dataclass(frozen=True)
class CloseJob(Message):
    """Host: the job is over; everything of it is removed."""

    job: str = f.checked(f.name)


@dataclass(frozen=True)
class JobClosed(Message):
    """Engine: nothing of the job is left."""

    job: str = f.checked(f.name)


HOST_MESSAGES: Tuple[Type[Message], ...] = (
    Hello, OpenJob, FilePart, Look, Probe, Lease, ParcelPart, Fetch, Release, Ping, AskStatus, AskSensors, AskCache, AskStream,
    FetchSealed, CloseJob,
)  # fmt: skip
ENGINE_MESSAGES: Tuple[Type[Message], ...] = (
    Welcome, Refused, JobOpen, NeedFile, Seen, ProbeDone, NeedParcel, Published, Measured, Part, NoPart, Failed, Pong,
    Retires, Status, Sensors, CacheState, StreamOpen, NoStream, JobClosed,
)  # fmt: skip
MESSAGES = HOST_MESSAGES + ENGINE_MESSAGES
