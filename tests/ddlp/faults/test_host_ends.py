"""However the training process ends, it leaves no process and no file, and prints nothing extra."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.ddlp.faults.scene import engine_pid, until, worker_pids

AT_WORK = """
    loader = make_loader(data, "wrr", num_workers=2)
    iterator = engine_at_work(loader)
    said("ready")
"""
SLOW = {"DDLP_ENGINE_SLOWDOWN": "3"}


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_killed(script, number):
    one = script(AT_WORK + "    time.sleep(60)", **SLOW)
    assert one.line() == "ready"
    assert len(one.running()) == 3  # host, engine, worker
    os.kill(one.pid, number)
    one.nothing_left()
    assert one.end()[1] == ""


@pytest.mark.slow  # the next one sees what ends such a worker; test_killed, that a killed host leaves nothing
def test_killed_while_a_worker_hangs(script):
    one = script(AT_WORK + "    time.sleep(60)", **SLOW)
    assert one.line() == "ready"
    (worker,) = worker_pids(one.pid)
    os.kill(worker, signal.SIGSTOP)
    os.kill(one.pid, signal.SIGKILL)
    one.nothing_left()


def test_killed_together_with_its_engine_while_a_worker_hangs(script):
    one = script(AT_WORK + "    time.sleep(60)", **SLOW)
    assert one.line() == "ready"
    (worker,) = worker_pids(one.pid)
    os.kill(worker, signal.SIGSTOP)
    os.kill(engine_pid(one.pid), signal.SIGKILL)
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not one.running(), 30, "the end of the worker")


LOOP = """
    for batch in iterator:
        time.sleep(0.05)
    iterator = iter(loader)
    for batch in iterator:
        time.sleep(1)
"""


@pytest.mark.parametrize(("strategy", "after_s"), [pytest.param("wrr", 0.0, marks=pytest.mark.slow), ("csd", 0.73)])
def test_interrupted(script, strategy, after_s):
    one = script(AT_WORK.replace('"wrr"', f'"{strategy}"') + LOOP, **SLOW)
    assert one.line() == "ready"
    time.sleep(after_s)
    began = time.monotonic()
    one.interrupt()
    status, err = one.end()
    assert time.monotonic() - began < 30
    assert status == -signal.SIGINT
    assert err.startswith("Traceback") and err.rstrip().endswith("KeyboardInterrupt"), err
    assert err.count("Traceback") == 1 and "Exception" not in err, err
    one.nothing_left()


def test_interrupted_while_the_engine_starts(script):
    one = script(
        """
        loader = make_loader(data, "csd")
        said("ready")
        train(loader, 1)
        """
    )
    assert one.line() == "ready"
    time.sleep(0.3)
    one.interrupt()
    status, err = one.end()
    assert status and err.count("Traceback") == 1, err
    one.nothing_left()


def test_interrupted_while_an_engine_cannot_be_reached(script):
    one = script(
        """
        from ddlp import Device
        from csd_engine.protocol.keys import make_keys
        keys = make_keys(os.environ["TMPDIR"] + "/keys")
        import atexit, shutil; atexit.register(shutil.rmtree, keys)
        loader = make_loader(data, "wrr", csd=Device("tcp://127.0.0.1:9", keys))
        iterator = iter(loader); next(iterator)
        said("ready")
        for batch in iterator: time.sleep(1)
        """
    )
    assert one.line() == "ready"
    time.sleep(0.3)
    began = time.monotonic()
    one.interrupt()
    status, err = one.end()
    assert time.monotonic() - began < 30
    assert status and err.count("Traceback") == 1, err
    one.nothing_left()


ENDS = {
    "exception": ("raise ZeroDivisionError", 1, "ZeroDivisionError"),
    "exit in the loop": ("for batch in iterator: sys.exit(7)", 7, ""),
    "an iterator alive": ("pass", 0, ""),
    "an iterator alive, in a cycle": ("class A: pass\n    a = A(); a.a = a; a.i = iterator", 0, ""),
    "break": ("for batch in iterator: break", 0, ""),
    "hard": ("os._exit(5)", 5, ""),
    "two epochs at once": ("second = iter(loader); next(second)", 0, ""),
    "in a thread": (
        "import threading; t = threading.Thread(target=list, args=(iterator,)); t.start(); t.join()", 0, ""
    ),
    "whole epochs": ("list(iterator); list(loader)", 0, ""),
    "abandoned thread": (
        "import threading; begun = threading.Event(); "
        "threading.Thread(target=train, args=(loader, 60, {0: begun.set}), daemon=True).start(); begun.wait()", 0, ""
    ),
}  # fmt: skip


QUICK = ("exception", "an iterator alive, in a cycle", "hard", "abandoned thread")


@pytest.mark.parametrize("how", [how if how in QUICK else pytest.param(how, marks=pytest.mark.slow) for how in ENDS])
def test_ends(script, how):
    then, expected, last = ENDS[how]
    one = script(AT_WORK + "    " + then, **SLOW)
    assert one.line() == "ready"
    status, err = one.end()
    assert status == expected, err
    assert err.strip().endswith(last) and err.count("Traceback") == bool(last), err
    one.nothing_left()
