"""Samples' bytes that come with leases: who may send how much, whose turn it is, and that nothing of them is left."""

from __future__ import annotations

import os
from queue import SimpleQueue

import pytest

from csd_engine.batchfile.checksum import Checksum
from csd_engine.batchfile.reader import Layout
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.carried import CarriedSet, pack_parcel
from csd_engine.errors import EngineError
from csd_engine.protocol import codec as say
from csd_engine.service import parcels as module
from csd_engine.service.jobs import Job, LeaseState, Meter, Work
from csd_engine.service.parcels import Parcels, most_bytes
from csd_engine.service.spool import Spool
from tests.csd_engine.service.jobs_scene import LARGE, Scene, served
from tests.engine_process import EPOCH, SEED, Recipe, until, wait_for
from tests.hostile_client import HostileClient

MIB = say.MAX_PART_BYTES
QUOTA = 128 * MIB  # 16 for a host, 32 for all
HEX = "0" * 32


class Office:
    """Parcels on a spool, without sockets: what the engine asks for is kept."""

    def __init__(self, directory) -> None:
        self.spool = Spool(directory / "spool", 1000, QUOTA, 0)
        self.asked: list[tuple[bytes, say.NeedParcel]] = []
        self.parcels = Parcels(self.spool, lambda peer, message: self.asked.append((peer, message)))
        self.jobs: list[Job] = []

    def job(self, host: str, leases: int = 0) -> Job:
        directory = self.spool.make_job_directory()
        job = Job(host.encode(), host, "j", directory.name, Layout(1, 1, 1, 3), 9, (), {}, Meter(0.0), 0, carried=True)
        for number in range(leases):
            job.add(Work(say.Lease("j", number, HEX, 0, 0, ((0, 0),)), job.layout))
        self.jobs.append(job)
        return job

    def ask(self, ahead: int = 2) -> list[tuple[str, int, int]]:
        """One round of the engine. Return (host, lease, offset) of what it has asked for in it."""
        self.asked.clear()
        self.failed = self.parcels.ask(self.jobs, ahead)
        return [(peer.decode(), message.lease, message.offset) for peer, message in self.asked]

    def send(self, job: Job, lease: int, offset: int, total: int, size: int | None = None, digest: str = HEX) -> None:
        size = min(MIB, total - offset) if size is None else size
        self.parcels.add(job, say.ParcelPart("j", lease, offset, total, digest), bytes(size))

    def whole(self, job: Job, lease: int, total: int) -> None:
        """Send a parcel of so many bytes, and let the engine take it."""
        for offset in range(0, total, MIB):
            self.send(job, lease, offset, total)
            self.ask()

    def files(self, job: Job) -> list[str]:
        return sorted(os.listdir(self.spool.directory / job.key))


@pytest.fixture
def office(tmp_path):
    one = Office(tmp_path)
    yield one
    one.spool.close()


def test_a_parcel_comes_in_parts_a_few_of_them_ahead(office):
    job = office.job("a", 1)
    assert office.ask() == [("a", 0, 0)] and office.ask() == []
    office.send(job, 0, 0, 6 * MIB + 5)
    assert office.ask() == [("a", 0, k * MIB) for k in range(1, 5)] and office.ask() == []
    office.send(job, 0, MIB, 6 * MIB + 5)
    assert office.ask() == [("a", 0, 5 * MIB)]
    for k in range(2, 7):
        assert not job.can_begin
        office.send(job, 0, k * MIB, 6 * MIB + 5)
        office.ask()
    assert job.can_begin and office.spool.parcel_bytes == 6 * MIB + 5
    path = office.spool.directory / job.key / "0.parcel"
    assert path.stat().st_size == 6 * MIB + 5 and path.stat().st_mode & 0o077 == 0
    office.parcels.drop(job, job.work[0].parcel)
    assert office.spool.parcel_bytes == 0 and office.files(job) == []


def test_a_few_leases_ahead_one_parcel_of_a_host_at_a_time_and_probes_first(office):
    one, two = office.job("a", 3), office.job("a", 3)
    assert office.ask() == [("a", 0, 0)]  # of the first job
    office.whole(one, 0, 5)
    assert one.work[0].parcel.complete and [m.lease for _, m in office.asked] == []
    assert office.ask() == [("a", 0, 0)] and two.work[0].parcel is not None  # of the second
    one.probes.append(say.Probe("j", 0, 0, ((0, 0),)))
    office.whole(two, 0, 5)
    assert office.ask() == [("a", say.OF_PROBE, 0)] and not one.can_probe
    office.whole(one, say.OF_PROBE, 5)
    assert one.can_probe
    for expected in ((one, 1), (two, 1)):
        assert office.ask() == [("a", expected[1], 0)]
        office.whole(*expected, 5)
    assert office.ask() == []  # two of each job are here
    assert office.ask(ahead=3) == [("a", 2, 0)]


def test_a_hosts_share_and_that_of_all(office):
    jobs = [office.job(host, 3) for host in "abc"]
    office.ask()
    share = most_bytes(QUOTA)
    office.whole(jobs[0], 0, share)
    office.ask()
    office.send(jobs[0], 1, 0, 5)  # its share is used up, and not that of all
    office.ask()
    assert jobs[0].can_begin and not jobs[0].work[1].parcel.complete
    office.whole(jobs[1], 0, share)
    assert [job.can_begin for job in jobs] == [True, True, False]
    assert office.spool.parcel_bytes == 2 * share == QUOTA // 4
    office.send(jobs[2], 0, 0, 5)  # there is no room for its 5 bytes, and no more is asked for
    office.ask()
    assert not jobs[2].can_begin and not jobs[0].work[1].parcel.complete
    assert office.ask() == []
    office.parcels.drop(jobs[0], jobs[0].work[0].parcel)
    office.ask()
    assert jobs[2].can_begin and jobs[0].work[1].parcel.complete


def test_batches_and_the_disks_reserve_leave_less_room(office, monkeypatch):
    job = office.job("a", 1)
    office.ask()
    office.spool.bytes = QUOTA - 4
    office.whole(job, 0, 5)
    assert not job.can_begin
    office.spool.bytes = 0
    monkeypatch.setattr(office.spool, "free_bytes", lambda: 4)
    office.ask()
    assert not job.can_begin
    monkeypatch.undo()
    office.ask()
    assert job.can_begin
    assert not office.spool.shortage(QUOTA - 5) and "5 B of samples" in office.spool.shortage(QUOTA - 4)


@pytest.mark.parametrize("part, why", [
    ((0, 16 * MIB + 1), "takes at most 16 MiB"),
    ((0, 0, 0), "takes at most 16 MiB"),
    ((0, 9, 8), "a part of 8 bytes"),
    ((0, 9, 10), "a part of 10 bytes"),
    ((0, 2 * MIB, 5), "a part of 5 bytes"),
])  # fmt: skip
def test_a_first_part_that_is_wrong(office, part, why):
    job = office.job("a", 1)
    office.ask()
    with pytest.raises(EngineError, match=why):
        office.send(job, 0, *part)
    assert office.spool.parcel_bytes == 0


def test_a_later_part_that_is_wrong_and_parts_that_nobody_asked_for(office):
    job = office.job("a", 2)
    office.send(job, 0, 0, 9)  # before the question
    assert office.ask() == [("a", 0, 0)]
    office.send(job, 1, 0, 9)  # of another lease
    office.send(job, 0, MIB, 2 * MIB)  # of another offset
    office.send(job, 0, 0, 2 * MIB)
    office.send(job, 0, 0, 2 * MIB)  # again
    office.send(job, 0, MIB, 2 * MIB)  # before the second question
    assert job.work[0].parcel.come == MIB and os.path.getsize(office.spool.directory / job.key / "0.parcel") == MIB
    assert office.ask() == [("a", 0, MIB)]
    for wrong in ((3 * MIB, None, HEX), (2 * MIB, 7, HEX), (2 * MIB, None, "1" * 32)):
        total, size, digest = wrong
        with pytest.raises(EngineError, match="were expected"):
            office.send(job, 0, MIB, total, size, digest)


def test_a_host_that_sends_none_fails_that_lease(office, monkeypatch):
    job = office.job("a", 1)
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    office.ask()
    now[0] += 59
    office.ask()
    assert office.failed == []
    office.send(job, 0, 0, 2 * MIB)
    now[0] += 59
    office.ask()  # asks for the rest: its time begins now
    now[0] += 59
    office.ask()
    assert office.failed == []
    now[0] += 2
    office.ask()
    assert [(one, lease) for one, lease, _ in office.failed] == [(job, 0)] and "for 60 s" in office.failed[0][2]
    office.parcels.drop(job, job.work[0].parcel)
    assert office.spool.parcel_bytes == 0 and office.files(job) == []


def here(job: Job) -> None:
    for lease in job.queue:
        parcel = job.work[lease].parcel = job.work[lease].parcel or module.Parcel("p", 0.0)
        parcel.total = parcel.come = 1
        parcel.reserved = True


def test_a_lease_without_its_bytes_is_not_begun_and_earns_no_credit():
    scene = Scene(LARGE)
    late, other = scene.job("late"), scene.job("other")
    late.carried = True
    scene.ask(late, 30)
    assert served(scene, [other], 20) == [other] * 20
    here(late)
    assert served(scene, [other], 20).count(late) in (9, 10, 11)
    assert all(work.state is LeaseState.QUEUED for work in late.work.values())


class Rogue:
    """A listed client with an open job whose samples it ought to send."""

    def __init__(self, engine, recipe: Recipe) -> None:
        self.client, self.recipe = HostileClient(engine.address, engine.keys), recipe
        dataset = CarriedSet(fingerprint(recipe.dataset), recipe.dataset.count)
        opened = self.client.open_job("j", recipe.pipeline.to_data(), dataset.to_data(), recipe.layout.to_data())
        assert isinstance(opened, say.JobOpen)
        self.directory = engine.spool / opened.directory

    def lease(self, number: int) -> list[tuple[int, int]]:
        items = self.recipe.items(number)
        self.client.send(say.Lease("j", number, self.recipe.identity(items), SEED, EPOCH, tuple(items)))
        return items

    def parcel(self, items) -> tuple[bytes, str]:
        reader = open_reader(self.recipe.dataset, str, lambda _: self.recipe.manifest)
        parcel, checksum = pack_parcel(reader, (index for index, _ in items), 1 << 30), Checksum()
        reader.close()
        checksum.update(parcel)
        return parcel, checksum.hexdigest()


@pytest.fixture
def rogue(start, recipe, tmp_path):
    engine = start("--root", str(recipe.root))
    one = Rogue(engine, recipe)
    one.engine = engine
    yield one
    one.client.close()


def send(rogue: Rogue, number: int, part: bytes, digest: str, total: int | None = None) -> None:
    rogue.client.send(say.ParcelPart("j", number, 0, len(part) if total is None else total, digest), part)


def test_a_real_worker_makes_a_batch_of_what_came_and_of_nothing_else(rogue):
    items = rogue.lease(0)
    asked = rogue.client.wait_for(say.NeedParcel)
    assert (asked.lease, asked.offset) == (0, 0)
    parcel, digest = rogue.parcel(items)
    send(rogue, 0, parcel, digest)
    published = rogue.client.wait_for(say.Published)
    rogue.recipe.check(rogue.engine.spool / published.file, 0, items)
    assert sorted(path.suffix for path in rogue.directory.iterdir()) == [".safetensors"]

    damaged = bytearray(parcel)
    damaged[-100] ^= 1
    rogue.lease(1)
    rogue.client.wait_for(say.NeedParcel)
    send(rogue, 1, bytes(damaged), digest)
    failed = rogue.client.wait_for(say.Failed)
    assert failed.lease == 1 and not failed.fatal and "damaged" in failed.reason

    checksum = Checksum()
    checksum.update(b"no parcel")
    rogue.lease(2)
    rogue.client.wait_for(say.NeedParcel)
    send(rogue, 2, b"no parcel", checksum.hexdigest())
    failed = rogue.client.wait_for(say.Failed)
    assert failed.lease == 2 and "damaged" in failed.reason

    rogue.lease(3)
    rogue.client.wait_for(say.NeedParcel)
    send(rogue, 3, parcel, digest, 1 << 40)
    failed = rogue.client.wait_for(say.Failed)
    assert failed.lease == 3 and "takes at most" in failed.reason
    until(lambda: sorted(path.suffix for path in rogue.directory.iterdir()) == [".safetensors"])


def test_parcels_that_never_come_hold_up_nobody_else_and_go_with_the_connection(rogue, recipe):
    for number in range(50):
        rogue.lease(number)
    rogue.client.wait_for(say.NeedParcel)
    send(rogue, 0, bytes(MIB), HEX, 20 * MIB)
    for number in range(100):  # that nobody has asked for
        rogue.client.send(say.ParcelPart("j", number, number * MIB, 200 * MIB, HEX), bytes(MIB))
    rogue.client.ping()
    assert sum(path.stat().st_size for path in rogue.directory.iterdir()) == MIB
    link, events = rogue.engine.link(), SimpleQueue()
    job = recipe.open(link, events)
    for number in range(10):
        items = recipe.lease(job, number, number)
        recipe.check(job.path(wait_for(events, say.Published)), number, items)
        job.release(number)
    link.close()
    rogue.client.send(say.Release("j", 0))
    until(lambda: "0.parcel" not in os.listdir(rogue.directory))
    rogue.client.send(say.CloseJob("j"))
    rogue.client.wait_for(say.JobClosed)
    assert not rogue.directory.exists()
