"""`python -m tests.chaos`: a short run finds nothing, and a run finds a planted bug."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from ddlp.process.platforms import other_system
from tests.chaos.command import can_unshare, main
from tests.chaos.faults import FAULTS
from tests.chaos.training import ENDINGS

pytestmark = pytest.mark.skipif(other_system() is not None, reason="engines run on Linux alone")


@pytest.fixture
def chaos(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """Run it: its status, and what it told. It trains in a process of its own; the one that looks after that is this one."""
    if os.geteuid() == 0 and not can_unshare():
        pytest.skip("no mount namespace can be made here: the shared memory of other tests would count as left")
    before = signal.getsignal(signal.SIGTERM)
    yield lambda *arguments: (main(list(arguments)), "".join(capfd.readouterr()))
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow  # tests/ddlp/faults has a test for each fault
def test_a_short_run_finds_nothing(chaos: Callable[..., tuple[int, str]]) -> None:
    """A busy computer is slow, so only an epoch of ten minutes counts as hanging."""
    status, told = chaos("--seed", "5", "--minutes", "0.1", "--patience", "600")
    assert status == 0 and "nothing lost, doubled or wrong" in told, told[-4000:]


@pytest.mark.slow
def test_a_planted_bug_is_found(chaos: Callable[..., tuple[int, str]]) -> None:
    """The other bugs take some rounds to find: docs/chaos.md has their commands."""
    status, told = chaos("--seed", "1", "--rounds", "1", "--patience", "600", "--plant", "double-delivery")
    assert status == 1 and "4 doubled" in told, told[-4000:]


def test_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == [*(fault.name for fault in FAULTS), *ENDINGS] and len(set(names)) == len(names)
    assert main(["--only", "earthquake"]) == 2 and "no fault is called anything like earthquake" in capsys.readouterr().err
