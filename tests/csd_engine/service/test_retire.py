"""An engine that gets SIGTERM finishes what it has begun, hands it over, and ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from csd_engine.errors import EngineRefused
from csd_engine.protocol import codec as say
from ddlp.sources.engine.link import EngineLink

SLOW = ("--slowdown", "200")  # a batch takes long enough for a signal in the midst of it


def next_of(events: SimpleQueue[Any], *kinds: type) -> Any:
    """The next event that is no progress."""
    while isinstance(event := events.get(timeout=300), say.Pong):
        pass
    assert isinstance(event, kinds), event
    return event


def nothing_more(events: SimpleQueue[Any]) -> None:
    with pytest.raises(Empty):
        while isinstance(event := events.get(timeout=0.3), say.Pong):
            pass
        pytest.fail(f"{event}")


def begins(link: EngineLink, queued: int) -> None:
    """Wait until the first of the batches has begun. It is asked for often: so many others wait for a moment only."""
    end = time.monotonic() + 20
    while link.status().jobs[0].batches_queued != queued:
        assert time.monotonic() < end, "the first batch does not begin, or is made already"
        time.sleep(0.01)


@pytest.fixture
def begun(recipe, start) -> Iterator[Any]:
    """An engine with a worker that has begun lease 0; leases 1 to 3 are queued."""
    engine, link, events, job = recipe.at_work(start, *SLOW)
    items = [recipe.lease(job, number, number) for number in range(4)]
    begins(link, 3)
    yield engine, link, events, job, items
    link.close()


def test_what_is_begun_is_finished_and_fetched_and_nothing_else_is_begun(recipe, begun):
    engine, link, events, job, items = begun
    engine.process.send_signal(signal.SIGTERM)
    assert next_of(events, say.Retires).begun == ((job.name, 0),)
    recipe.lease(job, 9)
    published = next_of(events, say.Published)
    recipe.check(job.path(published), 0, items[0])
    assert "retires" in link.status().note
    with pytest.raises(EngineRefused, match="the engine retires"):
        recipe.open(link, SimpleQueue())
    late = engine.link()
    assert "the engine retires" in late.status().note
    late.close()
    nothing_more(events)  # it waits until the batch was fetched
    assert engine.process.poll() is None
    job.release(0)
    assert "the engine retires" in next_of(events, say.Refused).reason
    assert engine.process.wait(60) == 0


def test_an_idle_engine_ends_at_once(recipe, start):
    engine, link, events, _ = recipe.at_work(start)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(60) == 0
    assert next_of(events, say.Retires).begun == ()
    next_of(events, say.Refused)
    link.close()


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_second_sigterm_end_it_at_once(begun, ends):
    engine, _, events, *_ = begun
    if ends == signal.SIGTERM:
        engine.process.send_signal(signal.SIGTERM)
        next_of(events, say.Retires)
    engine.process.send_signal(ends)
    assert engine.process.wait(60) == 0
    next_of(events, say.Refused)


def test_it_waits_no_longer_than_it_may(recipe, start):
    engine, link, events, job = recipe.at_work(start, "--retire-s", "0.5")
    recipe.lease(job, 0)
    next_of(events, say.Published)
    engine.process.send_signal(signal.SIGTERM)
    next_of(events, say.Retires)
    next_of(events, say.Refused)  # nobody has fetched the batch
    assert engine.process.wait(60) == 0 and "have not fetched all batches within 0.5 s" in engine.log
    link.close()
