"""The engine as hosts meet it: real processes, sockets and files."""

from __future__ import annotations

from queue import SimpleQueue

import pytest
from engine_process import batch_files, until, wait_for

from ddlp.sources.link import LeasePublished


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:*"])
def test_a_job_goes_round(listen, start, recipe):
    engine = start("--root", str(recipe.root), listen=listen)
    link = engine.link()
    assert link.open().workers == 1
    events = SimpleQueue()
    job = recipe.open(link, events)
    wanted = {number: recipe.lease(job, number, 5 * number) for number in range(4)}
    for number, items in wanted.items():
        published = wait_for(events, LeasePublished)
        assert published.lease == number
        recipe.check(published.path, number, items)
        job.release(number)
        until(lambda path=published.path: not path.exists())
    job.close()
    until(lambda: not list(engine.spool.glob("job-*")))
    link.close()
    assert batch_files(engine.spool) == []
