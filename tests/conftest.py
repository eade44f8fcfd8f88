"""For all tests: fixtures, and how pytest-xdist shares them out among its processes."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import multiprocessing.util
import os
import random
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import huge_pages, needs
from tests.board import boards
from tests.forks import Forks

# A shell makes its background processes ignore Ctrl-C, and so the processes that our tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Python makes one directory for its sockets per process, and removes it at the end. It must not be inside a test's directory.
multiprocessing.util.get_temp_dir()

# In this order they begin; the rest comes last. What takes longest begins first, so that no process waits for it at the end.
FIRST = ("board", "ddlp/faults", "ddlp/dropin", "ddlp/deploy", "csd_engine/service", "templates", "recipes")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache directory for the run: no test depends on the user's, and nothing is left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs scripts in forks of a process that has imported torch."""
    one = Forks()
    yield one
    one.end()


@pytest.fixture(scope="session")
def need_kernel() -> None:
    """Skip if there is no kernel. Fail if one was built but can't be loaded, or makes other pixels than Pillow.

    Without a C compiler skip in any case: the kernel came from elsewhere, and nobody could repair it here.
    """
    from csd_engine.kernels import compilers, kernel, why_not
    from csd_engine.kernels.build import LIBRARY

    if kernel() is not None:
        return
    setting = os.environ.get("DDLP_KERNEL", "")
    if setting != "off" and os.path.exists(setting or LIBRARY) and compilers.find():
        pytest.fail(f"a kernel was built and is not used: {why_not()}", pytrace=False)
    pytest.skip(why_not())


@pytest.fixture
def hard_limit() -> Iterator[None]:
    """Fail a test that hangs, and show all threads' stacks, instead of a stuck run."""
    limit_s = 300  # far more than a machine of twenty programs needs

    def over(*_: Any) -> None:
        faulthandler.dump_traceback(sys.__stderr__)  # sys.stderr may have been replaced by something without a descriptor
        raise TimeoutError(f"the test hangs: {limit_s} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(limit_s)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The garbage collector sees the tests' objects only: with torch's 400,000 a run takes 0.15 s, and some tests need five.

    A run of many tests, which forks often, does so from huge pages.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # the interpreter needs all of them at its end, after pytest has collected five times more
    if len(session.items) > 60:
        huge_pages.take()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    needs.report(terminalreporter)


def pytest_unconfigure() -> None:
    boards.take_down()  # of processes that had no time for it


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests. Of one that is marked with `some`, mark all combinations but so many as slow: each time the same."""
    firsts = [f"tests/{part}/" for part in FIRST]
    items.sort(key=lambda item: next((k for k, first in enumerate(firsts) if item.nodeid.startswith(first)), len(firsts)))
    combinations: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("some") is not None:
            combinations.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, several in combinations.items():
        quick = [item for item in several if item.get_closest_marker("slow") is None]
        (count,) = quick[0].get_closest_marker("some").args if quick else (0,)  # type: ignore[union-attr]
        for item in set(quick).difference(random.Random(name).sample(quick, min(count, len(quick)))):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests, which share what they made, stay in one process, and so do all that are on boards.

    The marks of ``--dist loadgroup`` have no effect with pytest 9.2 and pytest-xdist 3.8.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "boards" if nodeid.startswith("tests/board/") else super()._split_scope(nodeid)

    return Scheduling(config, log)
