"""In which order the ranks of a run are served, and which measurements they share: the pure rules."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from csd_engine.service.fair_queue import Quota, learned, to_tell, without_turns
from csd_engine.service.jobs import CALIBRATION, Job, Member
from tests.csd_engine.service.jobs_scene import LARGE, Scene, backlog, served

FEW = settings(deadline=None, max_examples=30)


def rank(scene: Scene, number: int, after_lower: bool = True, run: str = "run", host: str = "a", pipeline: str = "p") -> Job:
    job = scene.job(host)
    job.member = Member(run, number, after_lower)
    job.command = {"pipeline": pipeline, "dataset": "d"}
    return job


@FEW
@given(st.permutations(range(4)))
def test_one_ranks_directory_is_filled_before_the_next_ones(opened):
    """In whatever order the ranks opened: the lowest rank is served as long as it wants anything, then the next."""
    scene = Scene(LARGE)
    jobs = {number: rank(scene, number) for number in opened}
    for job in jobs.values():
        scene.ask(job, 3)
    made = []
    while (job := scene.step()) is not None:
        made.append(job.member.rank)
    assert made == sorted(made) and len(made) == 12


@FEW
@given(st.permutations(range(3)))
def test_ranks_take_turns_where_they_do_not_ask_for_more(opened):
    scene = Scene(LARGE)
    jobs = [rank(scene, number, after_lower=False) for number in opened]
    keys = [job.key for job in served(scene, jobs, 12)]
    assert all(len(set(keys[k : k + 3])) == 3 for k in range(0, 12, 3))


def test_the_one_that_is_waited_for_goes_first():
    scene = Scene(LARGE)
    first, second = rank(scene, 0), rank(scene, 1)
    second.waiting = True
    assert served(scene, [first, second], 4) == [second] * 4
    first.waiting = True  # both wait: they take turns
    assert len({job.key for job in served(scene, [first, second], 2)}) == 2
    first.waiting = second.waiting = False
    assert served(scene, [first, second], 4) == [first] * 4


@settings(FEW, max_examples=20)
@given(st.integers(1, 4), st.integers(0, 3))
def test_a_run_does_not_shut_out_other_jobs_of_its_host(ranks, before):
    """An evaluation job beside the run, opened before, between or after the ranks, gets every second batch."""
    scene = Scene(LARGE)
    jobs: list[Job] = []
    other = None
    for number in range(max(ranks, before + 1)):
        if number == before:
            other = scene.job("a")
            jobs.append(other)
        if number < ranks:
            jobs.append(rank(scene, number))
    assert other is not None
    assert served(scene, jobs, 20).count(other) == 10


def test_a_full_first_rank_leaves_the_spool_to_the_others():
    """It may take more than its share, but not what another rank waits for."""
    scene = Scene(Quota(32, 1 << 30))
    first, second = rank(scene, 0), rank(scene, 1)
    for _ in range(64):
        backlog(scene, [first, second])
        if scene.step(drain=False) is None:
            break
    assert first.held > 16 and second.held >= 2


def test_groups_are_told_apart():
    scene = Scene(LARGE)
    one = rank(scene, 0)
    near = rank(scene, 1)
    far = [
        rank(scene, 1, run="other"), rank(scene, 1, run=""), rank(scene, 1, host="b"), rank(scene, 1, pipeline="q"),
        scene.job("a"),
    ]  # fmt: skip
    jobs = [near, *far, one]
    assert to_tell(one, jobs) == [near]
    assert without_turns(jobs) == [one, *far, near]
    assert to_tell(far[1], jobs) == []


def test_all_ranks_know_the_speed_that_one_has_seen():
    """Each rank is told as many measurements as a known rate needs; a rank that joins later gets them at once."""
    scene = Scene(LARGE)
    jobs = [rank(scene, number) for number in range(3)]
    told = {job.key: 0 for job in jobs}
    for k in range(CALIBRATION + 5):
        for one in to_tell(jobs[0], jobs):
            one.measurements_sent += 1
            told[one.key] += 1
        jobs[0].measured.append((8, 0.5 + k))
    assert list(told.values()) == [0, CALIBRATION, CALIBRATION]
    late = rank(scene, 3)
    assert learned(late, [*jobs, late]) == tuple((8, 0.5 + k) for k in range(5, 15))
    assert learned(jobs[0], jobs) == ()
